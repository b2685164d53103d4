"""When a run ends: hours and GPU-hours, and what the search leaves of them to the final."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from partitune.candidate import Candidate, Outcome, Result
from partitune.search.budget import Progress, StoppingRule


def after(hours: float, trials: int, gpus: int = 0) -> Progress:
    """A run in which `trials` trials took all of `hours`, one at a time."""
    progress = Progress(gpus=gpus, began_s=time.monotonic() - 3600 * hours)
    for _ in range(trials):
        progress.count(Result(Candidate((1,)), Outcome.OK, duration_s=3600 * hours / trials), 0)
    return progress


@pytest.mark.parametrize(
    ("hours", "slots", "later_runs", "is_spent"),
    [
        (5.9, 1, 0, False),
        (6.1, 1, 0, True),
        (2.9, 1, 16, False),
        (3.1, 1, 16, True),  # ten trials took 0.31 hours each: 16 runs take 5, and no more than half is kept
        (5.0, 1, 1, False),
        (5.6, 1, 1, True),
        (5.6, 4, 1, False),
    ],
)
def test_hours(hours: float, slots: int, later_runs: int, is_spent: bool) -> None:
    budget = StoppingRule(100, hours=6, later_runs=later_runs)
    said = budget.spent(after(hours, 10), slots)
    assert said == ("" if not is_spent else f"the budget of 6 hours is spent{' but for the final' * bool(later_runs)}")


@pytest.mark.parametrize(
    ("hours", "later_runs", "is_spent"), [(1.9, 0, False), (2.1, 0, True), (1.5, 2, False), (1.7, 2, True)]
)
def test_gpu_hours(hours: float, later_runs: int, is_spent: bool) -> None:
    """Four GPUs, a budget of eight: two hours."""
    said = StoppingRule(100, gpu_hours=8, later_runs=later_runs).spent(after(hours, 10, gpus=4))
    assert bool(said) == is_spent


def test_before_anything_ran_nothing_is_kept() -> None:
    assert StoppingRule(100, hours=1, gpu_hours=1, later_runs=50).spent(Progress(gpus=8)) == ""


def test_what_ended_is_counted() -> None:
    progress = after(2.0, 4, gpus=3)
    assert progress.outcomes == Counter({Outcome.OK: 4})
    assert (progress.gpu_hours, progress.busy_s) == pytest.approx((6.0, 7200.0))
