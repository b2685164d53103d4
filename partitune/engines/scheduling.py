"""How an engine runs a load: how batches flow through its stages, with which kernels, and in virtual time.

Decision: whoever simulates or plans asks these and knows no engine. A load that cannot be run fails in KV blocks, which
the caller turns into bytes of a stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from partitune.engines.deployment import Deployment
from partitune.hardware.gpus import Gpu
from partitune.models.architecture import Architecture


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


class Scheduling(Protocol):
    """How one engine runs a load."""

    def flow(self, deployment: Deployment) -> Flow:
        """How batches flow. Raises SpecError where the engine refuses the combination."""
        ...

    def is_asynchronous(self, deployment: Deployment) -> bool:
        """True when the engine schedules ahead of sampled tokens in this start."""
        ...

    def expert_kernel(self, architecture: Architecture, gpu: Gpu) -> str | None:
        """The routed-expert kernel it picks where that is not the usual one (`costs.blocks`); None: the usual one."""
        ...
