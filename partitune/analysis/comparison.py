"""Which trial to use, and whether it really beats the engine's default.

Decision: default first. A deployment that nobody has to explain stays unless another one is better by more than the
indifference zone; a tie is called a tie, in fixed words that reports and tests rely on. Simulated figures are
deterministic, so the zone alone decides and the text says that nothing was measured; single measured runs are judged by
the same zone and the text says that they were not repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partitune.analysis.pareto import costs_of, front
from partitune.candidate import Objective, Outcome, Result

#: Relative difference below which two deployments count as equal.
INDIFFERENCE_ZONE = 0.01

NO_DIFFERENCE = "no significant difference: keep the default"
WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Change:
    """One objective of a trial against the default."""

    objective: Objective
    default: float
    value: float
    gain: float  # share of the default's value; > 0 is better, whichever way that is
    verdict: str  # `better by x %`, NO_DIFFERENCE or WORSE


@dataclass(frozen=True, slots=True)
class Comparison:
    """A trial against the engine's default, objective by objective. No changes: there is nothing to compare with."""

    changes: tuple[Change, ...]
    simulated: bool
    text: str  # one line for a person: every objective, and what the verdicts rest on


@dataclass(frozen=True, slots=True)
class Choice:
    """The trial to use: `index` into the trials it was chosen from, and why in one line."""

    index: int
    why: str


def gain(objective: Objective, default: float, value: float) -> float:
    """Relative change towards the better, as a share of the default; of `value` where the default is 0."""
    base = abs(default) or abs(value) or 1.0
    return (objective.cost(default) - objective.cost(value)) / base


def verdict(relative_gain: float, zone: float = INDIFFERENCE_ZONE) -> str:
    """The fixed words for a relative gain."""
    if abs(relative_gain) <= zone:
        return NO_DIFFERENCE
    return f"better by {100 * relative_gain:.1f} %" if relative_gain > 0 else WORSE


def compare(
    default: Result | None, result: Result, objectives: Sequence[Objective], zone: float = INDIFFERENCE_ZONE
) -> Comparison:
    """Compare a trial with the engine's default. The simulated flag is that of either."""
    simulated = any(one.measurement.simulated for one in (default, result) if one is not None and one.measurement)
    if default is None:
        return Comparison((), simulated, "the engine default was not tried: there is nothing to compare with")
    if costs_of(default, objectives) is None:
        state = f"{default.outcome}: {default.reason}" if default.reason else "an objective was not measured"
        return Comparison((), simulated, f"there is nothing to compare with: the engine default is {state}")
    found = []
    for objective in objectives:
        before, after = default.metric(objective.metric), result.metric(objective.metric)
        if before is not None and after is not None:
            relative = gain(objective, before, after)
            found.append(Change(objective, before, after, relative, verdict(relative, zone)))
    words = "; ".join(f"{change.objective.metric} {change.verdict}" for change in found)
    basis = "simulated, nothing was measured" if simulated else "single runs, not repeated"
    return Comparison(tuple(found), simulated, f"{words} ({basis}; indifference zone {100 * zone:g} %)")


def choose(
    results: Sequence[Result], objectives: Sequence[Objective], default: int | None = 0, zone: float = INDIFFERENCE_ZONE
) -> Choice | None:
    """The trial to use: objectives in the order given, each within its zone; the default unless it is beaten.

    The first objective names the winner. Of the trials on the front within `zone` of its best value the second one
    decides, and so on. `default` is the index of the engine's default in `results`, None when it was not tried. Returns
    None when no trial competes.
    """
    left = front(results, objectives)
    if not left:
        return None
    for objective in objectives:
        values = {index: results[index].metric(objective.metric) or 0.0 for index in left}
        best_value = min(values.values(), key=objective.cost)
        left = [index for index in left if gain(objective, best_value, values[index]) >= -zone]
    best = left[0]
    why = f"best {objectives[0].metric}"
    if len(objectives) > 1:
        why += f"; of those within {100 * zone:g} % of it, best {', '.join(one.metric for one in objectives[1:])}"
    if default is None or costs_of(results[default], objectives) is None:
        return Choice(best, why)
    if default == best:
        return Choice(default, f"engine default: it is the {why}")
    if all(change.gain <= zone for change in compare(results[default], results[best], objectives, zone).changes):
        return Choice(default, f"engine default: the {why} beats it by no more than {100 * zone:g} %")
    return Choice(best, why)


def nearest_miss(results: Sequence[Result]) -> int | None:
    """Index of the result that missed its limits by the least, each by its own share; None where none had figures."""
    missed = {
        index: max(over)
        for index, result in enumerate(results)
        if result.outcome is Outcome.INFEASIBLE
        and result.measurement is not None
        and (over := [value for value in result.measurement.constraints.values() if value > 0])
    }
    return min(missed, key=lambda index: (missed[index], index), default=None)
