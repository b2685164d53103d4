"""Legality, as reasons and as windows: the two forms must agree."""

from __future__ import annotations

from itertools import accumulate, combinations
from typing import Any

import numpy as np
import pytest

from partitune.engines.vllm.engine import ENGINE as VLLM
from partitune.errors import InfeasibleSpace
from partitune.models.architecture import Architecture
from partitune.planning.planner import allowed_windows, stage_bounds
from tests.small_models import architecture, kimi_k3


def reasons_of(model: Architecture, partition: tuple[int, ...]) -> tuple[str, ...]:
    return VLLM.cut_limits(model, "0.33.0").reasons(model, partition)


def test_kimi_k3_stage_of_linear_layers_only() -> None:
    # The engine keeps such a stage at block size 16 and capacity falls six-fold (vLLM 0.33, run).
    reasons = reasons_of(kimi_k3(), (3, 13, 13, 13, 13, 13, 13, 12))
    assert len(reasons) == 1
    assert "stage 0 (layers 0-2) has no layer with KV per token" in reasons[0]
    assert reasons_of(kimi_k3(), (11, 11, 12, 12, 12, 12, 12, 11)) == ()


def test_every_reason_is_given() -> None:
    toy = architecture("ffffff", shared_kv_cuts=frozenset({2}))
    reasons = reasons_of(toy, (2, 0, 3))
    assert len(reasons) == 4
    assert "sums to 5, toy has 6 layers" in reasons[0]
    assert reasons[1] == "stage 1 has no layer"
    assert all("the cut before layer 2 parts layers" in reason for reason in reasons[2:])


@pytest.mark.parametrize(
    ("kinds", "cuts"), [("ffffffff", frozenset()), ("lllflllf", frozenset()), ("fwfwfwfw", {3, 5}), ("l-f-l-f-", {4})]
)
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_windows_and_reasons_agree(kinds: str, cuts: frozenset[int], stages: int) -> None:
    toy = architecture(kinds, shared_kv_cuts=frozenset(cuts))
    layers = len(kinds)
    windows = allowed_windows(toy, VLLM.cut_limits(toy, "0.33.0"), stage_bounds(stages, layers))
    for inner in combinations(range(1, layers), stages - 1):
        ends = (*inner, layers)
        starts = (0, *inner)
        partition = tuple(end - start for start, end in zip(starts, ends, strict=True))
        assert tuple(accumulate(partition)) == ends
        allowed = all(windows[stage, i, j] for stage, (i, j) in enumerate(zip(starts, ends, strict=True)))
        assert allowed == (reasons_of(toy, partition) == ())


def test_bounds_hold_in_windows() -> None:
    toy = architecture("f" * 12)
    windows = allowed_windows(toy, VLLM.cut_limits(toy, "0.33.0"), stage_bounds(3, 12, fewest=2, most=6, pinned={1: 5}))
    starts, ends = np.nonzero(windows[1])
    assert set(ends - starts) == {5}
    assert set(np.nonzero(windows[0])[1]) == {2, 3, 4, 5, 6}
    assert set(np.nonzero(windows[2])[1]) == {12}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"stages": 8, "layers": 5}, "hold at least 8 layers, the model has 5"),
        ({"stages": 2, "layers": 48, "most": 20}, "hold at most 40 layers, the model has 48"),
        ({"stages": 2, "layers": 48, "fewest": 30, "most": 20}, "stage 0 must have between 30 and 20"),
        ({"stages": 2, "layers": 48, "pinned": {0: 4, 1: 40}}, "hold at most 44 layers"),
    ],
)
def test_bounds_that_admit_nothing(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InfeasibleSpace, match=message):
        stage_bounds(**asked)
