"""Runs of a candidate beyond its trial, and windows that are not worth running, on the fake engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from partitune.candidate import Outcome
from partitune.execution.driver import run
from tests.fake_setup import Bench, candidate, fake_setup


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    assert made.orphans() == []


def windows(bench: Bench) -> list[str]:
    return sorted(path.name for path in (bench.folder / "trials").glob("*/*.json"))


def test_a_repeat_answers_another_load_and_says_which(bench: Bench) -> None:
    made = fake_setup(benchmark={"windows": 2, "seed": 7, "warmup_requests": 0})
    result = run(bench.driver(made), candidate(), repeat=3)
    assert (result.outcome, result.repeat) == (Outcome.OK, 3)
    assert windows(bench) == ["window-13.json", "window-14.json"]  # 7 and 8 are the trial's, 9 to 12 those of 1 and 2


def test_seeds_of_repeats_never_meet_and_the_warm_up_has_its_own() -> None:
    made = fake_setup(benchmark={"windows": 3, "seed": 1})
    found = [seed for repeat in range(50) for seed in made.repeated(repeat).loads[0].window_seeds]
    assert found == list(range(1, 151))
    assert made.repeated(49).loads[0].warmup_seed not in found


@pytest.mark.parametrize(("limit", "made"), [(1e-3, 1), (1e9, 2)])
def test_a_window_that_is_hopeless_ends_the_trial_graded(bench: Bench, limit: float, made: int) -> None:
    three = fake_setup(benchmark={"windows": 2, "warmup_requests": 0}, fresh_servers=1)
    strict = replace(three, problem=replace(three.problem, limits={"ttft_p99_ms": limit}))
    result = run(bench.driver(strict), candidate())
    assert len(windows(bench)) == made
    if made == 1:
        assert result.outcome is Outcome.INFEASIBLE
        assert result.constraints["ttft_p99_ms"] > 1
    else:
        assert result.outcome is Outcome.OK
