"""Every layout that model, engine and GPUs admit, each with its best partition, simulated side by side.

Decision: a pipeline is one way to use GPUs among others and often the wrong one, so the comparison names the best
layout without a pipeline beside the best with one, says what each is better at, and why the others are not there.
Layouts are compared at the flags of the file, each with the partition that keeps its own slowest stage the least busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partitune.analysis.figures import percent
from partitune.candidate import Candidate, Caveats, FlagValue, Result
from partitune.execution.driver import run
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.hardware.parallelism import Layout
from partitune.planning.candidate_layouts import Considered, considered
from partitune.planning.caveats import caveats
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.search.space import Space
from partitune.spec.search_space import SearchSpace

#: Layouts that are simulated when nobody lists them; a simulation takes from milliseconds to some seconds.
MOST_SIMULATED = 24
_COMPARED = ("output_throughput_tok_s", "ttft_p50_ms", "tpot_p50_ms", "kv_tokens", "mean_in_flight_batches")
#: Differences below this are not worth a sentence: runs of equal configurations differ by as much.
_INDIFFERENT = 0.03


@dataclass(frozen=True, slots=True)
class SimulatedLayout:
    """One layout with its best partition, and what the simulator says of it."""

    layout: Layout
    idle_gpus: int
    result: Result

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """The metrics that layouts are compared by; None where it did not run, or has no such figure."""
        return {name: self.result.metric(name) for name in _COMPARED}

    @property
    def tok_s(self) -> float:
        """Output tokens a second; 0 where it did not run."""
        return self.result.metric("output_throughput_tok_s") or 0.0

    @property
    def token_ms(self) -> float | None:
        """Milliseconds from one output token to the next; None where no request has two."""
        return self.result.metric("tpot_p50_ms")


@dataclass(frozen=True, slots=True)
class Compared:
    """All layouts of a search space."""

    space: str
    rows: tuple[SimulatedLayout, ...]  # fastest first, those that failed last
    running: tuple[SimulatedLayout, ...]  # of the rows, those that ran
    left_out: tuple[Considered, ...]  # cannot be used, and why
    not_simulated: tuple[Considered, ...]  # usable, and thought slower than every row
    advice: tuple[str, ...]
    caveats: Caveats

    def to_json(self) -> dict[str, Any]:
        """The object of `layouts --json`. Keys may be added, never changed."""
        return {
            "space": self.space,
            "layouts": [
                {
                    "layout": row.layout.name,
                    "partition": list(row.result.candidate.partition),
                    "idle_gpus": row.idle_gpus,
                    "outcome": row.result.outcome.value,
                    "reason": row.result.reason,
                    "metrics": dict(row.metrics),
                }
                for row in self.rows
            ],
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
        spec: what is served where.
        settings: flags over those of `spec`.
        said: is given what a person should know before the first simulation.

    Raises:
        SpecError: the search space.
    """
    problem = resolve(spec)
    start = {**Space(problem, spec).starting_flags, **Candidate.of_settings((), settings).flags}
    every = considered(problem, spec, start)
    usable = [layout for layout in every if not layout.reasons]
    best_flat = next((layout for layout in usable if layout.layout.pp == 1), None)
    simulated = [layout for index, layout in enumerate(usable) if index < MOST_SIMULATED or layout is best_flat]
    driver = SimulatorDriver(problem)
    for line in driver.prepare():
        said(line)
    rows = [SimulatedLayout(entry.layout, entry.idle_gpus, run(driver, entry.candidate(start))) for entry in simulated]
    rows.sort(key=lambda row: -row.tok_s)
    running = tuple(row for row in rows if row.result.measurement is not None)
    return Compared(
        space=spec.name,
        rows=tuple(rows),
        running=running,
        left_out=tuple(layout for layout in every if layout.reasons),
        not_simulated=tuple(layout for layout in usable if layout not in simulated),
        advice=tuple(_advice(problem, running)),
        caveats=caveats(problem, start),
    )


def _advice(problem: Problem, running: Sequence[SimulatedLayout]) -> Iterator[str]:
    if not running:
        yield "no layout can be used: more or larger GPUs, or a smaller model, are needed"
        return
    piped = next((row for row in running if row.layout.pp > 1), None)
    flat = next((row for row in running if row.layout.pp == 1), None)
    if flat is None or piped is None:
        yield f"no layout {'with' if piped is None else 'without'} a pipeline can be used here: see the reasons below"
    else:
        yield _versus(piped, flat)
        quickest = min(running, key=lambda row: row.token_ms or row.result.metric("ttft_p50_ms") or 0.0)
        if quickest not in (piped, flat) and quickest.token_ms is not None:
            yield f"least time per token: {quickest.layout.name}, {quickest.token_ms:.3g} ms"
    best = running[0]
    loads = [load.of_rank(best.layout.dp) for load in problem.mix.loads]
    outstanding = min((load.concurrency for load in loads if load.concurrency is not None), default=best.layout.pp)
    if outstanding < best.layout.pp:
        yield f"{outstanding} requests at once are fewer than {best.layout.pp} stages: some always wait"
    if note := problem.cluster.idle_note(best.layout):
        yield note


def _versus(piped: SimulatedLayout, flat: SimulatedLayout) -> str:
    """The best layout with a pipeline against the best without."""
    gain = piped.tok_s / flat.tok_s - 1
    times = ""
    if piped.token_ms is not None and flat.token_ms is not None:
        times = f" (time per token {piped.token_ms:.3g} ms with the pipeline, {flat.token_ms:.3g} ms without)"
    with_pipeline, without = piped.layout.name, flat.layout.name
    if gain > _INDIFFERENT:
        more = percent(gain, ".0f")
        return f"a pipeline pays for throughput: {with_pipeline} gives {more} more tokens/s than {without}{times}"
    if gain < -_INDIFFERENT:
        more = percent(1 / (1 + gain) - 1, ".0f")
        verdict = f"without one, {without} gives {more} more tokens/s than {with_pipeline}{times}"
        return f"a pipeline is the wrong tool for this load: {verdict}"
    within = f"{with_pipeline} and {without} are within {percent(_INDIFFERENT, '.0f')}{times}; take the one without"
    return f"a pipeline makes no difference to throughput: {within}"
