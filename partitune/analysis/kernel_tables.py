"""How much of the difference between two engines is kernel tables, and how much is everything else.

Decision: kernels of the engines were measured by others, under other releases and in other ways, so a simulated
difference between two engines may be a difference between two tables. The same schedule is therefore run once more with
the other engine's tables: what that changes is kernels, and only the rest can be the engines' scheduling, flags and
memory. Nothing is said where the other engine was not measured on these GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from partitune.analysis.figures import figure, percent
from partitune.candidate import Result
from partitune.costs.measured.operations import kernels_on
from partitune.engines.engine import Engine
from partitune.engines.registry import ENGINES
from partitune.execution.driver import run
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.planning.problem import Problem

#: Figures that kernels decide, in reading order.
_COMPARED = ("output_throughput_tok_s", "ttft_p50_ms", "tpot_p50_ms")


@dataclass(frozen=True, slots=True)
class OtherTables:
    """One candidate's schedule with the kernel times of another engine."""

    engine: str  # as people write it
    tables: str  # system, engine and release that were measured
    before: Result  # with its own engine's tables
    after: Result

    def to_json(self) -> dict[str, Any]:
        """The entry under `other_kernel_tables` of `explain --json`."""
        metrics = {name: self.after.metric(name) for name in _COMPARED}
        return {"engine": self.engine, "tables": self.tables, "metrics": metrics}

    @property
    def text(self) -> str:
        """One sentence."""
        shown = []
        for name in _COMPARED:
            before, after = self.before.metric(name), self.after.metric(name)
            if before and after is not None:
                shown.append(f"{name} {figure(after, name)} ({percent(after / before - 1, '+.1f')})")
        return (
            f"with {self.engine}'s kernel tables ({self.tables}) the same schedule gives {', '.join(shown)}: so much "
            f"of a difference from {self.engine} is kernels, the rest is scheduling, flags and memory"
        )


def under_other_tables(problem: Problem, result: Result) -> Iterator[OtherTables]:
    """Simulate a candidate that ran with the kernel tables of every other engine measured on these GPUs.

    Args:
        problem: on the candidate's own layout.
        result: how it ended with its own engine's tables.
    """
    for other in ENGINES.values():
        if other.name == problem.engine.name or result.measurement is None:
            continue
        if tables := _tables(problem, other):
            after = run(SimulatorDriver(problem.with_kernels_of(other)), result.candidate)
            yield OtherTables(other.versions_read.engine, tables, result, after)


def _tables(problem: Problem, other: Engine) -> str:
    """What was measured of `other` on the GPUs of `problem`; empty where a GPU has nothing."""
    if other.measured is None:
        return ""
    kernels = {gpu.name: kernels_on(gpu, other.measured) for gpu in problem.placement.gpus}
    return ", ".join(own.name for own in kernels.values() if own) if all(kernels.values()) else ""
