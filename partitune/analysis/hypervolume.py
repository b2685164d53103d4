"""How much of the objective space a front covers: one number that says whether a longer search still gains.

Decision: exact, by the exclusive volumes of the WFG algorithm (While, Bradstreet, Barone, IEEE TEC 2012), which is
fifteen lines and fast for the fronts met here (two to four objectives, up to some hundred points). The unit is the
product of the objectives' units, so only volumes against the same reference point compare. By default that point is the
worst value of each objective over all ok trials, moved away from the best by a tenth of the range, so that the ends of
the front count too; it belongs to a finished list of trials. To follow a search, fix it once and pass it.
"""

from __future__ import annotations

from collections.abc import Sequence

from partitune.analysis.pareto import Costs, costs_of
from partitune.candidate import Objective, Result

#: How far beyond the worst value the reference lies, as a share of the range.
MARGIN = 0.1


def hypervolume(
    results: Sequence[Result], objectives: Sequence[Objective], reference: Sequence[float] | None = None
) -> float:
    """Volume between the trials and `reference` (values in the metrics' own units; by default `reference_point`)."""
    if reference is None:
        reference = reference_point(results, objectives)
    if reference is None:
        return 0.0
    corner = tuple(objective.cost(value) for objective, value in zip(objectives, reference, strict=True))
    found = [costs for result in results if (costs := costs_of(result, objectives)) is not None]
    return volume(found, corner)


def reference_point(results: Sequence[Result], objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    """The default reference, in the metrics' own units; None when no trial competes."""
    found = [costs for result in results if (costs := costs_of(result, objectives)) is not None]
    if not found:
        return None
    corner = [max(column) + MARGIN * (max(column) - min(column)) for column in zip(*found, strict=True)]
    return tuple(objective.cost(cost) for objective, cost in zip(objectives, corner, strict=True))


def volume(points: Sequence[Costs], corner: Costs) -> float:
    """Volume that `points` (less is better) dominate within `corner`, in any number of dimensions."""
    inside = [point for point in set(points) if all(a < b for a, b in zip(point, corner, strict=True))]
    if len(corner) == 2:
        return _area(inside, corner)
    # Worst first in the last dimension: the limited sets below stay small.
    ordered = sorted(inside, key=lambda point: point[::-1], reverse=True)
    total = 0.0
    for i, point in enumerate(ordered):
        box = 1.0
        for a, b in zip(point, corner, strict=True):
            box *= b - a
        limited = [tuple(map(max, point, other)) for other in ordered[i + 1 :]]
        total += box - volume(_non_dominated(limited), corner)
    return total


def _area(points: Sequence[Costs], corner: Costs) -> float:
    total, lowest = 0.0, corner[1]
    for x, y in sorted(points):
        if y < lowest:
            total += (corner[0] - x) * (lowest - y)
            lowest = y
    return total


def _non_dominated(points: Sequence[Costs]) -> list[Costs]:
    kept: list[Costs] = []
    for point in sorted(set(points)):
        if not any(all(a <= b for a, b in zip(other, point, strict=True)) for other in kept):
            kept.append(point)
    return kept
