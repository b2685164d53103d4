from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partitune.costs.cost_model import Batch
from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.engine_core import simulate
from partitune.engines.vllm.scheduler.settings import VLLM_OVERHEADS, SchedulerSettings
from partitune.errors import OutOfMemory, SpecError
from partitune.simulation.request import Request
from partitune.simulation.run import Overheads, Run
from partitune.simulation.workload import random_requests
from partitune.spec.workload import RandomWorkload
from tests.builders import burst


@dataclass(frozen=True)
class Stages:
    """Seconds linear in tokens and context."""

    stages: int
    base: float = 1.0
    per_token: float = 0.0
    per_context: float = 0.0
    handoff: float = 0.0

    def compute_s(self, batch: Batch) -> Sequence[float]:
        work = self.base + self.per_token * batch.tokens
        return [work + self.per_context * (batch.decode_context + batch.prefill_pairs)] * self.stages

    def transfer_s(self, tokens: int) -> Sequence[float]:
        return [self.handoff] * (self.stages - 1)


def config(regime: Regime, stages: int, budget: int = 16384, **more: int) -> SchedulerSettings:
    given_settings = {"max_num_seqs": min(128, budget), "num_blocks": 100_000} | more
    return SchedulerSettings(regime, stages, budget, **given_settings)  # type: ignore[arg-type]


STUDY = burst(16, 256, 32)


def study(regime: Regime, budget: int) -> Run:
    return simulate(STUDY, config(regime, 8, budget), Stages(8), Overheads(), concurrency=16)


def utilisation(run: Run) -> float:
    return sum(run.compute_s) / len(run.compute_s) / run.makespan_s


def test_r1_decode_does_not_pipeline_whatever_the_budget() -> None:
    for budget in (16384, 512):
        run = study(Regime.ASYNC_V1, budget)
        assert utilisation(run) == pytest.approx(1 / 8)
        assert run.mean_in_flight_batches == pytest.approx(1.0)
    assert study(Regime.ASYNC_V1, 512).makespan_s >= study(Regime.ASYNC_V1, 16384).makespan_s


def test_switching_async_off_lets_the_budget_help() -> None:
    assert utilisation(study(Regime.SYNC_V1, 16384)) == pytest.approx(1 / 8)
    assert utilisation(study(Regime.SYNC_V1, 512)) > 0.95
    slower, faster = (study(regime, 512).makespan_s for regime in (Regime.ASYNC_V1, Regime.SYNC_V1))
    assert slower > faster


@pytest.mark.parametrize(("budget", "cohorts"), [(4096, 1), (2048, 2), (1024, 4), (512, 8)])
def test_in_r3_the_budget_sets_the_number_of_cohorts(budget: int, cohorts: int) -> None:
    run = study(Regime.ASYNC_V2, budget)
    assert run.decode_tokens / run.decode_steps == 16 / cohorts
    assert run.mean_in_flight_batches == pytest.approx(cohorts, rel=0.05)


@given(
    count=st.integers(1, 8),
    prompt=st.integers(1, 50),
    output=st.integers(1, 20),
    engine_step_s=st.sampled_from([0.0, 0.125]),
    d2h_s=st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=60, deadline=None)
def test_one_sync_stage_in_closed_form(
    count: int, prompt: int, output: int, engine_step_s: float, d2h_s: float
) -> None:
    costs = Stages(1, base=1.0, per_token=0.25, per_context=0.0625)
    requests = burst(count, prompt, output)
    overheads = Overheads(engine_step_s=engine_step_s, d2h_s=d2h_s)
    run = simulate(requests, config(Regime.SYNC_V1, 1), costs, overheads, context_step=1)
    prefill = 1.0 + 0.25 * count * prompt + 0.0625 * count * prompt * (prompt + 1) / 2
    decodes = [1.0 + 0.25 * count + 0.0625 * count * (prompt + made) for made in range(1, output)]
    beside = engine_step_s + d2h_s
    assert run.requests[0].first_token_s == prefill + beside
    assert run.duration_s == pytest.approx(prefill + sum(decodes) + output * beside)
    assert np.allclose(np.sort(run.inter_token_s), np.repeat(np.array(decodes) + beside, count))


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[Request], SchedulerSettings]:
    stages = draw(st.integers(1, 5))
    requests = [
        Request(str(i), draw(st.floats(0, 30)), draw(st.integers(1, 200)), draw(st.integers(1, 30)))
        for i in range(draw(st.integers(1, 12)))
    ]
    blocks = draw(st.sampled_from([40, 80, 1000]))
    budget = draw(st.sampled_from([16, 100, 1000]))
    return requests, config(draw(st.sampled_from(Regime)), stages, budget, num_blocks=blocks, max_num_seqs=8)


@given(load=loads(), concurrency=st.one_of(st.none(), st.integers(1, 6)))
@settings(max_examples=150, deadline=None)
def test_what_holds_for_every_run(load: tuple[list[Request], SchedulerSettings], concurrency: int | None) -> None:
    requests, conf = load
    costs = Stages(conf.stages, base=0.3, per_token=0.01, per_context=1e-4, handoff=0.02)
    run = simulate(requests, conf, costs, VLLM_OVERHEADS, concurrency, record_steps=True)

    scheduled: dict[str, int] = {}
    for step in run.steps:
        for name, tokens in step.tokens.items():
            scheduled[name] = scheduled.get(name, 0) + tokens
    for request in requests:
        least = request.prompt_tokens + request.output_tokens - 1
        if run.preemptions == 0 and conf.regime is not Regime.ASYNC_V1:
            assert scheduled[request.id] == least
        assert scheduled[request.id] >= least
    assert run.batch_tokens == sum(scheduled.values())
    assert len(run.inter_token_s) == sum(request.output_tokens - 1 for request in requests)
    assert (run.inter_token_s >= 0).all()

    # compute, transfer and wait fill the time of a stage exactly, so nobody is busier than the clock
    assert all(wait > -1e-9 for wait in run.wait_s)
    assert run.mean_in_flight_batches <= conf.stages + 1e-9
    assert run.makespan_s <= run.duration_s or conf.regime is Regime.ASYNC_V1
    for request, times in zip(requests, run.requests, strict=True):
        assert request.arrival_s <= times.sent_s < times.first_token_s <= times.finish_s
    if concurrency is not None:
        begins = sorted(times.sent_s for times in run.requests)
        ends = sorted(times.finish_s for times in run.requests)
        for waited, begin in enumerate(begins[concurrency:]):
            assert begin >= ends[waited]


@given(load=loads(), order=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_equal_requests_are_interchangeable(load: tuple[list[Request], SchedulerSettings], order: object) -> None:
    requests, conf = load
    equal = [Request(r.id, 0.0, requests[0].prompt_tokens, requests[0].output_tokens) for r in requests]
    mixed = list(equal)
    order.shuffle(mixed)  # type: ignore[attr-defined]
    costs = Stages(conf.stages, per_token=0.01)
    runs = [simulate(each, conf, costs, VLLM_OVERHEADS) for each in (equal, mixed)]
    assert len({run.makespan_s for run in runs}) == 1
    assert len({tuple(sorted((t.first_token_s, t.finish_s) for t in run.requests)) for run in runs}) == 1


@given(
    count=st.integers(1, 12),
    prompt=st.integers(1, 100),
    output=st.integers(1, 40),
    few=st.integers(0, 60),
    more=st.integers(1, 60),
)
@settings(max_examples=80, deadline=None)
def test_more_kv_never_costs_time(count: int, prompt: int, output: int, few: int, more: int) -> None:
    requests = burst(count, prompt, output)
    least = -(-(prompt + output) // 16) + 1 + few

    def duration(blocks: int) -> float:
        conf = config(Regime.SYNC_V1, 1, num_blocks=blocks)
        return simulate(requests, conf, Stages(1), Overheads()).duration_s

    assert duration(least + more) <= duration(least)


def test_few_questions_to_the_costs_and_nearly_the_same_answer() -> None:
    requests = random_requests(
        RandomWorkload(requests=32, prompt_tokens=2000, output_tokens=200, range_ratio=0.3, concurrency=16)
    )
    costs = Stages(4, base=2e-3, per_token=2e-6, per_context=2e-8, handoff=3e-5)
    exact, rounded = (
        simulate(requests, config(Regime.ASYNC_V2, 4, 4096), costs, VLLM_OVERHEADS, 16, context_step=step).duration_s
        for step in (1, 32)
    )
    assert rounded == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("7", 0.0, 0, 5), ["request 7", "prompt_tokens"]),
        (Request("7", 0.0, 5, 0), ["request 7", "output_tokens"]),
        (Request("7", 0.0, 90, 20), ["request 7", "max_model_len 100"]),
        (Request("7", float("nan"), 9, 2), ["request 7", "arrival_s"]),
    ],
)
def test_a_request_the_engine_would_refuse(request_: Request, words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        simulate([request_], config(Regime.ASYNC_V2, 2, max_model_len=100), Stages(2), Overheads())
    assert all(word in str(caught.value) for word in words)


def test_a_request_that_never_fits_is_out_of_memory() -> None:
    # 40 blocks, one of them reserved; 700 tokens need 44.
    with pytest.raises(OutOfMemory, match="request 0 needs 44 KV blocks") as caught:
        simulate([Request("0", 0.0, 690, 10)], config(Regime.ASYNC_V2, 2, num_blocks=40), Stages(2), Overheads())
    assert caught.value.excess == 5


@pytest.mark.parametrize(
    ("requests", "concurrency", "words"),
    [([], None, "at least one"), (STUDY[:1] * 2, None, "same id"), (STUDY, 0, "concurrency is 0")],
)
def test_a_load_that_is_none(requests: list[Request], concurrency: int | None, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        simulate(requests, config(Regime.ASYNC_V2, 2), Stages(2), Overheads(), concurrency)


def test_costs_and_settings_must_agree_on_the_stages() -> None:
    with pytest.raises(SpecError, match="3 stages"):
        simulate(STUDY, config(Regime.ASYNC_V2, 2), Stages(3), Overheads())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"num_blocks": 1}, "num_blocks"),
        ({"block_size": 0}, "block_size"),
        ({"max_num_seqs": 20000}, "max_num_seqs 20000"),
        ({"enable_chunked_prefill": False, "max_model_len": 40000}, "max_model_len 40000"),
    ],
)
def test_settings_the_engine_would_refuse(more: dict[str, int], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        config(Regime.ASYNC_V2, 2, **more)


def test_queue_slots_follow_the_regime() -> None:
    # vLLM 0.33 config/vllm.py max_concurrent_batches: async V2 pp + 1; async V1 2 without a pipeline, else pp.
    slots = {(regime, stages): regime.queue_slots(stages) for regime in Regime for stages in (1, 4)}
    assert [slots[regime, 4] for regime in Regime] == [4, 4, 5, 4]
    assert [slots[regime, 1] for regime in Regime] == [2, 1, 2, 1]
