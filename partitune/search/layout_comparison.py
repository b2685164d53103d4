"""Every layout that model, engine and GPUs admit, each with its own best partition and flags, simulated side by side.

Decision: a pipeline is one way to use GPUs among others and often the wrong one, so the comparison names the best
layout without a pipeline beside the best with one, says what each is better at, and why the others are not there.
A layout is only as good as its own best flags: a budget of tokens that suits tensor ranks starves a pipeline. So each
is tried with the changes that an explanation tries, within the knobs of the file, as far as a budget of CPU seconds
goes; the best with a pipeline and the best without get more of it, and where even that was not enough for all of their
changes, nothing is concluded from them. Where the file leaves its own layout open, or has one that is illegal, the
others are compared all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partitune.analysis.advice import Rank, best_changed
from partitune.candidate import Candidate, Caveats, FlagValue, Result
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.hardware.parallelism import Layout
from partitune.planning.candidate_layouts import Considered, considered
from partitune.planning.caveats import caveats
from partitune.planning.problem import Problem
from partitune.planning.resolve import posed
from partitune.search.layout_verdict import best_of_both, ranking, verdicts
from partitune.spec.domains import Domain
from partitune.spec.search_space import SearchSpace

#: Layouts that are simulated when nobody lists them; a simulation takes from milliseconds to some seconds.
MOST_SIMULATED = 24
#: CPU seconds for the flags of each layout.
BUDGET_S = 0.5
#: The same for the best with a pipeline and the best without, on which the verdict rests.
BUDGET_OF_BEST_S = 20.0
_COMPARED = ("output_throughput_tok_s", "ttft_p50_ms", "tpot_p50_ms", "kv_tokens", "mean_in_flight_batches")


@dataclass(frozen=True, slots=True)
class SimulatedLayout:
    """One layout with its best partition and flags of those tried, and what the simulator says of it."""

    layout: Layout
    idle_gpus: int
    result: Result
    tried: int  # changes of flags and partition
    untried: int  # for want of budget

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """The metrics that layouts are compared by; None where it did not run, or has no such figure."""
        return {name: self.result.metric(name) for name in _COMPARED}

    @property
    def tok_s(self) -> float:
        """Output tokens a second; 0 where it did not run."""
        return self.result.metric("output_throughput_tok_s") or 0.0

    def to_json(self) -> dict[str, Any]:
        """The row in `layouts --json`."""
        measured = self.result.measurement
        return {
            "layout": self.layout.name,
            "partition": list(self.result.candidate.partition),
            "flags": dict(self.result.candidate.flags),
            "idle_gpus": self.idle_gpus,
            "outcome": self.result.outcome.value,
            "reason": self.result.reason,
            "metrics": dict(self.metrics),
            "constraints": {} if measured is None else dict(measured.constraints),
            "tried": self.tried,
            "not_tried": self.untried,
        }


@dataclass(frozen=True, slots=True)
class Compared:
    """All layouts of a search space."""

    space: str
    ranked_by: str  # in words
    rows: tuple[SimulatedLayout, ...]  # best first, those that failed last
    running: tuple[SimulatedLayout, ...]  # of the rows, those that ran
    left_out: tuple[Considered, ...]  # cannot be used, and why
    not_simulated: tuple[Considered, ...]  # usable, and thought slower than every row
    advice: tuple[str, ...]
    caveats: Caveats

    @property
    def tried_text(self) -> str:
        """How far the flags of each layout were looked for."""
        tried, untried = sum(row.tried for row in self.rows), sum(row.untried for row in self.rows)
        budget = f"{BUDGET_S:g} CPU s a layout, {BUDGET_OF_BEST_S:g} for the best with and the best without a pipeline"
        left = f"; {untried} not tried: the budget is {budget}" if untried else ""
        return f"each layout at its own best flags and partition of those tried ({tried} changes tried{left})"

    def to_json(self) -> dict[str, Any]:
        """The object of `layouts --json`. Keys may be added, never changed."""
        return {
            "space": self.space,
            "ranked_by": self.ranked_by,
            "layouts": [row.to_json() for row in self.rows],
            "left_out": [{"layout": other.layout.name, "reasons": list(other.reasons)} for other in self.left_out],
            "not_simulated": [other.layout.name for other in self.not_simulated],
            "advice": list(self.advice),
            **self.caveats.to_json(),
        }


def compare_layouts(
    spec: SearchSpace, settings: Mapping[str, FlagValue], said: Callable[[str], None] = lambda _: None
) -> Compared:
    """Simulate the layouts of `spec`: those it lists, else all it admits.

    Args:
        spec: what is served where; its own layout need not be legal.
        settings: flags that every layout has, over those of `spec`.
        said: is given what a person should know before the first simulation.

    Raises:
        SpecError: the search space.
    """
    problem = posed(spec.with_open_layout())
    fixed = Candidate.of_settings((), settings).flags
    every = considered(problem, spec, fixed)
    usable = [layout for layout in every if not layout.reasons]
    best_flat = next((layout for layout in usable if layout.layout.pp == 1), None)
    simulated = [layout for index, layout in enumerate(usable) if index < MOST_SIMULATED or layout is best_flat]
    for line in SimulatorDriver(problem.on(usable[0].layout.name)).prepare() if usable else ():
        said(line)
    rank, ranked_by = ranking(problem)
    within: dict[str, Domain] = {**spec.knobs.flags, **spec.knobs.env, **dict.fromkeys(fixed, ())}
    rows = [_at_its_best(problem, entry, fixed, within, rank, BUDGET_S) for entry in simulated]
    rows.sort(key=lambda row: rank(row.result))
    for row in [rows[index] for index in best_of_both([row.layout for row in _ran(rows)]) if index is not None]:
        if row.untried:
            entry = next(entry for entry in simulated if entry.layout == row.layout)
            rows[rows.index(row)] = _at_its_best(problem, entry, fixed, within, rank, BUDGET_OF_BEST_S)
    rows.sort(key=lambda row: rank(row.result))
    running = _ran(rows)
    both = [running[index] for index in best_of_both([row.layout for row in running]) if index is not None]
    untried = [f"{row.untried} changes of {row.layout.name} were not tried" for row in both if row.untried]
    return Compared(
        space=spec.name,
        ranked_by=ranked_by,
        rows=tuple(rows),
        running=tuple(running),
        left_out=tuple(layout for layout in every if layout.reasons),
        not_simulated=tuple(layout for layout in usable if layout not in simulated),
        advice=tuple(verdicts(problem, [(row.layout, row.result) for row in running], " and ".join(untried))),
        caveats=caveats(problem.on(running[0].layout.name) if running else problem, fixed),
    )


def _at_its_best(
    problem: Problem,
    entry: Considered,
    fixed: Mapping[str, FlagValue],
    within: Mapping[str, Domain],
    rank: Rank,
    budget_s: float,
) -> SimulatedLayout:
    result, tried, untried = best_changed(problem, entry.candidate(fixed), budget_s, within, rank)
    return SimulatedLayout(entry.layout, entry.idle_gpus, result, tried, untried)


def _ran(rows: Sequence[SimulatedLayout]) -> list[SimulatedLayout]:
    """Those of which there are figures; of rows in order they are the first."""
    return [row for row in rows if row.result.measurement is not None]
