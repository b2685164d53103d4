"""The fast simulator against the one written for the eye, on workloads nobody would think of.

Every time is a multiple of a power of two, so sums are exact, ties are real ties and both must agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from partitune.costs.cost_model import Batch
from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.engine_core import simulate
from partitune.engines.vllm.scheduler.settings import PrefillCadence, SchedulerSettings, SchedulingPolicy
from partitune.errors import OutOfMemory
from partitune.simulation.request import Request, SharedPrefix
from partitune.simulation.run import Overheads, Run
from tests import reference_simulator

TICK = 2.0**-10
Scenario: TypeAlias = "tuple[list[Request], SchedulerSettings, DyadicCosts, Overheads, int | None, int]"


@dataclass(frozen=True)
class DyadicCosts:
    """Linear in everything a batch holds, in exact binary fractions."""

    scale: tuple[int, ...]
    base: int
    per_token: int
    per_context: int
    handoff: int

    @property
    def stages(self) -> int:
        return len(self.scale)

    def compute_s(self, batch: Batch) -> Sequence[float]:
        work = float(self.base + self.per_token * batch.tokens + batch.sampled)
        work += self.per_context * (batch.prefill_pairs + batch.decode_context) / 16
        return [scale * work * TICK for scale in self.scale]

    def transfer_s(self, tokens: int) -> Sequence[float]:
        return [self.handoff * (1 + tokens) * TICK] * (self.stages - 1)


@st.composite
def scenarios(draw: st.DrawFn, most_output: int = 24) -> Scenario:
    stages = draw(st.integers(1, 4))
    regime = draw(st.sampled_from(Regime))
    budget = draw(st.sampled_from([4, 16, 32, 64, 256]))
    block = draw(st.sampled_from([1, 4, 16]))
    slack = draw(st.sampled_from([0, 0, 8, 64, 10_000]))
    arrivals = draw(st.sampled_from([0, 0, 40, 4000]))
    groups = draw(st.sampled_from(["", "a", "a", "ab"]))
    requests: list[Request] = []
    for i in range(draw(st.integers(1, 14))):
        prompt = draw(st.integers(1, 70))
        before = draw(st.sampled_from([None, *requests])) if groups and requests else None
        least = 0
        if before is not None and draw(st.booleans()):
            least = before.prompt_tokens + before.output_tokens
            prompt += least
        else:
            before = None
        shared = draw(st.integers(least + 1, prompt)) if groups and prompt > least and draw(st.booleans()) else 0
        prefix: tuple[SharedPrefix, ...] = (SharedPrefix(draw(st.sampled_from(groups)), shared),) if shared else ()
        if shared and shared < prompt and draw(st.booleans()):
            prefix += (SharedPrefix(draw(st.sampled_from("xy")), draw(st.integers(shared + 1, prompt))),)
        requests.append(
            Request(
                str(i),
                draw(st.integers(0, arrivals)) * TICK * 64,
                prompt,
                draw(st.integers(1, most_output)),
                stops_early=draw(st.sampled_from([False, False, False, True])),
                priority=draw(st.sampled_from([0, 0, 0, 1, 2])),
                prefix=prefix,
                continues=None if before is None else before.id,
            )
        )
    longest = max(request.prompt_tokens + request.output_tokens for request in requests)
    seqs = draw(st.integers(1, min(budget, 16)))
    states = draw(st.sampled_from([0, 0, 2]))
    sizes: tuple[int, ...] = draw(st.sampled_from([(), (), (8,), (4, 20)]))
    windows, full = len(sizes), draw(st.sampled_from([1, 1, 2]))
    config = SchedulerSettings(
        regime=regime,
        broadcasts_chunks=regime is Regime.ASYNC_V1 and draw(st.booleans()),
        stages=stages,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        max_num_active_seqs=draw(st.sampled_from([None, None, (seqs + 1) // 2])),
        max_num_scheduled_tokens=draw(st.sampled_from([None, None, max(seqs, budget // 2)])),
        num_blocks=-(-longest // block) * (full + windows + 1) + states * 12 + 4 + slack,
        block_size=block,
        max_model_len=longest + draw(st.sampled_from([0, 1, 2, 1000])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 5, 20])),
        long_prefill_token_threshold_adaptive=draw(st.booleans()),
        reserve_full_isl=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        state_groups=states,
        windows=sizes,
        align_chunks=draw(st.booleans()),
        state_export_alignment=draw(st.sampled_from([None, 1, 8])),
        prefix_cache_retention_interval=draw(st.sampled_from([0, 0, 2 * block if states or sizes else 0, None])),
        full_groups=full,
        full_groups_last=draw(st.booleans()),
        enable_prefix_caching=draw(st.booleans()),
        scheduling_policy=draw(st.sampled_from(SchedulingPolicy)),
        passes_over_preempted=draw(st.booleans()),
        prefill_schedule_interval=draw(st.sampled_from([1, 1, 3, 8])),
        prefill_cadence=draw(st.sampled_from(PrefillCadence)),
        capture_sizes=draw(st.sampled_from([(), (), (1, 2, 4, 8), (4, 6)])),
    )
    costs = DyadicCosts(
        tuple(draw(st.integers(1, 4)) for _ in range(stages)),
        base=draw(st.integers(1, 64)),
        per_token=draw(st.integers(0, 2)),
        per_context=draw(st.integers(0, 1)),
        handoff=draw(st.sampled_from([0, 0, 1, 5])),
    )
    overheads = draw(
        st.sampled_from(
            [
                Overheads(),
                Overheads(4 * TICK, 8 * TICK, 2 * TICK, TICK, 3 * TICK),
                Overheads(0.0, TICK),
                Overheads(TICK, engine_request_s=2 * TICK),
            ]
        )
    )
    concurrency = draw(st.one_of(st.none(), st.integers(1, len(requests))))
    return requests, config, costs, overheads, concurrency, draw(st.sampled_from([1, 8]))


def assert_same(fast: Run, reference: Run) -> None:
    assert fast.requests == reference.requests
    assert np.array_equal(np.sort(fast.inter_token_s), np.sort(reference.inter_token_s))
    for name in (
        "makespan_s",
        "batches",
        "empty_steps",
        "decode_steps",
        "decode_tokens",
        "batch_tokens",
        "preemptions",
        "in_pipeline_s",
        "prefix_cache_queries",
        "prefix_cache_hits",
    ):
        assert getattr(fast, name) == getattr(reference, name), name
    assert np.allclose(fast.compute_s, reference.compute_s, rtol=1e-12)
    assert np.allclose(fast.transfer_s, reference.transfer_s, rtol=1e-12)


#: Request 7 is through its prompt and lets go of its window's blocks in the step in which request 0, ahead of it in the
#: running list, needs one more: that one comes from what request 4 left in the prefix cache when it was preempted
#: (v1/core/kv_cache_manager.py allocate_slots: remove_skipped_blocks, then new blocks, one request after the other).
A_WINDOW_GIVES_BACK_TOO_LATE: Scenario = (
    [
        Request("0", 0.0, 32, 22),
        Request("1", 0.0, 1, 1),
        Request("2", 0.0, 1, 1),
        Request("3", 0.0, 3, 1),
        Request("4", 0.0, 3, 1, priority=1),
        Request("5", 0.0, 1, 1),
        Request("6", 0.0, 1, 2, prefix=(SharedPrefix("a", 0),)),
        Request("7", 0.0, 30, 1, stops_early=True),
    ],
    SchedulerSettings(
        regime=Regime.ASYNC_V1,
        stages=3,
        max_num_batched_tokens=32,
        max_num_seqs=5,
        num_blocks=112,
        block_size=1,
        max_model_len=54,
        reserve_full_isl=False,
        windows=(8,),
        align_chunks=True,
        enable_prefix_caching=True,
        scheduling_policy=SchedulingPolicy.PRIORITY,
    ),
    DyadicCosts((1, 1, 1), base=1, per_token=0, per_context=0, handoff=0),
    Overheads(),
    None,
    1,
)


@given(scenarios())
@example(A_WINDOW_GIVES_BACK_TOO_LATE)
@settings(max_examples=200, deadline=None)
def test_agrees_with_the_reference_step_by_step(scenario: Scenario) -> None:
    requests, config, costs, overheads, concurrency, context_step = scenario
    try:
        fast = simulate(requests, config, costs, overheads, concurrency, context_step=context_step, record_steps=True)
    except OutOfMemory:
        return
    reference = reference_simulator.simulate(requests, config, costs, overheads, concurrency, context_step)
    for number, (mine, wanted) in enumerate(zip(fast.steps, reference.steps, strict=False)):
        assert mine == wanted, f"step {number}"
    assert len(fast.steps) == len(reference.steps)
    assert_same(fast, reference)


@given(scenarios(most_output=150))
@settings(max_examples=150, deadline=None)
def test_running_ahead_changes_nothing(scenario: Scenario) -> None:
    requests, config, costs, overheads, concurrency, _ = scenario
    steady = replace(costs, per_context=0)  # held costs are then exact
    try:
        fast = simulate(requests, config, steady, overheads, concurrency, context_step=16)
    except OutOfMemory:
        return
    assert_same(fast, reference_simulator.simulate(requests, config, steady, overheads, concurrency, 16))
