"""Which simulated scheduler runs a problem's load: one small class per engine, all asked alike.

Decision: the driver knows no engine. What differs (settings, the small times around the GPU work, what can be recorded)
stands here, and a failure is always counted in KV blocks, so that the driver can turn it into bytes of a stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from partitune.costs.cost_model import StageCosts
from partitune.engines.deployment import Deployment
from partitune.engines.engine import Engine
from partitune.engines.memory import KvPlan
from partitune.engines.sglang.engine import Sglang
from partitune.engines.sglang.scheduler.engine_core import simulate_sglang
from partitune.engines.sglang.scheduler.settings import SGLANG_OVERHEADS, sglang_settings
from partitune.engines.vllm.engine import Vllm
from partitune.engines.vllm.scheduler.engine_core import simulate
from partitune.engines.vllm.scheduler.inputs import DEFAULT_OVERHEADS
from partitune.engines.vllm.scheduler.settings import vllm_settings
from partitune.errors import OutOfMemory, Refused, SpecError
from partitune.planning.workload_mix import Load
from partitune.simulation.overheads import Overheads
from partitune.simulation.run import Run


class Scheduling(Protocol):
    """One engine's scheduler, ready to run a load."""

    def run(
        self,
        load: Load,
        deployment: Deployment,
        plan: KvPlan,
        costs: StageCosts,
        *,
        record_timeline: bool,
        overheads: Overheads | None = None,
    ) -> Run:
        """Run what one data rank gets; `overheads` in place of the engine's own.

        Raises:
            SpecError: what every stage did cannot be recorded.
            Refused: a flag or a request whose effect is not simulated.
            OutOfMemory: a request does not fit; `excess` is in KV blocks.
        """
        ...


@dataclass(frozen=True, slots=True)
class VllmScheduling:
    """vLLM's engine core."""

    engine: Vllm

    def run(
        self,
        load: Load,
        deployment: Deployment,
        plan: KvPlan,
        costs: StageCosts,
        *,
        record_timeline: bool,
        overheads: Overheads | None = None,
    ) -> Run:
        """Fast; step by step when what every stage did is to be recorded."""
        settings = vllm_settings(self.engine, deployment, plan)
        return simulate(
            load.requests,
            settings,
            costs,
            overheads or DEFAULT_OVERHEADS,
            load.concurrency,
            record_timeline=record_timeline,
        )


@dataclass(frozen=True, slots=True)
class SglangScheduling:
    """SGLang's slots."""

    engine: Sglang

    def run(
        self,
        load: Load,
        deployment: Deployment,
        plan: KvPlan,
        costs: StageCosts,
        *,
        record_timeline: bool,
        overheads: Overheads | None = None,
    ) -> Run:
        """Slot after slot."""
        if record_timeline:
            raise SpecError("--trace: only vLLM's pipeline can be drawn, not SGLang's; leave --trace out")
        try:
            settings = sglang_settings(self.engine, deployment, plan, costs)
            return simulate_sglang(
                load.requests,
                settings,
                costs,
                overheads or SGLANG_OVERHEADS,
                load.concurrency,
            )
        except OutOfMemory as error:
            raise OutOfMemory(str(error), excess=(error.excess or 1.0) / plan.block_size) from error
        except SpecError as error:
            raise Refused(f"SGLang: {error}", excess=1.0) from error


def scheduling_of(engine: Engine) -> Scheduling:
    """The scheduler of that engine.

    Raises:
        SpecError: it has none.
    """
    match engine:
        case Vllm():
            return VllmScheduling(engine)
        case Sglang():
            return SglangScheduling(engine)
        case _:
            raise SpecError(f"engine.name: {engine.name} cannot be simulated; allowed: vllm, sglang")
