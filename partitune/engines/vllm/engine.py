"""vLLM as the rest of partitune sees it: a thin face on the tables and rules beside it.

Decision: this module holds no knowledge of its own but which rule applies from which release on; flags, defaults,
refusals, regimes and KV planning each have a module that says where they were read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from partitune.candidate import FlagValue
from partitune.costs.cost_model import Floats
from partitune.costs.host_reads import Offloaded
from partitune.costs.memory import MemorySettings
from partitune.engines.coverage import left_out
from partitune.engines.deployment import Deployment
from partitune.engines.engine import Engine
from partitune.engines.flags import whole_number
from partitune.engines.memory import KvCache
from partitune.engines.rules import Violation
from partitune.engines.scheduling import Flow, Simulation
from partitune.engines.stored import with_cache_bytes
from partitune.engines.versions import Version, parse_version
from partitune.engines.vllm.coverage import VLLM_COVERAGE
from partitune.engines.vllm.cuts import CUT_RULES
from partitune.engines.vllm.defaults import capture_sizes, default_flags, effective_flags
from partitune.engines.vllm.flags import VLLM_FLAGS
from partitune.engines.vllm.kv_choices import cache_note
from partitune.engines.vllm.kv_layouts import takes_another_type
from partitune.engines.vllm.kv_pages import cache_model, layer_cache_bytes
from partitune.engines.vllm.kv_planning import blocks_per_request, fitted_length, kv_cache, range_blocks
from partitune.engines.vllm.kv_recording import KvRecord
from partitune.engines.vllm.launch import VllmLaunch
from partitune.engines.vllm.levers import levers, other_starts
from partitune.engines.vllm.logs import VllmReadout
from partitune.engines.vllm.models import (
    KNOWN_TIMES,
    MEASURED,
    QUANTISATIONS,
    REGISTRY,
    TIMED,
    expert_kernels,
    replicated_embeddings,
)
from partitune.engines.vllm.parallel_rules import resolved_layout
from partitune.engines.vllm.pipelining import READ, Regime, choose_regime, regime, runs_v2
from partitune.engines.vllm.rules import check_vllm, draft_method
from partitune.engines.vllm.scheduler.engine_core import simulate
from partitune.engines.vllm.scheduler.recording import Recording
from partitune.engines.vllm.scheduler.settings import VLLM_OVERHEADS, vllm_settings
from partitune.engines.vllm.state_exports import state_export
from partitune.engines.vllm.state_types import STATE_FLAGS
from partitune.engines.vllm.trace_names import VllmTraceNames
from partitune.engines.vllm.weights import builds_tower, offloaded_bytes, quantising, redundant_experts
from partitune.models.architecture import Architecture
from partitune.simulation.run import Run

#: Drafting methods whose last stage keeps the target's embedding (0.32 `model_executor/models/utils.py`).
_DRAFTS_FROM_EMBEDDING = frozenset({"eagle", "eagle3", "dflash", "dspark"})


class Vllm(Engine):
    """vLLM behind the protocols of an engine: each question goes to the module that knows."""

    name = "vllm"
    versions_read, versions_measured = READ, TIMED
    split_rules = (
        (Version(0, 0), "all-on-last"),
        (Version(0, 8), "middle-stages"),  # PR 13839 was merged six days after 0.7.3; PR 46217 is open
    )
    #: Budgets from a small chunk to the largest default, and the caps around them.
    default_knobs = MappingProxyType(
        {
            "max_num_batched_tokens": (512, 1024, 2048, 4096, 8192, 16384),
            "max_num_seqs": (16, 32, 64, 128, 256, 512),
            "async_scheduling": (True, False),
        }
    )
    registry, quantisations, measured = REGISTRY, QUANTISATIONS, MEASURED
    cut_rules, known_times = CUT_RULES, KNOWN_TIMES
    expert_flag, expert_kernels = "moe_backend", staticmethod(expert_kernels)
    written_by_partitune: ClassVar[Mapping[str, str]] = {
        "VLLM_PP_LAYER_PARTITION": "seeds, knobs.partition or --partition",
        "VLLM_USE_V2_MODEL_RUNNER": "engine.runner",
        "model": "model",
        "pipeline_parallel_size": "parallel.pp",
        "tensor_parallel_size": "parallel.tp",
        "data_parallel_size": "parallel.dp",
        "prefill_context_parallel_size": "parallel.pcp",
        "decode_context_parallel_size": "parallel.dcp",
        "enable_expert_parallel": "parallel.expert_parallel",
        "all2all_backend": "parallel.all2all_backend",
        "disable_custom_all_reduce": "parallel.all_reduce_backend",
    }
    storing_flags = (
        "quantization", "kv_cache_dtype", "kv_cache_dtype_skip_layers", "cpu_offload_gb", "offload_backend",
        "offload_group_size", *STATE_FLAGS,
    )  # fmt: skip
    resolved_layout = staticmethod(resolved_layout)
    effective_flags = staticmethod(effective_flags)
    levers, other_starts = staticmethod(levers), staticmethod(other_starts)
    recordings = MappingProxyType({"schedules": Recording, "KV caches": KvRecord})
    launch = VllmLaunch()
    readout = VllmReadout()
    trace_names = VllmTraceNames()

    def check(self, deployment: Deployment) -> tuple[Violation, ...]:
        """Every rule that the deployment breaks."""
        of_partition = self.partition_faults(deployment, "vLLM 0.32 distributed/utils.py, v1/core/kv_cache_utils.py")
        return (*self.architecture_faults(deployment), *check_vllm(deployment), *of_partition)

    def not_modelled(self, deployment: Deployment) -> Mapping[str, str]:
        """Flags that are set and change no figure here."""
        named = left_out(deployment.flags, VLLM_COVERAGE, VLLM_FLAGS, "vLLM")
        if self.times_experts(deployment):
            named.pop(self.expert_flag, None)
        return quantising(deployment).left_out(deployment) | named

    def assumed(self, deployment: Deployment) -> tuple[str, ...]:
        """With what CUDA the engine was built, where states hang on it."""
        return tuple(filter(None, (state_export(deployment).note,)))

    def default_flags(self, deployment: Deployment) -> Mapping[str, FlagValue]:
        """Defaults of budgets and memory, and whether it schedules ahead: False where it refuses the combination."""
        return {**default_flags(deployment), "async_scheduling": choose_regime(deployment).regime.asynchronous}

    def flow(self, deployment: Deployment) -> Flow:
        """The regime, as a flow: in async-v1 all decode as one batch, otherwise in cohorts as first scheduled.

        Raises:
            SpecError: the engine refuses to start.
        """
        choice, flags = regime(deployment), effective_flags(deployment)
        seqs = int(flags["max_num_seqs"])
        return Flow(
            choice.regime.value,
            cohorts=1 if choice.regime is Regime.ASYNC_V1 else deployment.stages,
            step_tokens=int(flags["max_num_batched_tokens"]),
            max_requests=seqs,
            cohort_requests=seqs,
            reuses=bool(flags["enable_prefix_caching"]),
            notes=(*choice.notes, *filter(None, (cache_note(deployment),))),
            meaning=choice.regime.sentence,
        )

    def stored(self, deployment: Deployment) -> Architecture:
        """Weights as `quantization` has them, and KV of the type of the cache."""
        architecture, flags = quantising(deployment).stored(deployment), effective_flags(deployment)
        states = any(flags.get(name, "auto") != "auto" for name in STATE_FLAGS)
        if not states and not takes_another_type(deployment, flags):
            return architecture
        return with_cache_bytes(architecture, layer_cache_bytes(deployment, flags))

    def offloaded(self, deployment: Deployment) -> Offloaded | None:
        """Kernels read what `cpu_offload_gb` leaves in the host in place."""
        left = offloaded_bytes(effective_flags(deployment))
        return Offloaded(left, copied=False) if left else None

    def memory_settings(self, deployment: Deployment) -> MemorySettings:
        """What the profile run has in a batch, and the share of the GPU that the engine may use."""
        flags = effective_flags(deployment)
        return MemorySettings(
            max_num_batched_tokens=int(flags["max_num_batched_tokens"]),
            max_num_seqs=int(flags["max_num_seqs"]),
            gpu_memory_utilization=float(flags["gpu_memory_utilization"]),
            graph_sizes=len(capture_sizes(flags, deployment.gpu)),
            drafter=draft_method(flags) == "mtp",
            drafter_embedding=deployment.stages > 1 and draft_method(flags) in _DRAFTS_FROM_EMBEDDING,
            vision=builds_tower(deployment.architecture, flags),
            redundant_experts=redundant_experts(flags),
            offloaded_bytes=offloaded_bytes(flags),
            copies=replicated_embeddings(
                deployment.architecture, parse_version(deployment.version), v2=runs_v2(deployment)
            ),
        )

    def kv_cache(self, deployment: Deployment, partition: Sequence[int], free_bytes: Sequence[int]) -> KvCache:
        """Blocks and tokens of one partition, with `num_gpu_blocks_override` and `max_model_len: -1` heeded.

        Raises:
            InfeasibleSpace: a stage owns no layer with a cache.
            OutOfMemory: a stage cannot hold one request of max_model_len.
        """
        blocks = whole_number(deployment.flags, "num_gpu_blocks_override", 0) or None
        model = cache_model(deployment)
        if _fits_length(deployment) and blocks is None:
            model = fitted_length(model, partition, free_bytes)
        return kv_cache(model, partition, free_bytes, blocks_override=blocks)

    def kv_blocks(self, deployment: Deployment, free_bytes: Floats) -> Floats:
        """Blocks that a stage could hold alone, per (stage, first layer, end layer), for the exact solver."""
        return range_blocks(cache_model(deployment), free_bytes)

    def fewest_kv_blocks(self, deployment: Deployment) -> int:
        """Blocks of one request of max_model_len (of one token where the engine fits that), and the null block."""
        model = cache_model(deployment)
        return blocks_per_request(model, 1 if _fits_length(deployment) else model.max_model_len) + 1

    def run(self, simulation: Simulation) -> Run:
        """Run a load by leaps; step by step where what every stage did is to be recorded."""
        return simulate(
            simulation.requests,
            vllm_settings(simulation.deployment, simulation.kv_cache),
            simulation.costs,
            simulation.overheads or VLLM_OVERHEADS,
            simulation.concurrency,
            waits=True,
            record_timeline=simulation.record_timeline,
        )


def _fits_length(deployment: Deployment) -> bool:
    """True where the engine shortens max_model_len until one request fits."""
    return deployment.flags.get("max_model_len") == -1


ENGINE: Engine = Vllm()
