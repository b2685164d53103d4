"""SGLang as the rest of partitune sees it: a thin face on the tables and rules beside it.

Decision: SGLang has no central scheduler (each stage runs one, a request stays in one of `pp + depth` slots for life),
so none of vLLM's regimes describes it: its flow has a name of its own.

Source: SGLang 0.5.23 `srt/distributed/utils.py`, `srt/mem_cache/kv_cache_configurator.py`,
`srt/arg_groups/memory_hook.py`, `srt/arg_groups/validation_hook.py`; splits read in 0.5.5.post3 and 0.5.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from partitune.costs.host_reads import Offloaded
from partitune.costs.memory import MemorySettings
from partitune.engines.coverage import left_out
from partitune.engines.deployment import Deployment
from partitune.engines.engine import Engine
from partitune.engines.flags import whole_number
from partitune.engines.rules import Violation
from partitune.engines.scheduling import Flow, Simulation
from partitune.engines.sglang.coverage import SGLANG_COVERAGE
from partitune.engines.sglang.cuts import CUT_RULES
from partitune.engines.sglang.defaults import FEWEST_ROWS, capture_sizes, default_flags, effective_flags
from partitune.engines.sglang.flags import SGLANG_FLAGS
from partitune.engines.sglang.kv_planning import kv_blocks, kv_cache, rank_cache_bytes
from partitune.engines.sglang.kv_recording import KvRecord
from partitune.engines.sglang.launch import SglangLaunch
from partitune.engines.sglang.levers import levers
from partitune.engines.sglang.logs import SglangReadout
from partitune.engines.sglang.models import (
    MEASURED,
    QUANTISATIONS,
    REGISTRY,
    TIMED,
    expert_kernels,
    replicated_embeddings,
)
from partitune.engines.sglang.parallel_rules import resolved_layout
from partitune.engines.sglang.rules import check_sglang
from partitune.engines.sglang.scheduler.engine_core import simulate_sglang
from partitune.engines.sglang.scheduler.recording import Recording
from partitune.engines.sglang.scheduler.settings import SGLANG_OVERHEADS, sglang_settings
from partitune.engines.sglang.trace_names import SglangTraceNames
from partitune.engines.sglang.weights import QUANTISING, builds_tower, offloaded_bytes, redundant_experts
from partitune.engines.stored import with_cache_bytes
from partitune.engines.versions import Version, VersionRange, parse_version
from partitune.errors import OutOfMemory, Refused, SpecError
from partitune.hardware.parallelism import RankOrder
from partitune.models.architecture import STATE_KINDS, Architecture
from partitune.simulation.run import Run

#: Key of a search space -> the flags and variables that follow from it; SGLang takes two spellings of a size.
_WRITTEN = {
    "seeds, knobs.partition or --partition": ("SGLANG_PP_LAYER_PARTITION",),
    "model": ("model_path",),
    "parallel.pp": ("pp_size", "pipeline_parallel_size"),
    "parallel.tp": ("tp_size", "tensor_parallel_size"),
    "parallel.dp": ("dp_size", "data_parallel_size", "attn_dp_size", "attention_data_parallel_size"),
    "parallel.expert_parallel": ("ep_size", "expert_parallel_size"),
    "parallel.dcp": ("dcp_size", "decode_context_parallel_size"),
    "parallel.pcp": ("attn_cp_size", "attention_context_parallel_size", "enable_prefill_cp"),
    "parallel.all2all_backend": ("moe_a2a_backend",),
    "parallel.all_reduce_backend": ("disable_custom_all_reduce",),
}


class Sglang(Engine):
    """SGLang behind the protocols of an engine: each question goes to the module that knows."""

    name = "sglang"
    versions_read = VersionRange("SGLang", oldest=Version(0, 5, 16), newest=Version(0, 5, 23))
    versions_measured = TIMED
    split_rules = (
        (Version(0, 0), "all-on-last"),
        (Version(0, 5, 6), "remainder-last"),  # PR 13977; remainder-first (PR 13282) was never released
    )
    #: Chunks as vLLM's budgets; a request stays in its slot for life, so that its size decides what fills a pipeline.
    default_knobs = MappingProxyType(
        {
            "chunked_prefill_size": (512, 1024, 2048, 4096, 8192, 16384),
            "pp_max_micro_batch_size": (2, 4, 8, 16, 32, 64),
            "pp_async_batch_depth": (0, 1, 2),
        }
    )
    registry, quantisations, measured = REGISTRY, QUANTISATIONS, MEASURED
    cut_rules = CUT_RULES
    stages_of_states_since = Version(0, 5, 17)  # `model_executor/pool_configurator.py`; before, it divides by zero
    written_by_partitune = MappingProxyType({name: key for key, names in _WRITTEN.items() for name in names})
    storing_flags = ("quantization", "kv_cache_dtype", "cpu_offload_gb", "mamba_ssm_dtype")
    resolved_layout = staticmethod(resolved_layout)
    default_flags, effective_flags = staticmethod(default_flags), staticmethod(effective_flags)
    kv_cache, kv_blocks = staticmethod(kv_cache), staticmethod(kv_blocks)
    expert_flag, expert_kernels = "moe_runner_backend", staticmethod(expert_kernels)
    levers = staticmethod(levers)
    recordings = MappingProxyType({"schedules": Recording, "KV caches": KvRecord})
    launch = SglangLaunch()
    readout = SglangReadout()
    trace_names = SglangTraceNames()

    def check(self, deployment: Deployment) -> tuple[Violation, ...]:
        """Every rule that the deployment breaks."""
        of_partition = self.partition_faults(deployment, "SGLang 0.5.23 srt/distributed/utils.py")
        return (*self.architecture_faults(deployment), *check_sglang(deployment), *of_partition)

    def not_modelled(self, deployment: Deployment) -> Mapping[str, str]:
        """Flags that are set and change no figure here."""
        named = left_out(deployment.flags, SGLANG_COVERAGE, SGLANG_FLAGS, "SGLang")
        if self.times_experts(deployment):
            named.pop(self.expert_flag, None)
        return QUANTISING.left_out(deployment) | named

    def rank_order(self, architecture: Architecture) -> RankOrder:
        """Attention data ranks lie inside a stage; replicas of a dense model each have a pipeline of their own."""
        return RankOrder.REPLICAS_INSIDE if architecture.has_experts else RankOrder.REPLICAS_OUTSIDE

    def flow(self, deployment: Deployment) -> Flow:
        """A request stays in one slot for life, at most `pp_max_micro_batch_size` in each.

        That cap is by default the running requests over the stages (`managers/scheduler.py` init_model_worker): far
        more than a burst of a few requests needs, all of which then share one slot.
        """
        flags, stages = effective_flags(deployment), deployment.stages
        running = whole_number(flags, "max_running_requests", FEWEST_ROWS)
        chunk = int(flags["chunked_prefill_size"])
        return Flow(
            "slots",
            cohorts=stages + int(flags["pp_async_batch_depth"]) if stages > 1 else 1,
            step_tokens=chunk if chunk > 0 else int(flags["max_prefill_tokens"]),
            max_requests=running,
            cohort_requests=whole_number(flags, "pp_max_micro_batch_size", max(running // stages, 1)),
            reuses=not flags.get("disable_radix_cache", False),
            notes=self.versions_read.notes(parse_version(deployment.version)),
            meaning="a request stays in one slot for life, and slots take turns on the stages",
        )

    def stored(self, deployment: Deployment) -> Architecture:
        """Weights as `quantization` has them, and KV of the type of the pool."""
        architecture, kept = QUANTISING.stored(deployment), rank_cache_bytes(deployment)
        tp, blocks = deployment.tp, [layer.attention for layer in deployment.architecture.layers]
        if list(kept) == [
            block.state_bytes / tp if block.kind in STATE_KINDS else block.kv_bytes_per_token_rank(tp)
            for block in blocks
        ]:
            return architecture
        return with_cache_bytes(architecture, kept)

    def offloaded(self, deployment: Deployment) -> Offloaded | None:
        """What `cpu_offload_gb` leaves in the host is copied before every step."""
        left = offloaded_bytes(deployment.flags)
        return Offloaded(left, copied=True) if left else None

    def memory_settings(self, deployment: Deployment) -> MemorySettings:
        """Weights and KV share `mem_fraction_static` of what is free at start; a batch works in the rest."""
        flow, flags = self.flow(deployment), effective_flags(deployment)
        return MemorySettings(
            max_num_batched_tokens=flow.step_tokens,
            max_num_seqs=flow.cohort_requests,
            gpu_memory_utilization=float(flags["mem_fraction_static"]),
            graph_sizes=len(capture_sizes(deployment, flow.max_requests)),
            share_flag="mem_fraction_static",
            static_share=True,
            vision=builds_tower(deployment.architecture, flags),
            copies=replicated_embeddings(deployment.architecture),
            redundant_experts=redundant_experts(flags),
            offloaded_bytes=offloaded_bytes(flags),
        )

    def fewest_kv_blocks(self, deployment: Deployment) -> int:  # noqa: ARG002  (the protocol's)
        """Pages of one token: SGLang starts with any pool and refuses long requests later."""
        return 1

    def run(self, simulation: Simulation) -> Run:
        """Run one scheduler's load in virtual time, slot after slot. Raises as the protocol says."""
        try:
            _check_texts(simulation)
            settings = sglang_settings(simulation.deployment, simulation.kv_cache, simulation.costs)
            overheads = simulation.overheads or SGLANG_OVERHEADS
            return simulate_sglang(
                simulation.requests,
                settings,
                simulation.costs,
                overheads,
                simulation.concurrency,
                waits=True,
                record_timeline=simulation.record_timeline,
            )
        except OutOfMemory as error:
            raise OutOfMemory(str(error), excess=(error.excess or 1.0) / simulation.kv_cache.block_size) from error
        except SpecError as error:
            raise Refused(f"SGLang: {error}", excess=1.0) from error


def _check_texts(simulation: Simulation) -> None:
    """Raises SpecError where prompts begin alike and the model has states, which are kept at few places of a text."""
    layers = simulation.deployment.architecture.layers
    shared = any(request.prefix or request.continues is not None for request in simulation.requests)
    if shared and any(layer.attention.kind in STATE_KINDS for layer in layers):
        raise SpecError(
            "prompts that begin alike are not simulated for a model with linear attention or state spaces: its states "
            "are found again only where the engine kept them; leave prefix and continues out"
        )


ENGINE: Engine = Sglang()
