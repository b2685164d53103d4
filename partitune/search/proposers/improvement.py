"""What makes an untried point worth a trial: how much better than the best so far it may be expected to be.

Decision: everything is one number a trial, less is better. Of several objectives it is (max + sum) / 2 of the costs,
scaled to what was seen and weighted: the maximum reaches every part of a front, the sum prefers what no other beats.
The weights change with every ask: each objective for itself, so that the ends of the front are looked for, then a
random mixture. The worst quarter of the trials counts as equally bad: how bad they are says nothing of where the best
is, and a model that followed it would keep to the slope it knows. What cannot run or misses a limit is worse than the
worst that was valid, by how far it is off.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from partitune.search.proposers.gaussian_process import Floats

#: How much worse than the worst valid trial the others are, in ranges of the valid: the nearest miss, the farthest.
GRADES = (0.1, 0.5)
#: Share of the valid trials beyond which all count as equally bad.
ALIKE = 0.75


def weights(objectives: int, turn: int, random: np.random.Generator) -> Floats:
    """How much each objective counts at an ask: all of one, of the next, …, then a mixture; they sum to 1."""
    turn %= objectives + 1
    if objectives == 1 or turn < objectives:
        return np.asarray(np.eye(objectives)[turn % objectives], dtype=np.float64)
    return np.asarray(random.dirichlet(np.ones(objectives)), dtype=np.float64)


def targets(costs: Floats, misses: Floats, weight: Floats) -> Floats:
    """One number a trial, less is better.

    Args:
        costs: of every trial and objective, less is better; of one that missed something they are not looked at.
        misses: of every trial, by how much it is off in all; 0 of a valid one.
        weight: of every objective.
    """
    valid = misses <= 0
    numbers = np.zeros(len(costs))
    if valid.any():
        low, high = costs[valid].min(axis=0), costs[valid].max(axis=0)
        scaled = weight * (costs - low) / np.where(high > low, high - low, 1.0)
        numbers = (scaled.max(axis=1) + scaled.sum(axis=1)) / 2
        numbers = np.minimum(numbers, np.quantile(numbers[valid], ALIKE))
    best, worst = (numbers[valid].min(), numbers[valid].max()) if valid.any() else (0.0, 0.0)
    nearest, farthest = GRADES
    grade = nearest + (farthest - nearest) * misses / max(misses.max(initial=0.0), 1e-12)
    return np.asarray(np.where(valid, numbers, worst + ((worst - best) or 1.0) * grade), dtype=np.float64)


def expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """By how much a target with this mean and standard deviation is expected to undercut `best`."""
    surely = (best - mean) / deviation
    density = np.exp(-(surely**2) / 2) / np.sqrt(2 * np.pi)
    return np.asarray(deviation * (surely * ndtr(surely) + density), dtype=np.float64)


def learnt(numbers: Floats, most: int) -> NDArray[np.intp]:
    """The trials to learn from, in their order, where there are more than `most`: the last half, and the best."""
    count = len(numbers)
    if count <= most:
        return np.arange(count)
    recent = np.arange(count - most // 2, count)
    best = np.argsort(numbers[: recent[0]], kind="stable")[: most - len(recent)]
    return np.sort(np.concatenate((best, recent)))
