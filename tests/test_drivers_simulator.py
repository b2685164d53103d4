"""The simulator as a driver: refuses in the engine's order, with the figure by which a candidate misses."""

from __future__ import annotations

import pytest

from partitune.drivers.interface import MEMORY_CONSTRAINT, RULES_CONSTRAINT, run
from partitune.drivers.simulator import SimulatorDriver
from partitune.errors import SpecError
from partitune.problem import Problem, pose
from partitune.result import Candidate, Knob, Outcome
from partitune.spec.overrides import with_settings
from partitune.spec.search_space import load_search_space
from tests.contracts.driver import DriverContract


def problem(space: str, **settings: Knob) -> Problem:
    keys = {name.replace("__", "."): value for name, value in settings.items()}
    return pose(with_settings(load_search_space(space), keys))


class TestSimulatorDriver(DriverContract):
    def driver(self) -> SimulatorDriver:
        return SimulatorDriver(problem("tiny"))

    def good(self) -> Candidate:
        return Candidate((20, 16), {"max_num_batched_tokens": 512})

    def bad(self) -> Candidate:
        return Candidate((20, 16), {"max_num_batched_tokens": 10**7})


def test_sixteen_layers_of_kimi_k3_do_not_fit_two_h200() -> None:
    """A layer weighs 17 GB (measured.md B): 16 are 127 GiB on a pair of 139.72 GiB cards of which 95 % may be used."""
    driver = SimulatorDriver(problem("kimi-k3-pp8-tp2-h200"))
    result = run(driver, Candidate((7, 11, 11, 11, 11, 11, 15, 16)))
    assert result.outcome is Outcome.INFEASIBLE
    assert result.reason.startswith("stage 7 (H200): ")
    assert 1 < result.constraints[MEMORY_CONSTRAINT] < 10
    assert run(driver, Candidate((11, 11, 12, 12, 12, 12, 12, 11))).outcome is Outcome.OK


def test_the_grade_is_a_slope() -> None:
    driver = SimulatorDriver(problem("kimi-k3-pp8-tp2-h200"))
    missing = [
        run(driver, Candidate((*rest, last))).constraints[MEMORY_CONSTRAINT]
        for rest, last in (((7, 11, 11, 11, 11, 11, 15), 16), ((6, 11, 11, 11, 11, 11, 15), 17), ((6,) + (11,) * 6, 21))
    ]
    assert missing == sorted(missing)
    assert missing[1] - missing[0] == pytest.approx(8, abs=1.5)  # one more layer, half of its 17 GB on each card


def test_a_rule_of_the_engine_comes_before_memory_and_counts() -> None:
    driver = SimulatorDriver(problem("tiny"))
    knobs: dict[str, Knob] = {"max_num_batched_tokens": 64, "max_num_seqs": 128}
    result = run(driver, Candidate((18, 18), knobs))
    assert result.reason.startswith("the engine refuses this: max_num_batched_tokens 64 must be at least max_num_seqs")
    assert result.constraints == {RULES_CONSTRAINT: 1.0}


def test_a_request_longer_than_the_cache_says_which_stage_and_by_how_much() -> None:
    driver = SimulatorDriver(problem("tiny", engine__flags__kv_cache_memory_bytes=1 << 30))
    result = run(driver, Candidate((18, 18)))
    assert "needs 2.81 GiB there" in result.reason  # 40960 tokens x 18 layers x 8 KV heads x 2 x 128 x 2 B
    assert result.constraints[MEMORY_CONSTRAINT] == pytest.approx(1.81, abs=0.02)


def test_a_missed_limit_is_infeasible_and_keeps_its_figures() -> None:
    driver = SimulatorDriver(problem("tiny", slo__ttft_p99_ms=10))
    result = run(driver, Candidate((18, 18)))
    assert result.outcome is Outcome.INFEASIBLE
    value = result.metric("ttft_p99_ms")
    assert value is not None
    assert result.constraints["ttft_p99_ms"] == pytest.approx((value - 10) / 10)
    assert f"{100 * (value - 10) / 10:.1f} %" in result.reason


def test_an_engine_without_a_simulator_is_refused_at_once() -> None:
    with pytest.raises(SpecError, match="engine sglang cannot be simulated yet, only vllm can"):
        SimulatorDriver(problem("tiny", engine__name="sglang", engine__version="0.5.23"))
