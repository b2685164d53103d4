"""The simulator as a driver: refuses in the engine's order, with the figure by which a candidate misses."""

from __future__ import annotations

import pytest

from partitune.candidate import Candidate, FlagValue, Outcome
from partitune.engines.vllm.flags import VLLM_FLAGS
from partitune.execution.driver import MEMORY_CONSTRAINT, RULES_CONSTRAINT, run
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.planning.resolved_candidate import ResolvedCandidate
from tests.builders import shipped_problem
from tests.contracts.driver import DriverContract


class TestSimulatorDriver(DriverContract):
    def driver(self) -> SimulatorDriver:
        return SimulatorDriver(shipped_problem("tiny"))

    def good(self) -> Candidate:
        return Candidate((20, 16), {"max_num_batched_tokens": 512})

    def bad(self) -> Candidate:
        return Candidate((20, 16), {"max_num_batched_tokens": 10**7})


def test_sixteen_layers_of_kimi_k3_do_not_fit_two_h200() -> None:
    """A layer weighs 17 GB (measured.md B): 16 are 127 GiB on a pair of 139.72 GiB cards of which 95 % may be used."""
    driver = SimulatorDriver(shipped_problem("kimi-k3-pp8-tp2-h200"))
    result = run(driver, Candidate((7, 11, 11, 11, 11, 11, 15, 16)))
    assert result.outcome is Outcome.INFEASIBLE
    assert result.reason.startswith("stage 7 (H200): ")
    assert 1 < result.constraints[MEMORY_CONSTRAINT] < 10
    assert run(driver, Candidate((11, 11, 12, 12, 12, 12, 12, 11))).outcome is Outcome.OK


def test_the_grade_is_a_slope() -> None:
    driver = SimulatorDriver(shipped_problem("kimi-k3-pp8-tp2-h200"))
    missing = [
        run(driver, Candidate((*rest, last))).constraints[MEMORY_CONSTRAINT]
        for rest, last in (((7, 11, 11, 11, 11, 11, 15), 16), ((6, 11, 11, 11, 11, 11, 15), 17), ((6,) + (11,) * 6, 21))
    ]
    assert missing == sorted(missing)
    assert missing[1] - missing[0] == pytest.approx(8, abs=1.5)  # one more layer, half of its 17 GB on each card


def test_a_rule_of_the_engine_comes_before_memory_and_counts() -> None:
    driver = SimulatorDriver(shipped_problem("tiny"))
    flags: dict[str, FlagValue] = {"max_num_batched_tokens": 64, "max_num_seqs": 128}
    result = run(driver, Candidate((18, 18), flags))
    assert result.reason.startswith("the engine refuses this: max_num_batched_tokens 64 must be at least max_num_seqs")
    assert result.constraints == {RULES_CONSTRAINT: 1.0}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_request_longer_than_the_models_length_is_refused_under_those_flags(engine: str) -> None:
    flag = {"vllm": "max_model_len", "sglang": "context_length"}[engine]
    result = run(SimulatorDriver(shipped_problem("tiny", engine__name=engine)), Candidate((18, 18), {flag: 40}))
    assert result.outcome is Outcome.INFEASIBLE
    assert "output tokens exceed max_model_len 40" in result.reason


def test_a_request_longer_than_the_cache_says_which_stage_and_by_how_much() -> None:
    driver = SimulatorDriver(shipped_problem("tiny", engine__flags__kv_cache_memory_bytes=1 << 30))
    result = run(driver, Candidate((18, 18)))
    assert "needs 2.81 GiB there" in result.reason  # 40960 tokens x 18 layers x 8 KV heads x 2 x 128 x 2 B
    assert result.constraints[MEMORY_CONSTRAINT] == pytest.approx(1.81, abs=0.02)


def test_a_missed_limit_is_infeasible_and_keeps_its_figures() -> None:
    driver = SimulatorDriver(shipped_problem("tiny", slo__ttft_p99_ms=10))
    result = run(driver, Candidate((18, 18)))
    assert result.outcome is Outcome.INFEASIBLE
    value = result.metric("ttft_p99_ms")
    assert value is not None
    assert result.constraints["ttft_p99_ms"] == pytest.approx((value - 10) / 10)
    assert f"{100 * (value - 10) / 10:.1f} %" in result.reason


class TestSglangInTheSimulator(DriverContract):
    def driver(self) -> SimulatorDriver:
        return SimulatorDriver(shipped_problem("kimi-k3-pp8-tp2-sglang"))

    def good(self) -> Candidate:
        return Candidate((11, 11, 11, 12, 12, 12, 12, 12), {"pp_max_micro_batch_size": 4})

    def bad(self) -> Candidate:
        return Candidate((11, 11, 11, 12, 12, 12, 12, 12), {"max_total_tokens": 200})


def test_what_sglang_cannot_hold_is_graded_in_gib_of_the_largest_cell() -> None:
    posed = shipped_problem("kimi-k3-pp8-tp2-sglang")
    missing = []
    for tokens in (200, 100):
        result = run(SimulatorDriver(posed), Candidate(posed.default_partition, {"max_total_tokens": tokens}))
        assert result.outcome is Outcome.INFEASIBLE
        assert "needs 290 KV tokens" in result.reason  # 256 + 32, and what the engine keeps free
        missing.append(result.constraints[MEMORY_CONSTRAINT])
    assert missing[1] - missing[0] == pytest.approx(100 * 4 * 1152 / 2**30)  # four latent layers on the last stage


def test_sglangs_kv_is_the_least_free_memory_over_the_largest_cell() -> None:
    """SGLang 0.5.23 `kv_cache_configurator.py`: here the two are different stages."""
    posed = shipped_problem("kimi-k3-pp8-tp2-sglang", engine__flags__max_mamba_cache_size=300)
    candidate = Candidate((12, 12, 11, 11, 11, 11, 14, 11))
    free = [int(stage.kv_bytes) for stage in ResolvedCandidate(posed, candidate).memory]
    found = SimulatorDriver(posed).measure(candidate)
    latent = [stage.kinds["mla+moe"] for stage in found.stages]
    assert (free.index(min(free)), latent.index(max(latent))) == (6, 7)
    state = 48 * 128 * 128 * 4 + 3 * 3 * 48 * 128 * 2  # one linear layer on one of two ranks: recurrent and convolution
    images = 100 << 20  # and one slot of the states is padding
    assert found.kv_tokens == (free[6] - images - 301 * (14 - latent[6]) * state) // (latent[7] * 1152)


def test_what_is_not_simulated_of_sglang_is_refused_by_name() -> None:
    posed = shipped_problem("kimi-k3-pp8-tp2-sglang")
    result = run(SimulatorDriver(posed), Candidate(posed.default_partition, {"schedule_policy": "lof"}))
    assert result.outcome is Outcome.INFEASIBLE
    assert result.reason == "SGLang: schedule_policy lof is not simulated; fcfs, lpm and dfs-weight are"


@pytest.mark.parametrize("dtype", VLLM_FLAGS["kv_cache_dtype"].choices)
def test_item_15_no_cache_type_of_the_engine_is_an_internal_error(dtype: str) -> None:
    """One choice whose layout is not modelled is a candidate that is left out with its reason, not a broken driver."""
    result = run(SimulatorDriver(shipped_problem("tiny")), Candidate((18, 18), {"kv_cache_dtype": dtype}))
    assert result.outcome in {Outcome.OK, Outcome.INFEASIBLE}
    if result.outcome is Outcome.INFEASIBLE:
        assert repr(dtype) in result.reason
        assert result.constraints == {RULES_CONSTRAINT: 1.0}


@pytest.mark.parametrize(
    ("dtype", "times"),
    [("fp8_e4m3", 2.0), ("fp8_e5m2", 2.0), ("bfloat16", 1.0), ("nvfp4", 1152 / 324), ("fp4_mx_block16", 1152 / 324)],
)
def test_item_9_sglangs_cache_types_change_its_pool(dtype: str, times: float) -> None:
    """A latent entry of 1,152 bytes becomes 576, or 288 of values and 36 of scales; before, all types were alike."""
    driver, tokens = SimulatorDriver(shipped_problem("kimi-k3-pp8-tp2-sglang")), []
    for each in (dtype, "auto"):
        result = run(driver, Candidate(driver.problem.default_partition, {"kv_cache_dtype": each}))
        assert result.outcome is Outcome.OK, result.reason
        tokens.append(result.metric("kv_tokens") or 0.0)
    assert tokens[0] / tokens[1] == pytest.approx(times, rel=0.01)


def test_item_15_a_type_that_sglang_refuses_is_left_out_with_its_reason() -> None:
    driver = SimulatorDriver(shipped_problem("kimi-k3-pp8-tp2-sglang"))
    result = run(driver, Candidate(driver.problem.default_partition, {"kv_cache_dtype": "mxfp8"}))
    assert result.outcome is Outcome.INFEASIBLE
    assert "SGLang does not start with 'mxfp8' here: FA4" in result.reason
