"""The solver against exhaustive enumeration: every composition of small chains."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from partitune.engines.vllm.engine import ENGINE as VLLM
from partitune.errors import InfeasibleSpace
from partitune.planning.planner import allowed_windows, stage_bounds
from partitune.planning.solver import (
    fluid_bound_s,
    minimise_bottleneck,
    minimise_sum,
    minimise_ttft,
    pareto_front,
    stage_tensor,
)
from tests.small_models import architecture

Floats = NDArray[np.float64]


def compositions(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    for inner in combinations(range(1, layers), stages - 1):
        ends = (*inner, layers)
        yield tuple(end - start for start, end in zip((0, *inner), ends, strict=True))


def along(tensor: Floats, partition: tuple[int, ...]) -> list[float]:
    values, start = [], 0
    for stage, length in enumerate(partition):
        values.append(float(tensor[stage, start, start + length]))
        start += length
    return values


@st.composite
def chains(draw: st.DrawFn) -> tuple[Floats, Floats]:
    """Unequal stages, fixed parts, forbidden windows (memory) and capacities that fall with length."""
    stages = draw(st.integers(1, 4))
    layers = draw(st.integers(stages, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layer_s = rng.integers(1, 6, layers).astype(np.float64) * rng.integers(1, 4, (stages, 1)).astype(np.float64)
    times = stage_tensor(layer_s, rng.integers(0, 5, stages).astype(np.float64))
    times[rng.random(times.shape) < draw(st.sampled_from([0.0, 0.2, 0.5]))] = np.inf
    capacity = rng.integers(1, 9, times.shape).astype(np.float64)
    return times, capacity


@settings(max_examples=400, deadline=None)
@given(chains())
def test_equals_enumeration(chain: tuple[Floats, Floats]) -> None:
    times, capacity = chain
    stages, layers = len(times), times.shape[1] - 1
    all_of_them = [(along(times, p), along(capacity, p), p) for p in compositions(layers, stages)]
    legal = [(t, c, p) for t, c, p in all_of_them if np.isfinite(t).all()]
    if not legal:
        with pytest.raises(InfeasibleSpace, match="stage"):
            minimise_bottleneck(times)
        return
    found = minimise_bottleneck(times)
    best = min(max(t) for t, _, _ in legal)
    assert found.bottleneck_s == best
    assert found.partition in [p for _, _, p in legal]
    squares = min(sum(x * x for x in t) for t, _, _ in legal if max(t) == best)
    assert sum(x * x for x in along(times, found.partition)) == squares

    assert minimise_sum(times).total_s == min(sum(t) for t, _, _ in legal)
    for chunks in (1, 3, 16):
        ours = minimise_ttft(times, chunks)
        assert ours.total_s + (chunks - 1) * ours.bottleneck_s == pytest.approx(
            min(sum(t) + (chunks - 1) * max(t) for t, _, _ in legal)
        )

    points = {(max(t), min(c)) for t, c, _ in legal}
    front = sorted(a for a in points if not any(b[0] <= a[0] and b[1] >= a[1] and b != a for b in points))
    assert [(one.bottleneck_s, one.capacity) for one in pareto_front(times, capacity)] == front


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(4, 8))
def test_nothing_beats_the_fluid_bound(seed: int, stages: int, layers: int) -> None:
    rng = np.random.default_rng(seed)
    layer_s, edge_s = rng.uniform(0.1, 2, (stages, layers)), rng.uniform(0, 1, stages)
    bound = fluid_bound_s(layer_s, edge_s)
    assert bound <= minimise_bottleneck(stage_tensor(layer_s, edge_s)).bottleneck_s * (1 + 1e-9)


def test_fluid_bound_of_equal_stages_is_the_mean() -> None:
    assert fluid_bound_s(np.full((4, 10), 1.5), np.full(4, 0.25)) == pytest.approx(10 * 1.5 / 4 + 0.25)


def test_equal_layers_are_spread_evenly_despite_rounding() -> None:
    layer_s = np.full((8, 93), 0.1)
    found = minimise_bottleneck(stage_tensor(layer_s, np.zeros(8)))
    assert sorted(found.partition) == [11, 11, 11, 12, 12, 12, 12, 12]


def test_a_slow_stage_and_a_heavy_head_get_fewer_layers() -> None:
    # Field report 11: of two equal GPUs one also serves a desktop. Here: stage 0 runs at half speed, the head costs 6.
    layer_s = np.ones((4, 40)) * np.array([[2.0], [1.0], [1.0], [1.0]])
    found = minimise_bottleneck(stage_tensor(layer_s, np.array([0.0, 0.0, 0.0, 6.0])))
    assert found.bottleneck_s == 14.0  # 13.1 if layers could be cut
    assert found.partition[0] <= 7
    assert found.partition[3] <= 8


def test_published_kv_balanced_split_has_lighter_edges() -> None:
    # Field report 2 (vLLM PR 6920): Llama-3-70B-FP8 on 8 L4; embedding and head weigh about 2.5 layers each. Without
    # caring for speed, the split that leaves most blocks has fewer layers on the first and the last stage.
    layers, stages, layer_gb, edge_gb, free_gb = 80, 8, 0.86, 2.1, 20.0
    start, end = np.ogrid[: layers + 1, : layers + 1]
    edge = np.array([edge_gb, *[0.0] * (stages - 2), edge_gb])[:, None, None]
    kv = (free_gb - edge - layer_gb * (end - start)[None]) / np.maximum(end - start, 1)[None]
    times = stage_tensor(np.ones((stages, layers)), np.zeros(stages))
    most = pareto_front(times, kv)[-1]
    assert most.partition[0] < min(most.partition[1:-1])
    assert most.partition[-1] < min(most.partition[1:-1])
    assert most.capacity is not None
    assert most.capacity > min(along(kv, (10,) * 8))


def test_infeasible_names_the_stage() -> None:
    toy = architecture("ffff" + "llll" + "ffff")
    windows = allowed_windows(toy, VLLM.cut_limits(toy, "0.33.0"), stage_bounds(3, 12, pinned={0: 4, 1: 4}))
    times = np.where(windows, stage_tensor(np.ones((3, 12)), np.zeros(3)), np.inf)
    with pytest.raises(InfeasibleSpace, match=r"stage 1 of 3 cannot take over .* they reach layer 4 of 12"):
        minimise_bottleneck(times)
    times = stage_tensor(np.ones((3, 12)), np.zeros(3))
    times[2] = np.inf
    with pytest.raises(InfeasibleSpace, match="stage 2 of 3 cannot own any run of layers"):
        pareto_front(times, times)
