"""What every Pool promises. Subclasses give a `pool` fixture around a ScriptedDriver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from partitune.candidate import Candidate, Outcome, Result, Submission
from partitune.execution.driver import MEMORY_CONSTRAINT, TIME_CONSTRAINT
from partitune.execution.pools.pool import Pool


def drain(pool: Pool, wanted: int) -> list[Result]:
    found = []
    for _ in range(600):
        result = pool.next_done(0.1)
        found += [result] if result is not None else []
        if len(found) == wanted:
            return found
    raise AssertionError(f"{len(found)} of {wanted} results came")


class PoolContract:
    @pytest.fixture
    def pool(self) -> Iterator[Pool]:
        raise NotImplementedError

    def one(self, pool: Pool, act: str) -> Result:
        pool.submit(Submission(Candidate((4,), {"act": act})))
        return drain(pool, 1)[0]

    def test_an_empty_pool_has_nothing_done(self, pool: Pool) -> None:
        assert pool.running == 0
        assert pool.next_done(0.0) is None

    def test_a_measured_candidate_comes_back_whole(self, pool: Pool) -> None:
        result = self.one(pool, "ok")
        assert (result.outcome, result.reason) == (Outcome.OK, "")
        assert result.candidate == Candidate((4,), {"act": "ok"})
        assert result.metric("output_throughput_tok_s") == 16.0
        assert result.duration_s >= 0
        assert pool.running == 0

    def test_a_repeat_comes_back_with_its_number(self, pool: Pool) -> None:
        pool.submit(Submission(Candidate((4,), {"act": "ok"}), repeat=7))
        (result,) = drain(pool, 1)
        assert (result.outcome, result.repeat) == (Outcome.OK, 7)
        assert self.one(pool, "ok").repeat == 0

    def test_every_slot_can_be_filled_and_no_more(self, pool: Pool) -> None:
        sent = 0
        while pool.free_slots:
            pool.submit(Submission(Candidate((sent + 1,), {"act": "slow"})))
            sent += 1
        assert sent >= 1
        assert pool.running == sent
        assert {r.candidate.partition for r in drain(pool, sent)} == {(i + 1,) for i in range(sent)}
        assert pool.free_slots >= sent  # more when Ray came up in between

    def test_out_of_memory_is_infeasible_and_graded(self, pool: Pool) -> None:
        result = self.one(pool, "oom")
        assert result.outcome is Outcome.INFEASIBLE
        assert result.reason == "stage 1 is short of 3.5 GiB"
        assert result.constraints == {MEMORY_CONSTRAINT: 3.5}
        assert result.measurement is None

    @pytest.mark.parametrize(("act", "graded"), [("timeout", 0.2), ("stalled", 1.0)])
    def test_time_outs_and_stalls_are_infeasible_and_graded(self, pool: Pool, act: str, graded: float) -> None:
        result = self.one(pool, act)
        assert (result.outcome, result.constraints) == (Outcome.INFEASIBLE, {TIME_CONSTRAINT: graded})

    def test_a_missed_limit_keeps_its_figures(self, pool: Pool) -> None:
        result = self.one(pool, "slo")
        assert result.outcome is Outcome.INFEASIBLE
        assert result.reason == "ttft_p99_ms missed by 25.0 %"
        assert result.metric("output_throughput_tok_s") == 10.0

    @pytest.mark.parametrize(
        ("act", "outcome", "reason"),
        [
            ("launch", Outcome.FAILED, "the engine refused a flag"),
            ("bench", Outcome.INVALID, "0 of 16 requests completed"),
            ("bug", Outcome.FAILED, "internal error in the driver: KeyError: 'pages'"),
        ],
    )
    def test_what_breaks_becomes_a_value(self, pool: Pool, act: str, outcome: Outcome, reason: str) -> None:
        result = self.one(pool, act)
        assert result.outcome is outcome
        assert result.reason.startswith(reason)
        assert result.measurement is None
