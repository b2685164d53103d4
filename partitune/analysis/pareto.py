"""Which trials are worth a look: the Pareto front, its knee, the best by each objective.

Decision: only outcome `ok` competes, and only with every objective measured, so that a broken run with a tempting
latency never wins. Of trials with equal figures the first one stands for all: numbers start with the engine's default
and go on with planned candidates, so the simpler deployment is the one that is shown. The knee is the trial nearest to
the ideal point after each objective is scaled to its range on the front; of equally near ones, the one that is better
by the first objective. An objective that hardly varies on the front hardly counts, or a gain of 0.1 % in one would be
weighed against all of another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from partitune.candidate import Objective, Outcome, Result

#: A range on the front below this share of the objective's best value is scaled as if it were this wide.
FLAT = 0.01

Costs = tuple[float, ...]


def costs_of(result: Result, objectives: Sequence[Objective]) -> Costs | None:
    """The objectives of one trial, each turned so that less is better; None unless it is ok and all were measured."""
    values = [(objective, result.metric(objective.metric)) for objective in objectives]
    if result.outcome is not Outcome.OK:
        return None
    costs = tuple(objective.cost(value) for objective, value in values if value is not None and math.isfinite(value))
    return costs if len(costs) == len(values) else None


def front(results: Sequence[Result], objectives: Sequence[Objective]) -> list[int]:
    """Indexes into `results` of the non-dominated trials, best first by the first objective, then by the next."""
    costs = [
        (found, index) for index, result in enumerate(results) if (found := costs_of(result, objectives)) is not None
    ]
    kept: list[tuple[Costs, int]] = []
    # In this order nothing is dominated by what comes after it, and the first of equals comes first.
    for mine, index in sorted(costs):
        if not any(all(a <= b for a, b in zip(other, mine, strict=True)) for other, _ in kept):
            kept.append((mine, index))
    return [index for _, index in kept]


def best_by(results: Sequence[Result], objective: Objective) -> int | None:
    """Index of the best ok trial by one objective, the first of equals; None when none has it."""
    costs = [
        (found, index) for index, result in enumerate(results) if (found := costs_of(result, [objective])) is not None
    ]
    return min(costs)[1] if costs else None


def knee(results: Sequence[Result], objectives: Sequence[Objective]) -> int | None:
    """Index of the knee of the front; None when no trial competes. With one objective it is the best trial."""
    on_front = front(results, objectives)
    costs = {index: costs_of(results[index], objectives) or () for index in on_front}
    if not costs:
        return None
    columns = list(zip(*costs.values(), strict=True))
    low = [min(column) for column in columns]
    width = [max(max(column) - a, FLAT * abs(a)) or 1.0 for column, a in zip(columns, low, strict=True)]

    def distance(index: int) -> float:
        return math.hypot(*((cost - a) / w for cost, a, w in zip(costs[index], low, width, strict=True)))

    nearest = min(map(distance, on_front))
    return next(index for index in on_front if math.isclose(distance(index), nearest, rel_tol=1e-12))
