"""SGLang's scheduler with the outside world replaced, one object a stage, and the run of one scenario.

Decision: a subclass, not a copy: what decides who runs when is inherited, and each override says what it stands for.
`get_parallel()` is one object a process in SGLang; here a process holds all stages, so its rank is the thread's.
"""

# The engine is not installed where the checks run.
# mypy: disallow-subclassing-any=False, disable-error-code="import-not-found"
from __future__ import annotations

import contextlib
import threading
from array import array
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt import runtime_context
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers import scheduler as scheduler_module
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.dynamic_chunk_sizer import ChunkSizePredictor, DynamicChunkSizer
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.model_executor.forward_batch_info import PPProxyTensors
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from benchmarks.sglang_scenarios import Scenario
from benchmarks.sglang_texts import answer_token
from benchmarks.sglang_virtual_device import Stage, Within

torch.set_num_threads(1)  # tensors of a few numbers; the stages' threads are many enough

_mine = threading.local()
_read = runtime_context.ParallelContext._read


def _read_own_rank(context: Any, name: str) -> Any:
    """`get_parallel()` is one object a process; here a process holds all stages."""
    if name == "pp_rank" and hasattr(_mine, "rank"):
        return _mine.rank
    if name == "pp_group" and hasattr(_mine, "group"):
        return _mine.group
    return _read(context, name)


runtime_context.ParallelContext._read = _read_own_rank
scheduler_module.get_resolved_model_impl = lambda _config: None  # asks for a model; only its name is looked at


class Silent:
    """Takes every call and answers nothing: reporters and other parts that no decision asks."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


def _nothing(*_: object, **__: object) -> None:
    """No answer."""


class EngineAborts(Exception):
    """SGLang aborts a request for want of memory."""


class Finished(Exception):
    """No request is left."""


class Recorded(Scheduler):
    """SGLang's scheduler with the outside world replaced."""

    def __init__(
        self, scenario: Scenario, stage: Stage, arrivals: list[dict[str, Any]], texts: dict[str, array[int]]
    ) -> None:
        self.scenario, self.stage, self.arrivals, self.texts = scenario, stage, arrivals, texts
        self.steps: list[dict[str, Any]] = []
        self.moments: list[Any] = []
        self.busy_s = 0.0
        self.retracted = 0
        self.first_s: dict[str, float] = {}
        self.last_s: dict[str, float] = {}
        self._world()
        self._memory()
        self.init_running_status()
        self.init_chunked_prefill()
        self._dynamic_chunks()
        self.init_schedule_policy()
        self.init_batch_result_processor()

    def _world(self) -> None:
        scenario, stage = self.scenario, self.stage
        self.server_args = runtime_context.get_server_args()
        self.model_config = SimpleNamespace(
            context_len=scenario.max_model_len,
            vocab_size=1 << 40,
            is_encoder_decoder=False,
            is_multimodal=False,
            think_end_ids=None,
            self_opened_think_start_ids=None,
            request_selectable_think_end_id_sequences=None,
            hf_config=SimpleNamespace(architectures=["LlamaForCausalLM"]),
            model_impl="sglang",
            num_key_value_heads=1,
        )
        self.is_generation, self.spec_algorithm = True, SpeculativeAlgorithm.NONE
        self.enable_overlap = self.enable_overlap_mlx = self.enable_pdmux = False
        self.disaggregation_mode = DisaggregationMode.NULL
        self.schedule_policy = scenario.schedule_policy
        self.enable_priority_scheduling = self.enable_priority_preemption = False
        self.abort_on_priority_when_disabled = self.schedule_low_priority_values_first = False
        self.priority_scheduling_preemption_threshold = 10
        for name in (
            "enable_lora", "enable_lora_overlap_loading", "enable_hierarchical_cache",
            "enable_hicache_storage", "enable_unified_cache_external_linker", "enable_lmcache",
            "enable_hisparse", "enable_unified_memory", "is_hybrid_swa", "is_hybrid_ssm", "require_mlp_sync",
            "attn_dp_enabled", "enable_session_radix_cache", "enable_decode_hicache", "enable_fpm",
        ):  # fmt: skip
            setattr(self, name, False)
        for name in (
            "dllm_config", "lora_drainer", "prefill_delayer", "min_free_slots_delayer",
            "truncation_align_size", "draft_worker", "decode_offload_manager", "hisparse_coordinator",
            "scheduler_stage_metrics", "scripted_scheduler_hook", "max_new_tokens_limit",
            "max_queued_requests", "metrics_collector", "sliding_window_size", "_prev_step",
            "load_snapshot_writer",
        ):  # fmt: skip
            setattr(self, name, None)
        self.processed_tokens_counter = self.max_prefill_bs = 0
        self.page_size = scenario.page_size
        self.max_running_requests = scenario.max_running_requests
        self.max_prefill_tokens = scenario.max_prefill_tokens
        self.max_req_len = self.max_total_num_tokens = scenario.num_tokens
        self.max_req_len = min(scenario.max_model_len, scenario.num_tokens) - 1
        for name in (
            "metrics_reporter", "profiler_manager", "load_inquirer", "load_publisher", "tp_worker",
            "model_worker", "ngram_embedding_manager", "dp_attn_adapter", "grammar_manager",
            "kv_events_publisher", "future_map", "beam_coordinator",
        ):  # fmt: skip
            setattr(self, name, Silent())
        self.grammar_manager.has_waiting_grammars = lambda: False
        self.dp_attn_adapter.maybe_prepare_mlp_sync_batch = lambda batch, **_: batch
        self.dp_attn_adapter.maybe_convert_decode_to_extend = lambda batch: batch
        self.ngram_embedding_manager.prepare_for_forward = lambda batch, **_: batch
        self.beam_coordinator.pending_member_rows = lambda _batch: 0
        self.load_inquirer._get_num_pending_tokens = lambda **_: 0
        self.metrics_reporter.num_generated_tokens = self.metrics_reporter.forward_ct_decode = 0
        self.metrics_reporter.enable_metrics = False
        self.tp_worker.model_runner = SimpleNamespace(
            attn_backend=None, prefill_aware_swa=False, sampling_observer=None
        )
        self.output_streamer = SimpleNamespace(stream_output=self._stream)
        self.pp_group = stage
        self.device, self.device_module = "cpu", stage
        self.schedule_stream, self.forward_stream, self.copy_stream = stage.schedule, stage.forward, stage.copy
        self.forward_stream_ctx = Within(stage, stage.forward)
        self.copy_stream_ctx = Within(stage, stage.copy)
        self.attn_tp_group = None

    def _memory(self) -> None:
        scenario = self.scenario
        self.req_to_token_pool = ReqToTokenPool(
            scenario.max_running_requests, scenario.max_model_len + 8, "cpu", enable_memory_saver=False
        )
        shared = {"dtype": torch.float16, "device": "cpu", "kvcache": Silent(), "need_sort": False}
        if scenario.page_size == 1:
            self.token_to_kv_pool_allocator = TokenToKVPoolAllocator(scenario.num_tokens, **shared)
        else:
            self.token_to_kv_pool_allocator = PagedTokenToKVPoolAllocator(
                scenario.num_tokens, scenario.page_size, **shared
            )
        self.disable_radix_cache = not scenario.radix_cache
        self.tree_cache = UnifiedRadixCache(
            CacheInitParams(
                disable=self.disable_radix_cache,
                req_to_token_pool=self.req_to_token_pool,
                token_to_kv_pool_allocator=self.token_to_kv_pool_allocator,
                page_size=scenario.page_size,
                tree_components=(ComponentType.FULL,),
                chunked_prefill_size=scenario.chunked_prefill_size,
            )
        )

    def init_beam_coordinator(self) -> None:
        """Beam search is not recorded."""

    def _dynamic_chunks(self) -> None:
        """The real predictor with the quadratic it would have fitted."""
        self.dynamic_chunk_sizer = None
        fit = self.scenario.dynamic_chunking
        if fit is None or self.stage.size == 1:
            return
        sizer = DynamicChunkSizer.__new__(DynamicChunkSizer)
        sizer.predictor = ChunkSizePredictor()
        sizer.predictor.quadratic_coeff_a, sizer.predictor.linear_coeff_b = fit
        sizer.predictor.set_target_latency(self.chunked_prefill_size)
        sizer.predictor.is_ready = True
        sizer.model_config, sizer.page_size, sizer.pp_rank = self.model_config, self.page_size, self.stage.rank
        sizer.max_prefill_tokens, sizer.chunked_prefill_size = self.max_prefill_tokens, self.chunked_prefill_size
        self.dynamic_chunk_sizer = sizer

    # requests
    def ingest_requests(self, stop_at_pause: bool = False) -> list[dict[str, Any]]:  # noqa: ARG002
        """Stage 0 polls, the others are told."""
        if self.stage.is_first_rank:
            ready: list[dict[str, Any]] = []
            while self.arrivals and self.arrivals[0]["arrival"] <= self.stage.cpu_s:
                ready.append(self.arrivals.pop(0))
        else:
            ready = self.stage.receive_requests()
        if ready is None:
            if not self.stage.is_last_rank:
                self.stage.send_requests(None)
            raise Finished
        for request in ready:
            self._add(request)
        return ready

    def _pp_send_pyobj_to_next_stage(self, data: Any, async_send: bool = False) -> Any:  # noqa: ARG002
        return self.stage.send_requests(data)

    def _add(self, request: dict[str, Any]) -> None:
        ids = self.texts[request["id"]]
        sampling = SamplingParams(max_new_tokens=request["output_tokens"], ignore_eos=self.scenario.ignore_eos)
        sampling.normalize(None)
        req = Req(request["id"], "", ids, sampling, vocab_size=1 << 40, eos_token_ids=set())
        req.tokenizer = None
        self.init_req_max_new_tokens(req)
        if req.sampling_params.max_new_tokens != request["output_tokens"]:
            raise ValueError(f"{self.scenario.name}: the engine clips request {request['id']}")
        self._add_request_to_queue(req)

    # work
    def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
        """The real decision; then its CPU time, and the record of it."""
        plan = super().get_next_batch_to_run(running_batch=running_batch, last_batch=last_batch)
        batch = plan.batch_to_run
        self.stage.cpu_s += self.scenario.engine_step_s if batch else self.scenario.empty_step_s
        tokens: dict[str, int] = {}
        if batch:
            decodes = batch.forward_mode.is_decode()
            lengths = [1] * len(batch.reqs) if decodes else batch.extend_lens
            tokens = {req.rid: length for req, length in zip(batch.reqs, lengths, strict=True)}
        self.steps.append({"dispatch": self.stage.cpu_s, "start": None, "end": self.stage.cpu_s, "tokens": tokens})
        return plan

    def run_batch(self, batch: Any, pp_proxy_tensors: Any = None) -> Any:  # noqa: ARG002
        """A forward pass of known length."""
        scenario, stage = self.scenario, self.stage
        step = self.steps[-1]
        count = sum(step["tokens"].values())
        seconds = scenario.scale[stage.rank] * (scenario.base + scenario.per_token * count)
        if stage.is_last_rank:
            seconds += scenario.sample_s
        self.busy_s += seconds
        start, end = stage.current.run(seconds, stage.cpu_s)
        self.moments.append((step, start, end))
        ids = torch.tensor([answer_token(req.rid) for req in batch.reqs], dtype=torch.int64)
        if stage.size == 1:
            stage.cpu_s = max(stage.cpu_s, end.seconds()) + scenario.d2h_s
        return GenerationBatchResult(
            next_token_ids=ids if stage.is_last_rank else None,
            pp_hidden_states_proxy_tensors=PPProxyTensors({"tokens": count}),
            can_run_cuda_graph=batch.forward_mode.is_decode(),
        )

    def _pp_prep_batch_result(self, batch: Any, mb_metadata: Any, pp_outputs: Any) -> Any:
        result = super()._pp_prep_batch_result(batch, mb_metadata, pp_outputs)
        if self.scenario.d2h_s:
            self.stage.copy.run(self.scenario.d2h_s, self.stage.cpu_s)
        return result

    def init_pp_loop_state(self) -> None:
        """The real one; its own communication stream asks for a CUDA device."""
        super().init_pp_loop_state()
        if self.scenario.comm_overlap:
            self.pp_comm_stream = self.stage.comm
            self.pp_comm_stream_ctx = Within(self.stage, self.stage.comm)

    def _stream(self, reqs: Any, _logprob: object, skipped: Any = None) -> None:
        for req in reqs:
            if req is not skipped and req.output_ids:
                self.first_s.setdefault(req.rid, self.stage.cpu_s)
                if req.finished():
                    self.last_s.setdefault(req.rid, self.stage.cpu_s)

    def send_abort_output(self, *_: object) -> None:
        """The engine gives a request up: nothing to record."""
        raise EngineAborts(self.scenario.name)

    def _maybe_clear_mm_inputs(self, batch: Any) -> None:
        """No images."""

    def maybe_send_health_check_signal(self) -> None:
        """No socket."""

    def _record_step_counters(self, batch: Any, result: Any) -> None:
        """Only reports."""

    def update_running_batch(self, batch: Any) -> Any:
        """Count retractions."""
        self.metrics_reporter.num_retracted_reqs = 0
        updated = super().update_running_batch(batch)
        self.retracted += self.metrics_reporter.num_retracted_reqs
        return updated

    def on_idle(self) -> None:
        """A round without a batch: the ratio starts anew, and time goes on to the next request."""
        live = self.waiting_queue or self.chunked_req or any(not b.is_empty() for b in self._running())
        if live or any(batch is not None for batch in self._in_flight()):
            self.stuck = getattr(self, "stuck", 0) + 1
            if self.stuck > 3 * self.stage.size + 20:
                raise RuntimeError(f"{self.scenario.name}: requests wait for ever")
            return
        self.stuck = 0
        self.new_token_ratio_tracker.reset()
        if self.stage.is_first_rank:
            if not self.arrivals:
                if self.stage.size > 1:
                    self.stage.send_requests(None)
                raise Finished
            self.stage.cpu_s = max(self.stage.cpu_s, self.arrivals[0]["arrival"])

    def _running(self) -> list[Any]:
        return list(self.running_mbs) if self.stage.size > 1 else [self.running_batch]

    def _in_flight(self) -> list[Any]:
        return list(self.mbs) if self.stage.size > 1 else []

    def work(self) -> None:
        """Run the engine's loop to the end."""
        _mine.rank, _mine.group = self.stage.rank, self.stage
        loop = self.event_loop_pp if self.stage.size > 1 else self.event_loop_normal
        with contextlib.suppress(Finished):
            loop()
        for step, start, end in self.moments:
            step["start"], step["end"] = start.seconds(), end.seconds()
