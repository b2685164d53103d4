"""How an engine runs a load: how batches flow through its stages, with which kernels, and in virtual time.

Decision: whoever simulates or plans asks these and knows no engine. A load that cannot be run fails in KV blocks, which
the caller turns into bytes of a stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from partitune.candidate import FlagValue
from partitune.costs.cost_model import StageCosts
from partitune.costs.measured.operations import MeasuredEngine
from partitune.engines.deployment import Deployment
from partitune.engines.memory import KvCache
from partitune.hardware.gpus import Gpu
from partitune.models.architecture import Architecture
from partitune.simulation.request import Request
from partitune.simulation.run import Overheads, Run
from partitune.simulation.trace_names import TraceNames


@dataclass(frozen=True, slots=True)
class Flow:
    """How the engine fills its pipeline: what the planner balances for, and what reports call it."""

    name: str  # `async-v1` to `sync-v2` of vLLM, `slots` of SGLang
    cohorts: int  # most groups of requests that decode apart from one another
    step_tokens: int  # most tokens of one step
    max_requests: int  # most requests that run at once
    cohort_requests: int  # most requests of one group
    reuses: bool = False  # what prompts have in common is computed once, as long as memory holds it
    notes: tuple[str, ...] = ()  # what the engine does silently, and what was assumed
    meaning: str = ""  # what the name means for a pipeline, in one sentence


@dataclass(frozen=True, slots=True)
class Simulation:
    """What is to be run in virtual time: the load of one data rank on one start."""

    requests: Sequence[Request]
    deployment: Deployment
    kv_cache: KvCache  # of that start, as `Memory.kv_cache` says
    costs: StageCosts  # of its partition
    concurrency: int | None = None  # most requests outstanding; None: each is sent at its arrival
    record_timeline: bool = False  # keep what every stage did, in `Run.timeline`
    overheads: Overheads | None = None  # None: the engine's own


class OtherStart(NamedTuple):
    """A start that people run, under which the same flags make another pipeline."""

    version: str
    runner: str
    text: str  # what a person calls it: `vLLM 0.33.0 (async-v2)`


class Scheduling(Protocol):
    """How one engine runs a load. What has a body here holds where an engine says nothing else."""

    measured: MeasuredEngine | None = None  # which measured kernels are its own; None: nothing was measured under it

    def flow(self, deployment: Deployment) -> Flow:
        """How batches flow. Raises SpecError where the engine refuses the combination."""

    #: How its own traces are spelled.
    trace_names: ClassVar[TraceNames] = TraceNames()

    #: The flag that chooses the kernel of routed experts; empty: none does.
    expert_flag: ClassVar[str] = ""

    def expert_kernels(self, architecture: Architecture, gpu: Gpu) -> Mapping[str, str | None]:
        """Values of `expert_flag` of which there are times -> the kernel (`costs.blocks`); None: the usual one."""
        return {"auto": None}

    def expert_kernel(self, architecture: Architecture, gpu: Gpu, flags: Mapping[str, FlagValue]) -> str | None:
        """The routed-expert kernel that a start is timed with: without times of the one it asks for, that of `auto`."""
        kernels = self.expert_kernels(architecture, gpu)
        return kernels.get(str(flags.get(self.expert_flag, "auto")), kernels["auto"])

    def times_experts(self, deployment: Deployment) -> bool:
        """Whether there are times of the kernel that the start asks for by `expert_flag`, or no experts to ask for."""
        if not deployment.architecture.has_experts:
            return True
        asked = str(deployment.flags.get(self.expert_flag, "auto"))
        return asked in self.expert_kernels(deployment.architecture, deployment.gpu)

    def levers(self, deployment: Deployment, requests: int, prompt_tokens: int) -> Mapping[str, Sequence[FlagValue]]:
        """The flags that change how a load is put into batches: name -> values to try in its place, best guess first.

        Args:
            deployment: the start as it is; its own values are left out.
            requests: that one data rank is sent at once.
            prompt_tokens: of one of them, on average.
        """
        return {}

    def other_starts(self, deployment: Deployment) -> Sequence[OtherStart]:
        """One start of each other way to pipeline that people run with such flags; empty where there is one way."""
        return ()

    def run(self, simulation: Simulation) -> Run:
        """Run what one data rank gets, in virtual time.

        Raises:
            SpecError: what every stage did cannot be recorded.
            Refused: a flag or a request whose effect is not simulated.
            OutOfMemory: a request does not fit; `excess` is in KV blocks.
        """


def near_powers(aim: int, low: int, high: int, own: int, most: int = 7) -> Sequence[int]:
    """`aim` and the powers of two around it within `low` and `high`, nearest first, without `own`."""
    powers = [1 << exponent for exponent in range(high.bit_length()) if low <= 1 << exponent <= high]
    around = sorted(powers, key=lambda power: abs(math.log(power / max(aim, 1))))[:most]
    return [value for value in dict.fromkeys((min(max(aim, low), high), *around)) if value != own]
