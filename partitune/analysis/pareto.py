"""Which trials are worth a look: the Pareto front, its knee, the best by each objective, and how much a front covers.

Decision: only outcome `ok` competes, and only with every objective measured, so that a broken run with a tempting
latency never wins. Of trials with equal figures the first one stands for all: numbers start with the engine's default
and go on with planned candidates, so the simpler deployment is the one that is shown. The knee is the trial nearest to
the ideal point after each objective is scaled to its range on the front; of equally near ones, the one that is better
by the first objective. An objective that hardly varies on the front hardly counts, or a gain of 0.1 % in one would be
weighed against all of another.

The hypervolume says in one number whether a longer search still gains. It is exact, by the exclusive volumes of the WFG
algorithm (While, Bradstreet, Barone, IEEE TEC 2012), which is fifteen lines and fast for the fronts met here (two to
four objectives, up to some hundred points). The unit is the product of the objectives' units, so only volumes against
the same reference point compare. By default that point is the worst value of each objective over all ok trials, moved
away from the best by a tenth of the range, so that the ends of the front count too; it belongs to a finished list of
trials. To follow a search, fix it once and pass it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import le, lt

from partitune.candidate import Objective, Outcome, Result

#: A range on the front below this share of the objective's best value is scaled as if it were this wide.
FLAT = 0.01
#: How far beyond the worst value the reference lies, as a share of the range.
MARGIN = 0.1

Costs = tuple[float, ...]


def costs_of(result: Result, objectives: Sequence[Objective]) -> Costs | None:
    """The objectives of one trial, each turned so that less is better; None unless it is ok and all were measured."""
    values = [(objective, result.metric(objective.metric)) for objective in objectives]
    if result.outcome is not Outcome.OK:
        return None
    costs = tuple(objective.cost(value) for objective, value in values if value is not None and math.isfinite(value))
    return costs if len(costs) == len(values) else None


def _competing(results: Sequence[Result], objectives: Sequence[Objective]) -> dict[int, Costs]:
    """The costs of the trials that have all, by index."""
    costs = {index: costs_of(result, objectives) for index, result in enumerate(results)}
    return {index: own for index, own in costs.items() if own is not None}


def _non_dominated(points: Mapping[int, Costs]) -> list[int]:
    """Keys of the points that no other is at least as good as, in the order of the points; the first of equals."""
    kept: list[int] = []
    # In this order nothing is dominated by what comes after it, and the first of equals comes first.
    for key in sorted(points, key=lambda key: (points[key], key)):
        if not any(all(map(le, points[other], points[key])) for other in kept):
            kept.append(key)
    return kept


def front(results: Sequence[Result], objectives: Sequence[Objective]) -> list[int]:
    """Indexes into `results` of the non-dominated trials, best first by the first objective, then by the next."""
    return _non_dominated(_competing(results, objectives))


def knee(results: Sequence[Result], objectives: Sequence[Objective]) -> int | None:
    """Index of the knee of the front; None when no trial competes. With one objective it is the best trial."""
    costs = _competing(results, objectives)
    on_front = _non_dominated(costs)
    if not on_front:
        return None
    columns = list(zip(*(costs[index] for index in on_front), strict=True))
    low = [min(column) for column in columns]
    width = [max(max(column) - a, FLAT * abs(a)) or 1.0 for column, a in zip(columns, low, strict=True)]

    def distance(index: int) -> float:
        return math.hypot(*((cost - a) / w for cost, a, w in zip(costs[index], low, width, strict=True)))

    nearest = min(map(distance, on_front))
    return next(index for index in on_front if math.isclose(distance(index), nearest, rel_tol=1e-12))


def hypervolume(
    results: Sequence[Result], objectives: Sequence[Objective], reference: Sequence[float] | None = None
) -> float:
    """Volume between the trials and `reference` (values in the metrics' own units; by default `reference_point`)."""
    reference = reference or reference_point(results, objectives)
    if reference is None:
        return 0.0
    corner = tuple(objective.cost(value) for objective, value in zip(objectives, reference, strict=True))
    return volume(list(_competing(results, objectives).values()), corner)


def reference_point(results: Sequence[Result], objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    """The default reference, in the metrics' own units; None when no trial competes."""
    columns = list(zip(*_competing(results, objectives).values(), strict=True))
    corner = [max(column) + MARGIN * (max(column) - min(column)) for column in columns]
    return tuple(map(Objective.cost, objectives, corner)) or None


def volume(points: Sequence[Costs], corner: Costs) -> float:
    """Volume that `points` (less is better) dominate within `corner`, in any number of dimensions."""
    inside = [point for point in set(points) if all(map(lt, point, corner))]
    if len(corner) == 2:
        return _area(inside, corner)
    # Worst first in the last dimension: the limited sets below stay small.
    ordered = sorted(inside, key=lambda point: point[::-1], reverse=True)
    total = 0.0
    for i, point in enumerate(ordered):
        limited = {j: tuple(map(max, point, other)) for j, other in enumerate(ordered[i + 1 :])}
        box = math.prod(b - a for a, b in zip(point, corner, strict=True))
        total += box - volume([limited[j] for j in _non_dominated(limited)], corner)
    return total


def _area(points: Sequence[Costs], corner: Costs) -> float:
    total, lowest = 0.0, corner[1]
    for x, y in sorted(points):
        if y < lowest:
            total += (corner[0] - x) * (lowest - y)
            lowest = y
    return total
