"""The distance to the limit: one limit a load, a product that multiplies out, formulas that hold in the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from partitune.analysis.limits import Distance, distance
from partitune.candidate import Candidate, FlagValue
from partitune.costs.cost_model import Batch
from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.engine_core import simulate
from partitune.engines.vllm.scheduler.settings import SchedulerSettings
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.planning.throughput import throughput_bound
from partitune.simulation.request import Request
from partitune.simulation.run import Overheads
from partitune.spec.search_space import SearchSpace
from tests.builders import shipped_problem


def of(posed: Problem, partition: tuple[int, ...] | None = None, /, **flags: FlagValue) -> Distance:
    return distance(posed, Candidate(partition or posed.default_partition, flags))


def simulated_tok_s(posed: Problem, partition: tuple[int, ...], **flags: FlagValue) -> float:
    return SimulatorDriver(posed).measure(Candidate(partition, flags)).metrics["output_throughput_tok_s"]


@pytest.mark.parametrize(
    ("space", "flags"),
    [
        ("kimi-k3-pp8-tp2", {}),
        ("kimi-k3-pp8-tp2", {"max_num_batched_tokens": 512}),
        ("kimi-k3-pp8-tp2-sglang", {"pp_max_micro_batch_size": 2}),
        ("deepseek-v3-pp4-tp8", {}),
        ("tiny", {}),
    ],
)
def test_the_factors_multiply_to_what_is_reached(space: str, flags: dict[str, FlagValue]) -> None:
    posed = shipped_problem(space)
    found = of(posed, None, **flags)
    assert found.reached_output_tok_s == simulated_tok_s(posed, posed.default_partition, **flags)
    assert math.prod(found.factors.values()) == pytest.approx(
        found.reached_output_tok_s / found.limit_output_tok_s, rel=1e-9
    )
    assert all(0 < value <= 1 + 1e-3 for value in found.factors.values()), found.factors
    assert found.factors[found.largest] == min(found.factors.values())


def test_the_limit_of_a_lone_decode_is_reading_the_weights_once_a_token() -> None:
    """Qwen3-8B: 36 layers of 8.19e9 parameters with head, less the 0.62e9 of an embedding that is only looked up."""
    posed = shipped_problem("tiny", workload__requests=1, workload__prompt_tokens=1, workload__output_tokens=200)
    read_bytes, bandwidth = 2 * (8.19e9 - 0.62e9), 864e9  # bf16; L40S data sheet
    # Two stages work on two tokens at a time: the limit of the balance, which one lone request cannot come near.
    assert of(posed).limit_output_tok_s == pytest.approx(2 * bandwidth / read_bytes, rel=0.05)
    assert of(posed).factors["fill"] == pytest.approx(1 / of(posed).knee, rel=0.02)


@dataclass(frozen=True)
class ConstantCosts:
    """Stages of fixed times, whatever the batch; hand-offs are free."""

    seconds: tuple[float, ...]

    @property
    def stages(self) -> int:
        return len(self.seconds)

    def compute_s(self, batch: Batch) -> Sequence[float]:
        return self.seconds

    def transfer_s(self, tokens: int) -> Sequence[float]:
        return [0.0] * (self.stages - 1)


@pytest.mark.parametrize("in_flight", range(1, 9))
def test_the_throughput_bound_is_what_the_simulator_reaches(in_flight: int) -> None:
    """Operational analysis: min(m / sum, 1 / max) for m cohorts; exact for constant times once the pipe is full."""
    stages = (1.0, 0.7, 1.1, 1.6, 0.9, 1.0, 1.0, 1.2)
    settings = SchedulerSettings(Regime.SYNC_V1, 8, max_num_batched_tokens=64, max_num_seqs=64, num_blocks=100_000)
    requests = [Request(f"r{index}", 0.0, 64, 400) for index in range(in_flight)]  # a prompt fills a step
    run = simulate(requests, settings, ConstantCosts(stages), Overheads())
    steady = run.decode_steps / (run.makespan_s - sum(stages))
    assert steady == pytest.approx(throughput_bound(stages, in_flight), rel=0.02)


def test_one_group_in_flight_the_partition_cannot_matter() -> None:
    posed = shipped_problem("kimi-k3-pp8-tp2")
    found = of(posed)
    assert found.batches_in_flight == 1
    assert found.largest == "fill"
    assert found.factors["fill"] == pytest.approx(found.fill_ceiling, rel=0.02)
    assert "all requests decode as one group, which is on one stage at a time" in found.partition
    speeds = [
        simulated_tok_s(posed, partition)
        for partition in [posed.default_partition, (12,) * 7 + (9,), (7, 11, 11, 11, 11, 11, 15, 16)]
    ]
    assert max(speeds) < 1.01 * min(speeds)


def test_with_the_pipe_full_the_same_partitions_differ() -> None:
    posed = shipped_problem("kimi-k3-pp8-tp2")
    lopsided = (7, 11, 11, 11, 11, 11, 15, 16)
    found = of(posed, lopsided, max_num_batched_tokens=512)
    assert found.batches_in_flight == 8 > found.knee
    assert found.best_partition != lopsided
    again = simulated_tok_s(posed, found.best_partition, max_num_batched_tokens=512)
    assert again / found.reached_output_tok_s - 1 == pytest.approx(found.partition_gain)
    # 16 layers where 12 do: a quarter of the time of the slowest stage can be saved, and most of it arrives.
    assert found.factors["avoidable"] == pytest.approx(12 / 16, abs=0.04)
    assert 0.15 < found.partition_gain <= 1 / found.factors["avoidable"] - 1
    assert found.partition.startswith(",".join(map(str, found.best_partition)) + " gains")


def test_below_the_knee_the_sum_counts() -> None:
    """Four cohorts on eight stages: a stage with half as much again costs nothing, as long as decode is what counts.

    Prompts are cut into four steps too, and the last ends after sum + 3 slowest.
    """
    posed = shipped_problem("kimi-k3-pp8-tp2", workload__output_tokens=512)
    uneven = (11, 11, 11, 11, 11, 11, 11, 16)
    found = of(posed, uneven, max_num_batched_tokens=1024)
    assert found.batches_in_flight == 4 < found.knee
    assert "4 groups of requests are in flight, fewer than" in found.partition
    assert found.partition_gain < 0.01


def test_requests_that_come_slowly_decide_themselves() -> None:
    found = of(shipped_problem("qwen3-235b-pp4-tp4", workload__requests=24, workload__request_rate_req_s=1.0))
    assert found.partition.startswith("1 other tried, none gains more than 1 %")


@pytest.mark.parametrize(
    ("space", "settings"),
    [
        (
            "kimi-k3-pp8-tp2",
            ({"max_num_batched_tokens": 512}, {"max_num_batched_tokens": 2048, "max_num_seqs": 8}, {"max_num_seqs": 4}),
        ),
        ("kimi-k3-study-prompt", ({"max_num_batched_tokens": 512}, {"async_scheduling": False})),
        ("kimi-k3-pp8-tp2-sglang", ({"pp_max_micro_batch_size": 2}, {"chunked_prefill_size": 512})),
        ("llama-70b-pp4", ({"max_num_batched_tokens": 1024}, {"max_num_seqs": 8})),
        ("qwen3-235b-pp4-tp4", ({"async_scheduling": False}, {"max_num_seqs": 16})),
    ],
)
def test_the_limit_is_the_loads_own_and_small_batches_are_a_factor(
    space: str, settings: tuple[dict[str, FlagValue], ...]
) -> None:
    """One model, load and GPUs have one limit, however flags and partition batch them; no batching beats it."""
    posed = shipped_problem(space)
    base = of(posed)
    lopsided = (posed.default_partition[0] - 2, *posed.default_partition[1:-1], posed.default_partition[-1] + 2)
    for found in (of(posed, lopsided), *(of(posed, None, **flags) for flags in settings)):
        assert found.limit_output_tok_s == pytest.approx(base.limit_output_tok_s, rel=1e-12)
        assert 0 < found.factors["cohorts"] <= 1 + 1e-3
    smaller = [of(posed, None, **flags).factors["cohorts"] for flags in settings]
    assert min(smaller) < base.factors["cohorts"] or base.factors["cohorts"] < 0.5


def test_on_unequal_gpus_a_shorter_sum_is_found_even_with_one_group() -> None:
    plain = SearchSpace.load("llama-70b-pp4").resolved()
    plain["cluster"] = {"nodes": 1, "gpus_per_node": 4, "gpu": ["H100", "H100", "A100-80GB", "A100-80GB"]}
    plain["workload"] = {"kind": "random", "requests": 1, "prompt_tokens": 256, "output_tokens": 64, "concurrency": 1}
    posed = resolve(SearchSpace.from_mapping(plain, source="test"))
    found = of(posed)
    assert found.batches_in_flight == 1
    fast, slow = sum(found.best_partition[:2]), sum(found.best_partition[2:])
    assert fast > slow
    assert found.partition_gain > 0.05


def test_a_slow_host_is_a_factor_of_its_own() -> None:
    """A prompt of a few tokens launches as many kernels as a long one: 180 ms of launches on Kimi-K3."""
    found = of(
        shipped_problem("kimi-k3-pp8-tp2", workload__requests=1, workload__prompt_tokens=1, workload__output_tokens=1)
    )
    assert found.factors["host"] < 0.5
    assert of(shipped_problem("kimi-k3-pp8-tp2")).factors["host"] > 0.95
