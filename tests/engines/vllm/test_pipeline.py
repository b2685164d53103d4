from __future__ import annotations

from collections.abc import Sequence

import pytest

from partitune.costs.cost_model import Batch
from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.pipeline import Passage, Pipeline
from partitune.engines.vllm.scheduler.settings import SchedulerSettings
from partitune.simulation.run import Overheads


class Fixed:
    """The same seconds for every batch."""

    def __init__(self, compute: Sequence[float], transfer: float) -> None:
        self.stages = len(compute)
        self.compute, self.transfer = compute, transfer

    def compute_s(self, batch: Batch) -> Sequence[float]:
        return self.compute

    def transfer_s(self, tokens: int) -> Sequence[float]:
        return [self.transfer] * (self.stages - 1)


def settings(regime: Regime, *, broadcasts_chunks: bool = False) -> SchedulerSettings:
    return SchedulerSettings(
        regime, stages=2, max_num_batched_tokens=8, max_num_seqs=8, num_blocks=9, broadcasts_chunks=broadcasts_chunks
    )


def push(pipeline: Pipeline, ready_s: float = 0.0, *, samples: bool = True) -> Passage:
    return pipeline.push(pipeline.cost(1, 1.0, 0, 0, int(samples)), ready_s)


def test_a_slow_stage_blocks_the_one_in_front() -> None:
    # By hand, D_0(t) = max(F_0(t), D_1(t-1)) + 0.5: batch 1 is ready at 2.5 but stage 1 is rid of batch 0 at 4.5 only.
    pipeline = Pipeline(settings(Regime.ASYNC_V2), Fixed([1.0, 3.0], 0.5), Overheads())
    assert [(p.start_s, p.end_s) for p in (push(pipeline) for _ in range(3))] == [(0.0, 4.5), (1.5, 8.0), (5.0, 11.5)]
    assert pipeline.compute_s() == (3.0, 9.0)
    assert pipeline.transfer_s() == (1.5, 1.5)


def test_a_free_hand_off_needs_no_partner() -> None:
    pipeline = Pipeline(settings(Regime.ASYNC_V2), Fixed([1.0, 3.0], 0.0), Overheads())
    assert [(p.start_s, p.end_s) for p in (push(pipeline) for _ in range(3))] == [(0.0, 4.0), (1.0, 7.0), (2.0, 10.0)]


def test_r1_waits_for_the_broadcast_unless_nothing_was_sampled() -> None:
    overheads = Overheads(sample_s=0.25, broadcast_s=0.5)
    pipeline = Pipeline(settings(Regime.ASYNC_V1), Fixed([1.0, 1.0], 0.0), overheads)
    passages = [push(pipeline, samples=samples) for samples in (False, False, True, True)]
    assert [p.start_s for p in passages] == [0.0, 1.0, 2.0, 4.75]
    assert [p.end_s for p in passages] == [2.0, 3.0, 4.25, 7.0]


def test_up_to_0_19_r1_waits_for_unfinished_prompts_too() -> None:
    overheads = Overheads(sample_s=0.25, broadcast_s=0.5)
    pipeline = Pipeline(settings(Regime.ASYNC_V1, broadcasts_chunks=True), Fixed([1.0, 1.0], 0.0), overheads)
    passages = [push(pipeline, samples=samples) for samples in (False, False, True, True)]
    assert [p.start_s for p in passages] == [0.0, 2.5, 5.0, 7.75]
    assert [p.end_s for p in passages] == [2.0, 4.5, 7.25, 10.0]


@pytest.mark.parametrize(("regime", "starts"), [(Regime.SYNC_V1, 4.0), (Regime.ASYNC_V2, 2.0), (Regime.SYNC_V2, 4.0)])
def test_a_sync_engine_blocks_its_last_stage_on_the_copy(regime: Regime, starts: float) -> None:
    pipeline = Pipeline(settings(regime), Fixed([1.0, 1.0], 0.0), Overheads(d2h_s=2.0))
    first, second = push(pipeline), push(pipeline)
    assert (first.end_s, first.out_s) == (2.0, 4.0)
    assert second.end_s == starts + 1.0


def test_costs_are_asked_once_per_distinct_batch() -> None:
    asked: list[Batch] = []

    class Counting(Fixed):
        def compute_s(self, batch: Batch) -> Sequence[float]:
            asked.append(batch)
            return super().compute_s(batch)

    pipeline = Pipeline(settings(Regime.SYNC_V1), Counting([1.0], 0.0), Overheads())
    for context in (64, 64, 128, 64):
        pipeline.push(pipeline.cost(0, 0.0, 2, context, 2), 0.0)
    assert [batch.decode_context for batch in asked] == [64, 128]
    assert pipeline.compute_s() == (4.0,)
