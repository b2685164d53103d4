"""The front against its definition, hypervolume against enumeration, the knee by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitune.analysis.pareto import front, hypervolume, knee, reference_point, volume
from partitune.candidate import Objective, Outcome, Result
from tests.builders import trial_with

THROUGHPUT = Objective("output_throughput_tok_s", "maximize")
TTFT = Objective("ttft_p99_ms", "minimize")
TPOT = Objective("tpot_p99_ms", "minimize")
TWO = [THROUGHPUT, TTFT]
THREE = [*TWO, TPOT]
NAMES = [objective.metric for objective in THREE]


def trial(*values: float, outcome: Outcome = Outcome.OK) -> Result:
    return trial_with(dict(zip(NAMES, values, strict=False)), outcome=outcome)


def trials(*rows: tuple[float, ...]) -> list[Result]:
    return [trial(*row) for row in rows]


# Few distinct values: ties, duplicates and dominated points are common.
grid = st.integers(0, 4)
rows = st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[grid] * width), min_size=1, max_size=12))


def better_or_equal(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """By the definition: throughput no less, latencies no more."""
    return one[0] >= other[0] and all(a <= b for a, b in zip(one[1:], other[1:], strict=True))


@given(rows)
def test_the_front_is_the_definition(rows: list[tuple[float, ...]]) -> None:
    expected = {
        index
        for index, row in enumerate(rows)
        if not any(better_or_equal(other, row) and other != row for other in rows) and rows.index(row) == index
    }
    found = front(trials(*rows), THREE[: len(rows[0])])
    assert set(found) == expected
    assert len(found) == len(expected)
    assert found == sorted(found, key=lambda index: (-rows[index][0], *rows[index][1:]))


@given(rows, st.randoms(use_true_random=False))
def test_the_order_of_trials_does_not_change_the_values_on_the_front(
    rows: list[tuple[float, ...]], random: object
) -> None:
    objectives = THREE[: len(rows[0])]
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert [rows[i] for i in front(trials(*rows), objectives)] == [
        shuffled[i] for i in front(trials(*shuffled), objectives)
    ]


def test_of_equal_trials_the_first_is_shown() -> None:
    same = trials((100, 50), (100, 50), (90, 40), (100, 50))
    assert front(same, TWO) == [0, 2]
    assert front(same, [THROUGHPUT]) == [0]
    assert front(same, [TTFT]) == [2]


def test_a_broken_run_with_a_tempting_latency_never_wins() -> None:
    # The trial that auto-tuning-vllm issue 65 stored as complete, beside a real one.
    broken, real = trial(0.00045, 1.7, outcome=Outcome.INVALID), trial(2083, 84.9)
    for results in ([broken, real], [real, broken]):
        expected = results.index(real)
        assert front(results, TWO) == [expected]
        assert front(results, [TTFT]) == [expected]
        assert knee(results, TWO) == expected


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_only_ok_trials_compete(outcome: Outcome) -> None:
    assert front([trial(1e9, 0.0, outcome=outcome)], TWO) == []
    assert knee([trial(1e9, 0.0, outcome=outcome)], TWO) is None
    assert front([trial(1e9, 0.0, outcome=outcome)], [TTFT]) == []
    assert hypervolume([trial(1e9, 0.0, outcome=outcome)], TWO) == 0.0


def test_a_trial_without_one_of_the_objectives_does_not_compete() -> None:
    results = [trial(1e9), trial(100, 50), trial(math.inf, 50), trial(100, math.nan)]
    assert front(results, TWO) == [1]
    assert front(results, [THROUGHPUT]) == [0]


def test_the_knee_is_the_trial_nearest_to_the_ideal() -> None:
    # Scaled to the front: (0, 1), (0.2, 0.3), (0.6, 0.1), (1, 0) away from the best of each.
    bend = trials((1000, 200), (900, 130), (700, 110), (500, 100), (600, 150))
    assert knee(bend, TWO) == 1
    assert knee(bend, [THROUGHPUT]) == 0
    assert knee(bend, [TTFT]) == 3


def test_of_two_ends_the_knee_is_the_better_by_the_first_objective() -> None:
    assert knee(trials((500, 100), (1000, 200)), TWO) == 1
    assert knee(trials((500, 100), (1000, 200)), [TTFT, THROUGHPUT]) == 0


def test_a_hair_in_one_objective_does_not_outweigh_all_of_another() -> None:
    assert knee(trials((1001, 100), (1000.5, 60), (1000, 10)), TWO) == 2


@given(rows)
def test_the_knee_is_on_the_front(rows: list[tuple[float, ...]]) -> None:
    objectives = THREE[: len(rows[0])]
    assert knee(trials(*rows), objectives) in front(trials(*rows), objectives)


def cells(points: Sequence[tuple[int, ...]], corner: int) -> int:
    """Unit cells below the corner that some point dominates, counted one by one."""
    return sum(
        any(all(a <= b for a, b in zip(point, cell, strict=True)) for point in points)
        for cell in itertools.product(range(corner), repeat=len(points[0]))
    )


@given(
    st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[st.integers(0, 5)] * width), min_size=1, max_size=9))
)
def test_hypervolume_is_the_count_of_dominated_cells(points: list[tuple[int, ...]]) -> None:
    floats = [tuple(float(x) for x in point) for point in points]
    assert volume(floats, (5.0,) * len(points[0])) == cells(points, 5)


@given(rows, st.integers(0, 11))
def test_a_dominated_or_repeated_trial_adds_no_volume(rows: list[tuple[float, ...]], which: int) -> None:
    objectives = THREE[: len(rows[0])]
    reference = (-1.0, 6.0, 6.0)[: len(objectives)]
    repeated = [*rows, rows[which % len(rows)]]
    kept = [rows[index] for index in front(trials(*rows), objectives)]
    all_of_them = hypervolume(trials(*rows), objectives, reference)
    assert hypervolume(trials(*repeated), objectives, reference) == all_of_them
    assert hypervolume(trials(*kept), objectives, reference) == pytest.approx(all_of_them)


def test_the_reference_is_in_the_units_of_the_metrics() -> None:
    first, second_alone = (100 - 80) * (50 - 20), (90 - 80) * (20 - 10)
    assert hypervolume(trials((100, 20), (90, 10)), TWO, (80, 50)) == first + second_alone


def test_a_trial_outside_the_reference_adds_nothing() -> None:
    assert hypervolume(trials((100, 60), (70, 10), (80, 50)), TWO, (80, 50)) == 0.0


def test_the_default_reference_is_a_tenth_of_the_range_beyond_the_worst() -> None:
    results = trials((1000, 100), (500, 50), (0, 75))
    assert reference_point(results, TWO) == pytest.approx((-100, 105))
    assert hypervolume(results, TWO) == pytest.approx(1100 * 5 + 600 * 50)
    assert reference_point([], TWO) is None
