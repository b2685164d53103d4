"""Every layout that model, engine and GPUs admit, each with its best partition, simulated side by side.

Decision: a pipeline is one way to use GPUs among others and often the wrong one, so the comparison names the best
layout without a pipeline beside the best with one, says what each is better at, and why the others are not there.
Layouts are compared at the flags of the file, each with the partition that keeps its own slowest stage the least busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from partitune.candidate import Candidate, FlagValue, Result
from partitune.execution.driver import run
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.hardware.parallelism import Layout
from partitune.planning.candidate_layouts import Considered, considered
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
class Row:
    """One simulated layout."""

    layout: Layout
    idle_gpus: int
    result: Result

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """The metrics that layouts are compared by; None where it did not run, or has no such figure."""
        return {name: self.result.metric(name) for name in _COMPARED}

    def metric(self, name: str) -> float:
        """A metric of a row that ran."""
        value = self.result.metric(name)
        assert value is not None  # noqa: S101 - asked of rows that ran only
        return value


@dataclass(frozen=True, slots=True)
class Compared:
    """All layouts of a search space."""

    space: str
    rows: tuple[Row, ...]  # fastest first, those that failed last
    left_out: tuple[Considered, ...]  # cannot be used, and why
    not_simulated: tuple[Considered, ...]  # usable, and thought slower than every row
    advice: tuple[str, ...]

    @property
    def running(self) -> tuple[Row, ...]:
        """The rows that ran."""
        return tuple(row for row in self.rows if row.result.measurement is not None)

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
        }


def compare_layouts(spec: SearchSpace, settings: Mapping[str, FlagValue]) -> Compared:
    """Simulate the layouts of `spec`: those it lists, else all it admits.

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
    rows = [Row(layout.layout, layout.idle_gpus, run(driver, layout.candidate(start))) for layout in simulated]
    rows.sort(key=lambda row: -(row.result.metric("output_throughput_tok_s") or 0.0))
    compared = Compared(
        space=spec.name,
        rows=tuple(rows),
        left_out=tuple(layout for layout in every if layout.reasons),
        not_simulated=tuple(layout for layout in usable if layout not in simulated),
        advice=(),
    )
    return replace(compared, advice=tuple(_advice(problem, compared.running)))


def _advice(problem: Problem, running: Sequence[Row]) -> Iterator[str]:
    piped = [row for row in running if row.layout.pp > 1]
    flat = [row for row in running if row.layout.pp == 1]
    if not running:
        yield "no layout can be used: more or larger GPUs, or a smaller model, are needed"
        return
    if not flat:
        yield "no layout without a pipeline can be used here: see the reasons below"
    elif not piped:
        yield "no layout with a pipeline can be used here: see the reasons below"
    else:
        yield from _versus(piped[0], flat[0])
        quickest = min(running, key=lambda row: row.result.metric("tpot_p50_ms") or row.metric("ttft_p50_ms"))
        if quickest not in (piped[0], flat[0]):
            yield f"least time per token: {quickest.layout.name}, {quickest.metric('tpot_p50_ms'):.3g} ms"
    best = running[0]
    loads = [load.of_rank(best.layout.dp) for load in problem.mix.loads]
    outstanding = min((load.concurrency for load in loads if load.concurrency is not None), default=best.layout.pp)
    if outstanding < best.layout.pp:
        yield f"{outstanding} requests at once are fewer than {best.layout.pp} stages: some always wait"
    if best.idle_gpus:
        yield f"{best.layout.name} leaves {best.idle_gpus} of {best.layout.gpus + best.idle_gpus} GPUs idle"


def _versus(piped: Row, flat: Row) -> Iterator[str]:
    """The best layout with a pipeline against the best without."""
    gain = piped.metric("output_throughput_tok_s") / flat.metric("output_throughput_tok_s") - 1
    slower = _times(piped, flat)
    if gain > _INDIFFERENT:
        yield (
            f"a pipeline pays for throughput: {piped.layout.name} gives {100 * gain:.0f} % more tokens/s than "
            f"{flat.layout.name}{slower}"
        )
    elif gain < -_INDIFFERENT:
        yield (
            f"a pipeline is the wrong tool for this load: without one, {flat.layout.name} gives "
            f"{100 * (1 / (1 + gain) - 1):.0f} % more tokens/s than {piped.layout.name}{slower}"
        )
    else:
        yield (
            f"a pipeline makes no difference to throughput: {piped.layout.name} and {flat.layout.name} are within "
            f"{100 * _INDIFFERENT:.0f} %{slower}; take the one without"
        )


def _times(piped: Row, flat: Row) -> str:
    one, other = piped.result.metric("tpot_p50_ms"), flat.result.metric("tpot_p50_ms")
    if one is None or other is None:
        return ""
    return f" (time per token {one:.3g} ms with the pipeline, {other:.3g} ms without)"
