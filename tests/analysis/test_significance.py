"""Verdicts on repeated runs: how often they are wrong, and how often they find what is there."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitune.analysis.comparison import NO_DIFFERENCE, WORSE
from partitune.analysis.significance import confidences, paired_gain, pairs_needed, survivors
from partitune.candidate import Objective

THROUGHPUT = Objective("output_throughput_tok_s", "maximize")
TTFT = Objective("ttft_p99_ms", "minimize")
ZONE = 0.01


def test_the_interval_of_three_pairs_is_that_of_the_t_table() -> None:
    # log ratios 0.01, 0.02, 0.03: mean 0.02, s 0.01; t(0.975, 2) = 4.3027 (any table) -> 0.02 ± 0.024842
    found = paired_gain(THROUGHPUT, [100.0] * 3, [100 * math.exp(x) for x in (0.01, 0.02, 0.03)], confidence=0.95)
    assert found is not None
    assert (math.log1p(found.low), math.log1p(found.high)) == pytest.approx((-0.004842, 0.044842), abs=2e-6)
    assert found.verdict(ZONE) == NO_DIFFERENCE


def test_less_is_better_where_the_objective_says_so() -> None:
    found = paired_gain(TTFT, [100.0, 102.0, 99.0], [80.0, 81.0, 79.5])
    assert found is not None
    assert found.low > 0.2
    assert found.verdict(ZONE).startswith("better by 25.2 % (")
    back = paired_gain(TTFT, [80.0, 81.0, 79.5], [100.0, 102.0, 99.0])
    assert back is not None
    assert back.verdict(ZONE) == WORSE


def test_a_sure_gain_inside_the_zone_is_no_difference() -> None:
    found = paired_gain(THROUGHPUT, [100.0, 100.0, 100.0], [100.5, 100.51, 100.49])
    assert found is not None
    assert found.low > 0
    assert found.verdict(ZONE) == NO_DIFFERENCE
    assert found.verdict(0.001).startswith("better by 0.5 % (")


@pytest.mark.parametrize("values", [([], []), ([1.0], [2.0]), ([1.0, 0.0], [1.0, 1.0])])
def test_what_cannot_be_compared_has_no_gain(values: tuple[list[float], list[float]]) -> None:
    assert paired_gain(THROUGHPUT, *values) is None


def test_runs_that_are_not_paired_are_a_fault() -> None:
    with pytest.raises(ValueError, match="zip"):
        paired_gain(THROUGHPUT, [1.0, 2.0], [1.0])


@pytest.mark.parametrize("pairs", [3, 5, 8])
def test_equal_deployments_are_called_equal_in_95_of_100(pairs: int) -> None:
    random = np.random.default_rng(20261130)
    equal = 0
    for _ in range(2000):
        a, b = np.exp(random.normal(0, 0.10, (2, pairs)))
        found = paired_gain(THROUGHPUT, a.tolist(), b.tolist())
        assert found is not None
        equal += found.verdict(ZONE) == NO_DIFFERENCE
    assert equal / 2000 >= 0.95


@pytest.mark.parametrize("shared", [0.0, 0.5, 0.95])  # correlation of the objectives
@pytest.mark.parametrize("objectives", [2, 4, 6])
def test_more_objectives_are_no_more_chances_to_be_fooled(objectives: int, shared: float) -> None:
    """1.9 / 3.6 / 6.9 / 11.1 % of finals called equal deployments different with 1 / 2 / 4 / 6 objectives."""
    random = np.random.default_rng(20261201)
    different = {1: 0, objectives: 0}
    for _ in range(2000):
        common, own = random.normal(0, 0.05, (2, 5, 1)), random.normal(0, 0.05, (2, 5, objectives))
        a, b = np.exp(math.sqrt(shared) * common + math.sqrt(1 - shared) * own)
        for count in different:
            pairs = (
                paired_gain(THROUGHPUT, a[:, i].tolist(), b[:, i].tolist(), confidence)
                for i, confidence in enumerate(confidences(count))
            )
            different[count] += any(pair is not None and pair.verdict(ZONE) != NO_DIFFERENCE for pair in pairs)
    assert different[objectives] <= different[1] + 2 * math.sqrt(different[1])


def test_a_gain_of_5_percent_at_2_percent_noise_is_found_with_the_pairs_the_rule_asks_for() -> None:
    pairs = pairs_needed(0.02, 0.05)
    random = np.random.default_rng(5)
    found = 0
    for _ in range(2000):
        a, b = np.exp(random.normal(0, 0.02, (2, pairs)))
        one = paired_gain(THROUGHPUT, a.tolist(), (1.05 * b).tolist())
        assert one is not None
        found += one.verdict(ZONE).startswith("better")
    assert found / 2000 >= 0.8 - 2 * math.sqrt(0.8 * 0.2 / 2000)


@pytest.mark.parametrize(("noise", "gain", "normal"), [(0.01, 0.01, 16), (0.02, 0.02, 16), (0.04, 0.02, 63)])
def test_the_rule_is_the_normal_one_plus_what_few_pairs_cost(noise: float, gain: float, normal: int) -> None:
    # Normal figures: n = 2((1.96 + 0.84) noise / gain)²; the t test takes two or three pairs more.
    assert normal <= pairs_needed(noise, gain, confidence=0.95) <= normal + 4


def test_a_gain_of_nothing_cannot_be_planned_for() -> None:
    with pytest.raises(ValueError, match="above 0"):
        pairs_needed(0.02, 0.0)


@given(st.lists(st.lists(st.floats(1, 1e6), max_size=4), max_size=8), st.integers(0, 8))
def test_survivors_are_the_best_by_mean(runs: list[list[float]], keep: int) -> None:
    kept = survivors(THROUGHPUT, runs, keep)
    assert len(kept) == min(keep, sum(bool(own) for own in runs))
    means = {i: np.mean(own) for i, own in enumerate(runs) if own}
    worst = min((means[i] for i in kept), default=math.inf)
    assert all(means[i] <= worst or math.isclose(means[i], worst) for i in means if i not in kept)
