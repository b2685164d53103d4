"""The exact best partition under any cost: dynamic programming over a stage-time tensor.

Decision: one algorithm for everything. `times[s, i, j]` is the seconds of stage s when it owns layers i..j-1, infinite
where that is not allowed. Nothing has to be additive, monotone or equal across stages, so unequal GPUs, memory limits,
illegal cuts and KV limits are only other entries, and greedy fills or bisection (wrong once a stage must own a layer
and caps differ) are not needed: 93 layers on 8 stages take about a millisecond.

Among partitions with the same slowest stage the one with the least sum of squared stage times is chosen: it leaves
slack everywhere else, so a small error in one stage does not make a new bottleneck. Times that differ by less than one
part in 10^9 count as equal, because sums of the same layers in another order differ that much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from partitune.costs.cost_model import Floats
from partitune.errors import InfeasibleSpace
from partitune.partition import Partition

_SAME = 1.0 + 1e-9


@dataclass(frozen=True, slots=True)
class Solution:
    """An exactly optimal partition, with what it takes and holds."""

    partition: Partition
    bottleneck_s: float  # slowest stage
    total_s: float  # sum over stages: one token's way through the pipeline
    capacity: float | None = None  # smallest capacity over stages, in the unit of the tensor it came from


def stage_tensor(layer_s: Floats, edge_s: Floats) -> Floats:
    """Stage times from layer times.

    Args:
        layer_s: seconds of each layer on each stage, shape [stages, layers].
        edge_s: seconds of each stage outside its layers, shape [stages].

    Returns:
        Seconds, shape [stages, layers + 1, layers + 1]; infinite where a window is empty.
    """
    stages, layers = layer_s.shape
    prefix = np.concatenate((np.zeros((stages, 1)), np.cumsum(layer_s, axis=1)), axis=1)
    times = prefix[:, None, :] - prefix[:, :, None] + edge_s[:, None, None]
    return np.where(np.triu(np.ones((layers + 1, layers + 1), dtype=np.bool_), k=1), times, np.inf)


def along(tensor: Floats, partition: Sequence[int]) -> Floats:
    """The entries of `tensor` [stages, layers + 1, layers + 1] that `partition` consists of: shape [stages]."""
    firsts, ends = np.transpose(Partition(partition).ranges)
    return np.asarray(tensor[np.arange(len(partition)), firsts, ends], dtype=np.float64)


def minimise_bottleneck(times: Floats) -> Solution:
    """The partition with the least slowest stage, then the least sum of squares.

    Raises:
        InfeasibleSpace: no partition is allowed; names the stage that cannot be satisfied.
    """
    limit = _least_bottleneck(times) * _SAME
    return _solution(times, _least_sum(np.where(times <= limit, times * times, np.inf)))


def minimise_sum(times: Floats) -> Solution:
    """The partition with the least sum of stage times (latency of one batch).

    On equal stages every partition has the same sum; then the one with the least slowest stage is chosen.

    Raises:
        InfeasibleSpace: no partition is allowed.
    """
    even, fastest = minimise_bottleneck(times), _solution(times, _least_sum(times))
    return even if even.total_s <= fastest.total_s * _SAME else fastest


def minimise_ttft(times: Floats, chunks: int) -> Solution:
    """The partition with the least time to first token of a prompt of `chunks` equal chunks.

    A pipeline finishes the last of M equal chunks after sum(t) + (M - 1) * max(t) (a flow shop with constant times).
    The least sum under every limit on the slowest stage is a falling staircase; ranges of the limit that cannot hold
    anything better than the best so far are left out, the others are halved.

    Raises:
        InfeasibleSpace: no partition is allowed.
    """
    fastest, tightest = minimise_sum(times), minimise_bottleneck(times)
    best = min(fastest, tightest, key=lambda solution: _ttft_s(solution, chunks))
    # Open ranges of the slowest stage, and the least sum of any partition inside.
    ranges = [(tightest.bottleneck_s, fastest.bottleneck_s, fastest.total_s)]
    while ranges:
        low, high, least_s = ranges.pop()
        if high <= low * _SAME or least_s + (chunks - 1) * low >= _ttft_s(best, chunks) / _SAME:
            continue
        middle = (low + high) / 2
        capped = np.where(times <= middle, times, np.inf)
        below = _solution(times, _least_sum(capped))
        best = min(best, below, key=lambda solution: _ttft_s(solution, chunks))
        ranges += [(middle, high, least_s), (low, below.bottleneck_s, below.total_s)]
    return best


def pareto_front(times: Floats, capacity: Floats) -> tuple[Solution, ...]:
    """Every trade between the slowest stage (least) and the smallest capacity over stages (most).

    Args:
        times: seconds, shape [stages, layers + 1, layers + 1].
        capacity: what the stage can hold (KV blocks, tokens) when it owns the window; same shape.

    Returns:
        The exact front, fastest first: bottleneck and capacity both grow strictly.

    Raises:
        InfeasibleSpace: no partition is allowed.
    """
    front: list[Solution] = []
    held = np.where(np.isfinite(times), capacity, -np.inf)
    allowed = times
    while True:
        try:
            limit = _least_bottleneck(allowed) * _SAME
        except InfeasibleSpace:
            if not front:
                raise
            return tuple(front)
        # Of the partitions as fast as this, the most capacity; of those, the most even one.
        most = -_least_bottleneck(np.where(allowed <= limit, -held, np.inf))
        even = np.where((allowed <= limit) & (held >= most), allowed * allowed, np.inf)
        front.append(_solution(times, _least_sum(even), held))
        allowed = np.where(held > most, allowed, np.inf)


def fluid_bound_s(layer_s: Floats, edge_s: Floats) -> float:
    """Slowest stage if layers could be cut anywhere: no partition is faster.

    Args:
        layer_s: seconds, shape [stages, layers].
        edge_s: seconds, shape [stages].
    """
    stages, layers = layer_s.shape
    prefix = np.concatenate((np.zeros((stages, 1)), np.cumsum(layer_s, axis=1)), axis=1)
    depth = np.arange(layers + 1, dtype=np.float64)

    def reaches(bound_s: float) -> bool:
        position = 0.0
        for stage in range(stages):
            work = np.interp(position, depth, prefix[stage]) + max(bound_s - edge_s[stage], 0.0)
            position = float(layers) if work >= prefix[stage, -1] else float(np.interp(work, prefix[stage], depth))
        return bool(position >= layers)

    low, high = float(edge_s.max()), float(edge_s.max() + prefix[:, -1].max())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def _ttft_s(solution: Solution, chunks: int) -> float:
    return solution.total_s + (chunks - 1) * solution.bottleneck_s


def _solution(times: Floats, partition: Partition, capacity: Floats | None = None) -> Solution:
    chosen = along(times, partition)
    smallest = None if capacity is None else float(along(capacity, partition).min())
    return Solution(partition, float(chosen.max()), float(chosen.sum()), smallest)


def _least_bottleneck(costs: Floats) -> float:
    """Least over partitions of the greatest cost of a stage."""
    best = costs[0, 0]
    for stage in range(1, len(costs)):
        best = np.maximum(best[:, None], costs[stage]).min(axis=0)
    if best[-1] == np.inf:
        raise _infeasible(costs)
    return float(best[-1])


def _least_sum(costs: Floats) -> Partition:
    """The partition with the least sum of costs, of which some admit one; ties go to the earliest cut."""
    best = costs[0, 0]
    origins = []
    for stage in range(1, len(costs)):
        sums = best[:, None] + costs[stage]
        origins.append(sums.argmin(axis=0))
        best = sums.min(axis=0)
    cuts = [costs.shape[1] - 1]
    for origin in reversed(origins):
        cuts.append(int(origin[cuts[-1]]))
    return Partition(end - first for first, end in pairwise((0, *reversed(cuts))))


def _infeasible(costs: Floats) -> InfeasibleSpace:
    """Name the first stage at which every partition fails."""
    allowed = costs < np.inf
    stages, layers = len(costs), costs.shape[1] - 1
    for stage in range(stages):
        if not (allowed[0, 0] if stage == 0 else allowed[stage]).any():
            return InfeasibleSpace(
                f"stage {stage} of {stages} cannot own any run of layers: every window is ruled out by its bounds, its "
                "memory or the model's cuts"
            )
    reached = [allowed[0, 0]]
    for windows in allowed[1:]:
        reached.append((reached[-1][:, None] & windows).any(axis=0))
    stage = [*(ends.any() for ends in reached[:-1]), reached[-1][-1]].index(False)
    furthest = int(np.flatnonzero(reached[stage - 1])[-1])
    reach = f"they reach layer {furthest} of {layers} at most"
    return InfeasibleSpace(f"stage {stage} of {stages} cannot take over where the stages before it can end: {reach}")
