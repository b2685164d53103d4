"""Which trial to use, and whether it really beats the engine's default.

Decision: default first. A deployment that nobody has to explain stays unless another one is better by more than the
indifference zone; a tie is called a tie, in fixed words that reports and tests rely on. Simulated figures are
deterministic, so the zone alone decides and the text says that nothing was measured; single measured runs are judged by
the same zone and the text says that they were not repeated. The best of each layout is told from the trials
alone as well, so that simulated and measured studies are read alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from partitune.analysis.figures import figure, percent
from partitune.analysis.pareto import costs_of
from partitune.candidate import Candidate, Objective, Outcome, Result

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
    text: str  # one line for a person: every objective, and what the verdicts rest on

    @classmethod
    def of(cls, changes: Sequence[Change], basis: str, zone: float) -> Comparison:
        """Tell `changes`, which rest on `basis`."""
        words = "; ".join(f"{change.objective.metric} {change.verdict}" for change in changes)
        return cls(tuple(changes), f"{words} ({basis}; indifference zone {percent(zone, 'g')})")


def gain(objective: Objective, default: float, value: float) -> float:
    """Relative change towards the better, as a share of the default; of `value` where the default is 0."""
    base = abs(default) or abs(value) or 1.0
    return (objective.cost(default) - objective.cost(value)) / base


def verdict(relative_gain: float, zone: float) -> str:
    """The fixed words for a relative gain."""
    if abs(relative_gain) <= zone:
        return NO_DIFFERENCE
    return f"better by {percent(relative_gain)}" if relative_gain > 0 else WORSE


def compare(
    default: Result | None,
    result: Result,
    objectives: Sequence[Objective],
    zone: float,
    called: str = "the engine default",
) -> Comparison:
    """Compare a trial with the engine's default, or with another one that is `called` so in sentences.

    The text says where figures of either are simulated.
    """
    sides = (result.measurement, None if default is None else default.measurement)
    simulated = any(measurement.simulated for measurement in sides if measurement is not None)
    if default is None:
        return Comparison((), f"{called} was not tried: there is nothing to compare with")
    if costs_of(default, objectives) is None:
        state = f"{default.outcome}: {default.reason}" if default.reason else "an objective was not measured"
        return Comparison((), f"there is nothing to compare with: {called} is {state}")
    changes = []
    for objective in objectives:
        before, after = default.metric(objective.metric), result.metric(objective.metric)
        if before is not None and after is not None:
            relative = gain(objective, before, after)
            changes.append(Change(objective, before, after, relative, verdict(relative, zone)))
    basis = "simulated, nothing was measured" if simulated else "single runs, not repeated"
    return Comparison.of(changes, basis, zone)


def choose(
    results: Sequence[Result],
    objectives: Sequence[Objective],
    default: int | None,
    zone: float,
    barred: Collection[int] = (),
    caps: Collection[str] = (),
) -> tuple[int | None, str]:
    """The trial to use: objectives in the order given, each within its zone; the default unless it is beaten.

    The first objective names the winner. Of the trials within `zone` of its best value the second one decides, and so
    on. Of those that no objective tells apart, the one that lowers no cap on what is served below the default's and
    changes the least is used: a gain within the zone is no reason to serve fewer requests.

    Args:
        results: by index.
        objectives: the first one names the winner.
        default: index of the engine's default in `results`; None when it was not tried.
        zone: relative difference below which two values count as equal.
        barred: indexes that cannot win whatever they measured.
        caps: flags that limit how much is served at once.

    Returns:
        Its index in `results`, None when no trial competes; and why, in one line.
    """
    costs = {i: own for i, result in enumerate(results) if (own := costs_of(result, objectives)) and i not in barred}
    if not costs:
        return None, "no trial can be deployed: every one failed or missed a limit"
    left = list(costs)
    for objective in objectives:
        values = {index: results[index].metric(objective.metric) or 0.0 for index in left}
        best_value = min(values.values(), key=objective.cost)
        left = [index for index in left if gain(objective, best_value, values[index]) >= -zone]
    best = min(left, key=lambda index: (costs[index], index))
    why = f"best {objectives[0].metric}"
    if len(objectives) > 1:
        others = ", ".join(objective.metric for objective in objectives[1:])
        why += f"; of those within {percent(zone, 'g')} of it, best {others}"
    if default is None or costs_of(results[default], objectives) is None:
        return best, why
    if default == best:
        return default, f"engine default: it is the {why}"
    if all(change.gain <= zone for change in compare(results[default], results[best], objectives, zone).changes):
        return default, f"engine default: the {why} beats it by no more than {percent(zone, 'g')}"
    base = results[default].candidate
    plainest = min(left, key=lambda index: (*_departure(results[index].candidate, base, caps), costs[index], index))
    candidate = results[plainest].candidate
    lowered = lowered_caps(candidate, base, caps)
    if plainest != best:
        few = "the fewest caps" if lowered else "no cap"
        why += f"; of those that are equal within it, the one that lowers {few} and changes the least"
    if lowered:
        listed = ", ".join(f"{name} from {base.flags[name]} to {candidate.flags[name]}" for name in lowered)
        why += f"; it lowers {listed}: no trial that lowers less was as good"
    return plainest, why


def lowered_caps(candidate: Candidate, default: Candidate, caps: Iterable[str]) -> tuple[str, ...]:
    """Names of the `caps` by which `candidate` serves less at once than `default` would."""
    pairs = {name: (candidate.flags.get(name), default.flags.get(name)) for name in sorted(caps)}
    return tuple(
        name
        for name, (own, before) in pairs.items()
        if isinstance(own, int) and isinstance(before, int) and 0 <= own < before
    )


def _departure(candidate: Candidate, default: Candidate, caps: Iterable[str]) -> tuple[int, int]:
    """How far `candidate` is from `default`: caps lowered, and flags, layout and partition changed."""
    own, before = candidate.settings, default.settings
    changed = sum(own.get(name) != before.get(name) for name in own.keys() | before.keys())
    return len(lowered_caps(candidate, default, caps)), changed + (candidate.partition != default.partition)


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


def layouts_tried(trials: Iterable[tuple[int, Result]], objective: Objective) -> Iterator[str]:
    """The best trial of every layout by the first objective, with how many it had, in a sentence.

    No verdict about pipelines: a search gives layouts unequal shares of its trials.

    Args:
        trials: each by its number and result.
        objective: the first one, which names the winner.

    Returns:
        Nothing where the trials have one layout.
    """
    best: dict[str, tuple[float, int]] = {}
    counts: Counter[str] = Counter()
    for number, result in trials:
        name, value = result.candidate.layout, result.metric(objective.metric)
        if name is None:
            continue
        counts[name] += 1
        if value is None or result.outcome is not Outcome.OK:
            continue
        if name not in best or objective.cost(value) < objective.cost(best[name][0]):
            best[name] = (value, number)
    if len(best) < 2:
        return
    ranked = sorted(best, key=lambda name: objective.cost(best[name][0]))
    listed = [
        f"{name} {figure(best[name][0], objective.metric)} (trial {best[name][1]}, {counts[name]} tried)"
        for name in ranked
    ]
    yield f"best {objective.metric} of each layout, of what was tried: {', '.join(listed)}"
