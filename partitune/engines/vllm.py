"""vLLM as the rest of partitune sees it: a thin face on the tables and rules beside it.

Decision: this module holds no knowledge of its own but which rule applies from which release on; flags, defaults,
refusals, regimes and KV planning each have a module that says where they were read.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from partitune.cluster.hardware import Gpu
from partitune.costs.memory import MemorySettings
from partitune.engines.default_splits import all_on_last, chosen_split, middle_stages
from partitune.engines.flags import arguments, config_entries, read_config
from partitune.engines.interface import (
    Deployment,
    Floats,
    Flow,
    Violation,
    environment_knobs,
    flag_knobs,
)
from partitune.engines.kv_pages import layer_caches
from partitune.engines.kv_planning import CacheModel, KvPlan, blocks_per_request, plan_kv, window_blocks
from partitune.engines.regimes import Regime
from partitune.engines.versions import Version, VersionRange, parse_version
from partitune.engines.vllm_defaults import default_knobs
from partitune.engines.vllm_flags import VLLM_FLAGS
from partitune.engines.vllm_rules import check_vllm
from partitune.engines.vllm_runner import RUNNERS, choose_regime
from partitune.errors import SpecError
from partitune.model.architecture import STATE_KINDS, Architecture
from partitune.result import Knob

_READ = VersionRange("vLLM", oldest=Version(0, 19), newest=Version(0, 33))
_MIDDLE_SINCE = Version(0, 8)  # PR 13839 was merged six days after 0.7.3


@dataclass(frozen=True, slots=True)
class RegimeChoice:
    """Which way a start of vLLM keeps its pipeline busy."""

    regime: Regime
    slots: int  # batches that may be in flight
    notes: tuple[str, ...] = ()  # what the engine does silently, and what was assumed


class Vllm:
    """The engine vLLM."""

    name = "vllm"
    partition_env = "VLLM_PP_LAYER_PARTITION"
    said_elsewhere: ClassVar[Mapping[str, str]] = {
        partition_env: "seeds, knobs.partition or --partition",
        "VLLM_USE_V2_MODEL_RUNNER": "engine.runner",
        "model": "model",
        "pipeline_parallel_size": "parallel.pp",
        "tensor_parallel_size": "parallel.tp",
    }
    model_key = "model"

    def notes(self, version: str) -> tuple[str, ...]:
        """What is assumed about this version."""
        return _READ.notes(parse_version(version))

    def default_partition(self, layers: int, stages: int, version: str, rule: str | None = None) -> tuple[int, ...]:
        """`get_pp_indices` of the release, or a named rule (`remainder-last` is the open PR 46217)."""
        own = middle_stages if parse_version(version) >= _MIDDLE_SINCE else all_on_last
        return chosen_split(layers, stages, own, rule)

    def regime(self, deployment: Deployment) -> RegimeChoice:
        """One of R1-R4. Raises SpecError where the engine refuses to start."""
        if deployment.runner not in RUNNERS:
            raise SpecError(f"engine.runner: {deployment.runner!r} is not one of {', '.join(RUNNERS)}")
        version = parse_version(deployment.version)
        flag = deployment.knobs.get("async_scheduling")
        choice = choose_regime(
            version,
            deployment.architecture,
            deployment.stages,
            deployment.runner,
            flag if isinstance(flag, bool) else None,
        )
        if choice.refusal:
            raise SpecError(choice.refusal)
        slots = choice.regime.queue_slots(deployment.stages)
        return RegimeChoice(choice.regime, slots, _READ.notes(version) + choice.notes)

    def flow(self, deployment: Deployment) -> Flow:
        """In R1 everything merges into one batch; otherwise a request stays with those it was first scheduled with."""
        choice, knobs = self.regime(deployment), self.effective_knobs(deployment)
        seqs = int(knobs["max_num_seqs"])
        return Flow(
            choice.regime.value,
            cohorts=1 if choice.regime is Regime.R1 else deployment.stages,
            step_tokens=int(knobs["max_num_batched_tokens"]),
            max_requests=seqs,
            cohort_requests=seqs,
            notes=choice.notes,
        )

    def memory_settings(self, deployment: Deployment) -> MemorySettings:
        """The profile run of `max_num_batched_tokens` and `max_num_seqs`, within `gpu_memory_utilization`."""
        knobs = self.effective_knobs(deployment)
        return MemorySettings(
            max_num_batched_tokens=int(knobs["max_num_batched_tokens"]),
            max_num_seqs=int(knobs["max_num_seqs"]),
            gpu_memory_utilization=float(knobs["gpu_memory_utilization"]),
            cuda_graphs=not knobs.get("enforce_eager", False),
        )

    def expert_kernel(self, architecture: Architecture, gpu: Gpu) -> str | None:  # noqa: ARG002  (the protocol's)
        """Always the usual one."""
        return None

    def is_asynchronous(self, deployment: Deployment) -> bool:
        """What the regime says; False where the engine refuses the combination."""
        try:
            return self.regime(deployment).regime.asynchronous
        except SpecError:
            return False

    def default_knobs(self, deployment: Deployment) -> Mapping[str, Knob]:
        """The engine's values for scheduling and memory flags; `async_scheduling` is left to the regime."""
        architecture = deployment.architecture
        stateful = any(layer.attention.kind in STATE_KINDS for layer in architecture.layers)
        return default_knobs(
            deployment.gpu, deployment.usage, architecture.max_position, flag_knobs(deployment.knobs), stateful
        )

    def effective_knobs(self, deployment: Deployment) -> Mapping[str, Knob]:
        """Defaults overlaid with the deployment's flags."""
        return {**self.default_knobs(deployment), **flag_knobs(deployment.knobs)}

    def check(self, deployment: Deployment) -> tuple[Violation, ...]:
        """Every rule that the deployment breaks."""
        return check_vllm(deployment, self.effective_knobs(deployment))

    def serve_arguments(self, model: str, deployment: Deployment) -> tuple[str, ...]:
        """`vllm serve MODEL …` with the parallel sizes and the deployment's own flags."""
        return ("vllm", "serve", model, *arguments(_all_flags(deployment), VLLM_FLAGS))

    def config_yaml(self, deployment: Deployment) -> Mapping[str, Knob]:
        """For `vllm serve --config`: long flag names, `no-…: true` for switches that are off."""
        return config_entries(_all_flags(deployment), VLLM_FLAGS)

    def config_commands(self, config: str, deployment: Deployment, nodes: int) -> tuple[str, ...]:
        """One command a node, the others than the first without a server; Ray places its workers from one command.

        vLLM 0.32 `docs/serving/parallelism_scaling.md`, `entrypoints/cli/serve.py`.
        """
        start = f"vllm serve --config {shlex.quote(config)}"
        if nodes == 1 or deployment.knobs.get("distributed_executor_backend") == "ray":
            return (start,)
        group = f"{start} --nnodes {nodes} --master-addr ADDRESS_OF_NODE_0 --node-rank"
        return (f"{group} 0", *(f"{group} {rank} --headless" for rank in range(1, nodes)))

    def read_config(self, entries: Mapping[str, object]) -> Mapping[str, Knob]:
        """What `vllm serve --config` makes of such a file."""
        return read_config(entries, VLLM_FLAGS)

    def environment(self, deployment: Deployment) -> Mapping[str, str]:
        """Partition (only when one was chosen: an empty value is an error), runner, and environment knobs."""
        variables = environment_knobs(deployment.knobs)
        if deployment.runner != "auto":
            variables["VLLM_USE_V2_MODEL_RUNNER"] = "1" if deployment.runner == "v2" else "0"
        if deployment.partition is not None:
            variables[self.partition_env] = ",".join(map(str, deployment.partition))
        return variables

    def plan_kv(self, deployment: Deployment, partition: Sequence[int], free_bytes: Sequence[int]) -> KvPlan:
        """Blocks, tokens and the limiting stage of one partition."""
        override = deployment.knobs.get("num_gpu_blocks_override")
        blocks = override if isinstance(override, int) and not isinstance(override, bool) else None
        return plan_kv(self.cache_model(deployment), partition, free_bytes, blocks_override=blocks)

    def kv_blocks(self, deployment: Deployment, free_bytes: Floats) -> Floats:
        """Blocks per (stage, first layer, end layer)."""
        return window_blocks(self.cache_model(deployment), free_bytes)

    def fewest_kv_blocks(self, deployment: Deployment) -> int:
        """Blocks of one request of max_model_len, and the null block."""
        model = self.cache_model(deployment)
        return blocks_per_request(model, model.max_model_len) + 1

    def cache_model(self, deployment: Deployment) -> CacheModel:
        """What the KV planner is given: pages per layer and what requests may keep in flight."""
        knobs = self.effective_knobs(deployment)
        block, longest = knobs.get("block_size"), knobs["max_model_len"]
        if not isinstance(longest, int) or longest < 1:
            longest = deployment.architecture.max_position
        return CacheModel(
            layer_caches(
                deployment.architecture,
                deployment.tp,
                kv_cache_dtype=str(knobs["kv_cache_dtype"]),
                block_size=block if isinstance(block, int) else None,
            ),
            max_model_len=longest,
            max_in_flight_tokens=self.regime(deployment).slots * int(knobs["max_num_batched_tokens"]),
            state_blocks=2 if knobs["mamba_cache_mode"] == "align" else 1,
        )


def _all_flags(deployment: Deployment) -> dict[str, Knob]:
    sizes: dict[str, Knob] = {
        "pipeline_parallel_size": deployment.stages,
        "tensor_parallel_size": deployment.tp,
    }
    return {**sizes, **flag_knobs(deployment.knobs)}
