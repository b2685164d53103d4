"""What an engine answers: the one place that knows its spelling, its defaults and what it refuses.

Decision: everything is asked with one value, the Deployment (which model, how many stages, which knobs, which engine
version). Simulator, drivers, planner and export ask the same object, so a default or a rule exists once. Rules are
reported all together, each with its source, because a person who fixes one at a time launches once per rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from partitune.candidate import Knob
from partitune.costs.memory import MemorySettings
from partitune.engines.kv_plan import KvPlan
from partitune.errors import SpecError
from partitune.hardware.gpus import Gpu
from partitune.hardware.parallelism import Layout, RankOrder
from partitune.models.architecture import Architecture

Floats = NDArray[np.float64]


class Usage(StrEnum):
    """How the engine is started: its defaults differ."""

    SERVER = "server"  # the OpenAI-compatible server
    OFFLINE = "offline"  # the LLM class in a script


@dataclass(frozen=True, slots=True)
class Deployment:
    """One engine start, before the partition is chosen or with it."""

    version: str
    architecture: Architecture
    layout: Layout
    gpu: Gpu  # of the first stage: engines take their defaults from the GPU they start on
    knobs: Mapping[str, Knob] = field(
        default_factory=dict
    )  # flags by snake-case name; UPPER-CASE names are environment
    partition: tuple[int, ...] | None = None  # None: the engine's default split
    runner: str = "auto"  # vLLM's model runner: auto, v1, v2
    usage: Usage = Usage.SERVER
    nodes: int = 1  # that its ranks stand on

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.layout.pp

    @property
    def tp(self) -> int:
        """Tensor ranks of a stage."""
        return self.layout.tp


#: Rules about one flag by itself: a person's typing error, not a combination that a search may run into.
FLAG_RULES = frozenset({"unknown-flag", "removed-flag", "flag-value"})

#: Rules about model and sizes alone: where one is broken no candidate can ever run.
SIZE_RULES = frozenset(
    {
        "all2all-backend",
        "dcp",
        "expert-cut",
        "expert-width",
        "experts-missing",
        "fewer-layers-than-stages",
        "heads-over-tp",
        "kv-heads-over-tp",
        "no-pipeline-support",
        "nodes",
        "pcp",
        "stages-over-nodes",
    }
)


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that a deployment breaks."""

    rule: str  # short name
    message: str  # what was found and what is allowed
    source: str  # engine file and version, or report


@dataclass(frozen=True, slots=True)
class Flow:
    """How the engine fills its pipeline: what the planner balances for, and what reports call it."""

    name: str  # `R1` to `R4` of vLLM, `slots` of SGLang
    cohorts: int  # most groups of requests that decode apart from one another
    step_tokens: int  # most tokens of one step
    max_requests: int  # most requests that run at once
    cohort_requests: int  # most requests of one group
    notes: tuple[str, ...] = ()  # what the engine does silently, and what was assumed
    #: What brings the kernels (`roofline`), the pipeline (`fill`) and the CPU (`host`) nearer to their limit.
    levers: Mapping[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """One serving engine."""

    @property
    def name(self) -> str:
        """As the YAML spells it."""
        ...

    @property
    def partition_env(self) -> str:
        """Environment variable that carries the partition."""
        ...

    @property
    def written_by_partitune(self) -> Mapping[str, str]:
        """Flags and variables that partitune writes itself: name -> the key of a search space that they follow from."""
        ...

    @property
    def model_key(self) -> str:
        """Key of the model in the engine's own config file."""
        ...

    def notes(self, version: str) -> tuple[str, ...]:
        """What is assumed about this version; empty when its rules were read. Raises SpecError on a malformed one."""
        ...

    def default_partition(self, layers: int, stages: int, version: str, rule: str | None = None) -> tuple[int, ...]:
        """The engine's own split, or that of a named rule.

        Raises:
            SpecError: fewer layers than stages, or an unknown rule.
        """
        ...

    def resolved_layout(self, layout: Layout, architecture: Architecture) -> Layout:
        """`layout` with what the engine derives from it: how tokens reach their experts, and in what portions."""
        ...

    def rank_order(self, architecture: Architecture) -> RankOrder:
        """How it numbers the ranks of this model's replicas."""
        ...

    def flow(self, deployment: Deployment) -> Flow:
        """How batches flow. Raises SpecError where the engine refuses the combination."""
        ...

    def memory_settings(self, deployment: Deployment) -> MemorySettings:
        """What decides the memory of a stage, from the engine's own flags."""
        ...

    def expert_kernel(self, architecture: Architecture, gpu: Gpu) -> str | None:
        """The routed-expert kernel it picks where that is not the usual one (`costs.blocks`); None: the usual one."""
        ...

    def is_asynchronous(self, deployment: Deployment) -> bool:
        """True when the engine schedules ahead of sampled tokens in this start."""
        ...

    def default_knobs(self, deployment: Deployment) -> Mapping[str, Knob]:
        """Value that the engine gives each scheduling and memory flag that `deployment` does not set."""
        ...

    def effective_knobs(self, deployment: Deployment) -> Mapping[str, Knob]:
        """The defaults overlaid with the deployment's own flags."""
        ...

    def check(self, deployment: Deployment) -> tuple[Violation, ...]:
        """Every rule that the deployment breaks. Without a partition the engine's default split is not judged."""
        ...

    def serve_arguments(self, model: str, deployment: Deployment) -> tuple[str, ...]:
        """Command-line words that start the server, program name first."""
        ...

    def config_yaml(self, deployment: Deployment) -> Mapping[str, Knob]:
        """The flags as the engine's own config file takes them."""
        ...

    def config_commands(self, config: str, deployment: Deployment, nodes: int) -> tuple[str, ...]:
        """Shell commands that start the server from such a file: one a node, or one in all."""
        ...

    def read_config(self, entries: Mapping[str, object]) -> Mapping[str, Knob]:
        """The flags the engine takes from such a file, dropping what it drops: for the check after an export."""
        ...

    def environment(self, deployment: Deployment) -> Mapping[str, str]:
        """Environment variables of the server."""
        ...

    def plan_kv(self, deployment: Deployment, partition: Sequence[int], free_bytes: Sequence[int]) -> KvPlan:
        """What the engine allocates when stage s has `free_bytes[s]` left on each of its GPUs.

        Raises:
            InfeasibleSpace: a stage cannot have a cache.
            OutOfMemory: a stage cannot hold the longest request.
        """
        ...

    def kv_blocks(self, deployment: Deployment, free_bytes: Floats) -> Floats:
        """Blocks per (stage, first layer, end layer), for the exact solver; shapes as in `partition.solver`."""
        ...

    def fewest_kv_blocks(self, deployment: Deployment) -> int:
        """Blocks without which the engine refuses to start: the longest request has to fit."""
        ...


def refuse(violations: Sequence[Violation], source: str) -> None:
    """Raise one SpecError that names every violation.

    Raises:
        SpecError: `violations` is not empty.
    """
    if violations:
        lines = "".join(f"\n  - {one.message} [{one.source}]" for one in violations)
        raise SpecError(f"{source}: the engine would refuse this deployment:{lines}")


def flag_knobs(knobs: Mapping[str, Knob]) -> dict[str, Knob]:
    """The knobs that are command-line flags."""
    return {name: value for name, value in knobs.items() if not name.isupper()}


def environment_knobs(knobs: Mapping[str, Knob]) -> dict[str, str]:
    """The knobs that are environment variables (names in upper case) as text; true is 1, false is 0."""
    return {
        name: str(int(value)) if isinstance(value, bool) else str(value)
        for name, value in knobs.items()
        if name.isupper()
    }
