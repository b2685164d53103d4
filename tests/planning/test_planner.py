"""Plan names become exact partitions: checked against every partition there is."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from partitune.candidate import Candidate
from partitune.errors import InfeasibleSpace, OutOfMemory
from partitune.partition import Partition
from partitune.planning.planner import EXACT_PLAN, FRONT_PLANS, Planner, stage_bounds
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.spec.search_space import SearchSpace


def problem(**changes: Any) -> Problem:
    plain = SearchSpace.load("tiny").resolved()
    plain["cluster"] = {"nodes": 1, "gpus_per_node": 4, "gpu": "L40S"}
    plain["parallel"] = {"tp": 1, "pp": 3}
    plain["seeds"] = []
    return resolve(SearchSpace.from_mapping({**plain, **changes}, source="test"))


def planner(posed: Problem, **bounds: Any) -> Planner:
    return Planner(posed, stage_bounds(posed.stages, posed.layers, **bounds), [Partition((12, 12, 12))])


def all_partitions(layers: int, stages: int) -> list[tuple[int, ...]]:
    cuts = itertools.combinations(range(1, layers), stages - 1)
    return [tuple(np.diff((0, *cut, layers)).tolist()) for cut in cuts]


@pytest.mark.parametrize("gpu", ["L40S", ["L40S", "A10", "RTX-3090"]])
def test_the_exact_plan_has_the_least_slowest_stage_of_all_that_fit(gpu: str | list[str]) -> None:
    posed = problem(cluster={"nodes": 1, "gpus_per_node": 4, "gpu": gpu})
    made = planner(posed)
    fitting = []
    for partition in all_partitions(36, 3):
        resolved = ResolvedCandidate(posed, Candidate(partition))
        try:
            assert resolved.kv_cache.num_blocks
        except (InfeasibleSpace, OutOfMemory):
            continue
        if all(stage.fits for stage in resolved.memory):
            fitting.append(partition)
    assert len(fitting) > 100
    best = min(made.stage_seconds(partition, {}).max() for partition in fitting)
    found = made.partition(EXACT_PLAN, {})
    assert found in fitting
    assert made.stage_seconds(found, {}).max() == pytest.approx(best, rel=1e-9)


def test_the_front_trades_stage_time_for_blocks() -> None:
    posed = problem()
    made = planner(posed)
    front = made.front({})
    blocks = [ResolvedCandidate(posed, Candidate(one.partition)).kv_cache.num_blocks for one in front]
    times = [float(made.stage_seconds(one.partition, {}).max()) for one in front]
    assert times == sorted(times)
    assert blocks == sorted(blocks)
    most = max(
        resolved.kv_cache.num_blocks
        for resolved in (ResolvedCandidate(posed, Candidate(one)) for one in all_partitions(36, 3))
        if all(stage.fits for stage in resolved.memory) and max(resolved.partition) <= 16
    )
    assert blocks[-1] == most


def test_every_plan_name_means_a_partition() -> None:
    made = planner(problem())
    assert made.names == ("default", *FRONT_PLANS, "least-sum", "first-token", "seed-1")
    assert made.partition("default", {}) == (12, 12, 12)
    assert made.partition("seed-1", {}) == (12, 12, 12)
    for name in FRONT_PLANS:
        assert sum(made.partition(name, {})) == 36
    assert made.partition(FRONT_PLANS[-1], {}) == made.front({})[-1].partition


def test_bounds_hold_for_the_front_and_not_for_the_default() -> None:
    made = planner(problem(), fewest=5, most=14, pinned={0: 14})
    assert made.partition("default", {}) == (12, 12, 12)
    for one in made.front({}):
        assert one.partition[0] == 14
        assert 5 <= min(one.partition[1:]) <= max(one.partition) <= 14


def test_flags_that_leave_no_memory_admit_no_partition() -> None:
    made = planner(problem())
    with pytest.raises(InfeasibleSpace):
        made.partition(EXACT_PLAN, {"max_num_batched_tokens": 10_000_000})
    assert sum(made.partition(EXACT_PLAN, {"max_num_batched_tokens": 512})) == 36


def test_reserved_memory_moves_layers_away() -> None:
    """Field report 11: two equal cards, one of which drives a desktop."""
    cluster = {"nodes": 1, "gpus_per_node": 2, "gpu": "RTX-4090", "reserved_gib": [12, 0]}
    posed = problem(cluster=cluster, parallel={"tp": 1, "pp": 2})
    made = Planner(posed, stage_bounds(2, 36), [])
    most_memory = made.partition(FRONT_PLANS[-1], {})
    assert most_memory[0] < most_memory[1]
