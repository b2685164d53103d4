"""Tables that are read between their points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitune.costs.measured.grids import CONTEXTS, SIZES, Grid, Surface

POSITIVE = st.floats(1e-6, 1.0)
STARTS = Grid([1.0 + 0.5 * size for size in SIZES])


def test_a_kernel_that_starts_and_then_works_in_proportion_is_read_exactly() -> None:
    for rows in (1, 3, 100, 5000, 40_000):
        assert STARTS(rows) == pytest.approx(1.0 + 0.5 * rows)
    assert STARTS(0) == 0.0


@given(st.lists(POSITIVE, min_size=len(SIZES), max_size=len(SIZES)), st.floats(1, 32768), st.floats(1, 10_000))
def test_more_rows_never_take_less_whatever_was_measured(seconds: list[float], rows: float, more: float) -> None:
    grid = Grid(seconds)
    assert grid(rows + more) >= grid(rows) * (1 - 1e-12)
    assert all(grid(size) <= found * (1 + 1e-9) for size, found in zip(SIZES, seconds, strict=True))


def test_a_smaller_batch_measured_slower_takes_the_time_of_the_larger() -> None:
    seconds = [1.0] * len(SIZES)
    seconds[3] = 5.0
    assert Grid(seconds)(SIZES[3]) == 1.0


def test_the_hosts_launches_are_taken_off_what_was_timed_eagerly() -> None:
    # 2 ms of launches hide the GPU up to 1000 rows; it does a row in 2 us
    grid = Grid([max(2e-3, 2e-6 * size) for size in SIZES], eager=True)
    for rows in (1, 64, 1024, 8192):
        assert grid(rows) == pytest.approx(2e-6 * rows)


def test_grids_add_up() -> None:
    both = Grid.sum([STARTS, Grid([2.0 * size for size in SIZES])])
    nothing = Grid.sum([])
    assert both is not None
    assert nothing is not None
    assert both(1000) == pytest.approx(1.0 + 2.5 * 1000)
    assert nothing(1000) == 0.0
    assert Grid.sum([STARTS, None]) is None


def plane(rows: float, context: float) -> float:
    return 1.0 + 0.1 * rows + 0.001 * rows * context


PLANE = Surface([plane(rows, context) for rows in SIZES for context in CONTEXTS])


@pytest.mark.parametrize(("rows", "context"), [(1, 1), (100, 700), (3000, 100_000), (50_000, 300_000)])
def test_a_surface_is_read_exactly_where_time_grows_with_rows_and_pairs(rows: int, context: int) -> None:
    assert PLANE(rows, context) == pytest.approx(plane(rows, context))


def test_a_constant_can_be_taken_off_but_time_stays_positive() -> None:
    assert PLANE.less(0.5)(100, 700) == pytest.approx(plane(100, 700) - 0.5)
    assert PLANE.less(1e9)(100, 700) == 0.0


def test_a_past_never_makes_a_prompt_cheaper() -> None:
    # as the tables have it: a prompt with a past is the whole one scaled by pairs, here far below the prompt alone
    alone = [1.0] * len(SIZES)
    table = np.where(np.array(CONTEXTS)[None, :] >= (np.array(SIZES)[:, None] + 1) // 2, 0.01, 1.0)
    surface = Surface.of_prompts(table.ravel().tolist(), alone)
    assert surface(64, 4096) == 1.0
