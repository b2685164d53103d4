"""What SGLang's scheduler looks at, as one frozen value.

Decision: names are SGLang's own wherever it has one, so that a setting can be found in its documentation. Prompts may
begin alike; and a request that was retracted may find its own prompt in the radix cache again.

Source: SGLang 0.5.23 `srt/arg_groups/fields/schedule.py`, `srt/arg_groups/fields/parallel.py`, `srt/environ.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from partitune.costs.cost_model import StageCosts
from partitune.engines.deployment import Deployment
from partitune.engines.flags import whole_number
from partitune.engines.memory import KvCache
from partitune.engines.sglang.defaults import FEWEST_ROWS, effective_flags, is_on
from partitune.engines.sglang.scheduler.chunks import ChunkLaw
from partitune.errors import SpecError
from partitune.simulation.run import Overheads

#: Orders of the waiting requests that are simulated (`--schedule-policy`).
POLICIES = ("fcfs", "lpm", "dfs-weight")
#: Numbers that may be 0; every other is 1 or more.
_MAY_BE_ZERO = (
    *("pp_async_batch_depth", "schedule_conservativeness"),
    *("prefill_decode_interval", "prefill_decode_interval_min_bs"),
)


@dataclass(frozen=True, slots=True)
class SglangSettings:
    """SGLang's scheduler, KV pool and pipeline loop.

    With one stage the loop is the one of `--disable-overlap-schedule`; more stages force that anyway.

    Raises:
        SpecError: a value the engine does not accept.
    """

    stages: int
    max_running_requests: int
    num_tokens: int  # max_total_num_tokens: tokens the KV pool holds, the same on every stage
    page_size: int = 1
    max_model_len: int = 1 << 30
    chunked_prefill_size: int | None = 8192  # None: off (the engine's -1)
    max_prefill_tokens: int = 16384
    prefill_max_requests: int | None = None
    pp_max_micro_batch_size: int | None = None  # None: max_running_requests // stages
    pp_async_batch_depth: int = 0
    enable_mixed_chunk: bool = False
    dynamic_chunks: ChunkLaw | None = None  # None: --enable-dynamic-chunking is off, or the engine's fit failed
    prefill_decode_interval: int = 0  # decode slots between two prefill slots
    prefill_decode_interval_min_bs: int = 0
    schedule_conservativeness: float = 1.0
    schedule_policy: str = "fcfs"  # one of POLICIES
    radix_cache: bool = True
    ignore_eos: bool = True  # the requests': a benchmark's ignore EOS, and then all of their output is reserved
    comm_overlap: bool = False  # SGLANG_PP_COMM_OVERLAP
    skip_pure_chunked_output: bool = False  # SGLANG_PP_SKIP_PURE_CHUNKED_OUTPUT_COMM

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, least = getattr(self, setting.name), int(setting.name not in _MAY_BE_ZERO)
            if type(value) in (int, float) and value < least:
                raise SpecError(f"SGLang settings: {setting.name} is {value}; it must be {least} or more")
        if self.schedule_policy not in POLICIES:
            raise SpecError(
                f"schedule_policy {self.schedule_policy} is not simulated; {', '.join(POLICIES[:-1])} and "
                f"{POLICIES[-1]} are"
            )
        if self.chunked_prefill_size and self.chunked_prefill_size % self.page_size:
            raise SpecError(
                f"SGLang settings: chunked_prefill_size {self.chunked_prefill_size} must be a multiple of page_size "
                f"{self.page_size}"
            )

    @property
    def slots(self) -> int:
        """Micro-batches that are visited in turn (`scheduler_pp_mixin.py` init_pp_loop_state)."""
        return self.stages + self.pp_async_batch_depth if self.stages > 1 else 1

    @property
    def micro_batch_cap(self) -> int:
        """Most requests in one slot (`scheduler.py` init_model_worker: by stages, not by slots)."""
        return self.pp_max_micro_batch_size or max(self.max_running_requests // self.stages, 1)

    @property
    def mixes(self) -> bool:
        """True when decodes ride along with a prefill."""
        return self.enable_mixed_chunk and self.chunked_prefill_size is not None


#: For runs that should look like a server. A slot without work only passes messages on, as SGLang's loop never sleeps,
#: and a slot with work is assumed to cost a quarter of a millisecond: whole servers need no more (docs/validation.md).
#: The rest is assumed as for vLLM: sampler kernels, one small NCCL message across nodes, a pinned copy.
SGLANG_OVERHEADS = Overheads(
    engine_step_s=250e-6, empty_step_s=100e-6, sample_s=100e-6, broadcast_s=50e-6, d2h_s=100e-6
)
_MOST_ROWS, _ROWS_PER_CONTEXT = 4096, 512
#: Slots of the state pool per running request, as the radix cache keeps states too (without extra buffers, the default
#: of a pipeline with pages of one token; `srt/mem_cache/kv_cache_configurator.py` _calculate_mamba_ratio).
_SLOTS_PER_REQUEST = 3
#: Settings that are spelled as the flags they follow from.
_SAME = (
    *("page_size", "max_prefill_tokens", "prefill_max_requests", "pp_max_micro_batch_size", "pp_async_batch_depth"),
    *("enable_mixed_chunk", "prefill_decode_interval", "prefill_decode_interval_min_bs", "schedule_conservativeness"),
    "schedule_policy",
)


def sglang_settings(deployment: Deployment, kv_cache: KvCache, costs: StageCosts) -> SglangSettings:
    """The scheduler of this start.

    Args:
        deployment: stages, flags and environment; values that the flags take.
        kv_cache: the KV pool.
        costs: stage times; only dynamic chunking looks at them (stage 0's, as the engine profiles itself).

    Raises:
        SpecError: a scheduling policy that is not simulated, or a value the engine refuses.
    """
    flags = {**deployment.flags, **effective_flags(deployment)}
    length = whole_number(flags, "context_length", deployment.architecture.max_position)
    tokens = min(kv_cache.tokens, whole_number(flags, "max_total_tokens", kv_cache.tokens))
    chunk, law = whole_number(flags, "chunked_prefill_size", 0), None
    if flags["enable_dynamic_chunking"] and chunk > 0 and deployment.stages > 1:
        smooth = float(flags.get("SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR", 0.75))
        law = ChunkLaw.profiled(costs, chunk, length, smooth)
    same: dict[str, Any] = {name: flags[name] for name in _SAME if name in flags}
    return SglangSettings(
        stages=deployment.stages,
        max_running_requests=most_running(deployment, kv_cache),
        num_tokens=max(tokens, 1),
        max_model_len=length,
        chunked_prefill_size=chunk if chunk > 0 else None,
        dynamic_chunks=law,
        radix_cache=not flags.get("disable_radix_cache", False),
        comm_overlap=is_on(flags, "SGLANG_PP_COMM_OVERLAP"),
        skip_pure_chunked_output=is_on(flags, "SGLANG_PP_SKIP_PURE_CHUNKED_OUTPUT_COMM"),
        **same,
    )


def most_running(deployment: Deployment, kv_cache: KvCache) -> int:
    """Requests that run at once: as asked for or by the pool's size, and no more than their states have slots."""
    flags = {**deployment.flags, **effective_flags(deployment)}
    length = whole_number(flags, "context_length", deployment.architecture.max_position)
    tokens = min(kv_cache.tokens, whole_number(flags, "max_total_tokens", kv_cache.tokens))
    estimate = max(min(int(tokens / length * _ROWS_PER_CONTEXT), _MOST_ROWS), FEWEST_ROWS)
    rows = min(whole_number(flags, "max_running_requests", estimate), tokens // 2)
    if kv_cache.state_slots is not None:
        rows = min(rows, kv_cache.state_slots // (1 if flags.get("disable_radix_cache") else _SLOTS_PER_REQUEST))
    return max(rows, 1)
