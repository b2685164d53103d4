"""The final in the loop: order, lost runs, several at once, and where it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from partitune.analysis.final import Final, FinalRun, most_runs
from partitune.candidate import Candidate, Measurement, Objective, Outcome, Result, Submission
from partitune.execution.driver import Driver
from partitune.execution.pools.local import LocalPool
from partitune.search.budget import Progress, StoppingRule
from partitune.search.events import Unwatched
from partitune.search.loop import search
from partitune.search.proposers.final import FinalProposer
from partitune.search.proposers.proposer import Proposer
from tests.contracts.proposer import ProposerContract
from tests.scripted import measurement

THROUGHPUT = Objective("output_throughput_tok_s", "maximize")
EVERYTHING = StoppingRule(None)
CANDIDATES = {trial: Candidate((trial + 1,)) for trial in range(9)}


@dataclass(frozen=True)
class Launched(Driver):
    """The higher its number, the better the trial."""

    def measure(self, candidate: Candidate) -> Measurement:
        return replace(measurement(100.0 + candidate.partition[0]), simulated=False)


class ManySlots(LocalPool):
    """Several at once, the last one started comes back first; loses what `lose` says."""

    def __init__(self, slots: int, lose: Callable[[Result, int], bool] = lambda result, attempt: False) -> None:
        super().__init__(Launched())
        self._slots, self._lose = slots, lose
        self.attempts: Counter[tuple[str, int]] = Counter()
        self.most = 0

    @property
    def free_slots(self) -> int:
        return self._slots - self.running

    def next_done(self, timeout_s: float | None) -> Result | None:
        self.most = max(self.most, self.running)
        self._queue.rotate(1)
        result = super().next_done(timeout_s)
        if result is None:
            return None
        which = (result.candidate.digest, result.repeat)
        self.attempts[which] += 1
        if self._lose(result, self.attempts[which]):
            return Result(result.candidate, Outcome.LOST, "the node is gone", repeat=result.repeat)
        return result


class Recorder:
    """Remembers runs; a run that comes twice is a fault."""

    def __init__(self, proposer: FinalProposer, stop_after: int | None = None) -> None:
        self.runs: dict[FinalRun, Result] = {}
        self._proposer, self._stop_after = proposer, stop_after

    def record(self, submission: Submission, result: Result) -> int:
        if len(self.runs) == self._stop_after:
            raise KeyboardInterrupt
        run = self._proposer.run_of(submission)
        assert run not in self.runs
        assert result.repeat == run.load
        self.runs[run] = result
        return run.trial


def final(finalists: int = 4, pairs: int = 3) -> Final:
    return Final(THROUGHPUT, 0, dict.fromkeys(range(1, finalists + 1), 100.0), pairs)


def play(
    pool: LocalPool,
    told: Recorder | None = None,
    stop_after: int | None = None,
    budget: StoppingRule = EVERYTHING,
    progress: Progress | None = None,
) -> tuple[bool, Recorder]:
    """Run a final that knows the runs of `told`: whether it is over, and what ran."""
    shown = progress or Progress()
    proposer = FinalProposer(final(), CANDIDATES, shown)
    for run, result in {} if told is None else told.runs.items():
        proposer.tell(Submission(result.candidate, repeat=run.load), result)
    recorder = Recorder(proposer, stop_after)
    try:
        shown.stopped = search(proposer, pool, recorder.record, budget, shown, Unwatched())
    except KeyboardInterrupt:
        assert stop_after is not None
    return not proposer.due, recorder


class TestFinalProposer(ProposerContract):
    size = most_runs(4, 3)
    at_once = 4
    driver = Launched()

    def make(self) -> Proposer:
        return FinalProposer(final(), CANDIDATES, Progress())


@pytest.mark.parametrize("slots", [1, 3, 50])
def test_every_run_is_made_once_however_many_run_at_once(slots: int) -> None:
    pool = ManySlots(slots)
    over, recorder = play(pool)
    assert over
    assert len(recorder.runs) == most_runs(4, 3) == 12
    assert set(pool.attempts.values()) == {1}
    assert {run.trial for run in recorder.runs if run.phase == "verdict"} == {0, 4}
    # No more than a round at once: who is in the next one is not known before.
    assert pool.most == {1: 1, 3: 3, 50: 6}[slots]


def test_a_lost_run_is_made_once_more_and_then_stored_as_lost() -> None:
    pool = ManySlots(2, lambda result, attempt: attempt == 1)
    over, recorder = play(pool)
    assert over
    assert set(pool.attempts.values()) == {2}
    assert {result.outcome for result in recorder.runs.values()} == {Outcome.OK}
    doomed = CANDIDATES[4].digest
    pool = ManySlots(2, lambda result, attempt: result.candidate.digest == doomed)
    over, recorder = play(pool)
    assert over
    assert recorder.runs[FinalRun("selection", 1, 4)].outcome is Outcome.LOST
    assert {run.trial for run in recorder.runs if run.phase == "verdict"} == {0, 3}
    assert pool.attempts[doomed, 1] == 2


@pytest.mark.parametrize("stored", range(12))
def test_a_final_that_was_stopped_anywhere_makes_the_rest(stored: int) -> None:
    _, whole = play(ManySlots(1))
    over, first = play(ManySlots(1), stop_after=stored)
    assert not over
    over, second = play(ManySlots(1), told=first)
    assert over
    assert list(first.runs) + list(second.runs) == list(whole.runs)


def test_the_budget_ends_a_final() -> None:
    progress = Progress(gpus=2, gpu_hours=1.0)
    over, recorder = play(ManySlots(1), budget=StoppingRule(None, gpu_hours=1.0), progress=progress)
    assert not over
    assert recorder.runs == {}
    assert progress.stopped == "the budget of 1 GPU-hours is spent"
    assert play(ManySlots(1), budget=StoppingRule(None, hours=1))[0]


def test_the_runs_of_a_final_are_no_trials() -> None:
    progress = Progress(finished=8)
    play(ManySlots(1), progress=progress)
    assert progress.finished == 8
    assert progress.outcomes == {Outcome.OK: 12}
    assert progress.phase == "final, verdict, pair 3, trial 4 (12 of at most 12 runs)"


@pytest.mark.parametrize("run", [FinalRun("selection", 1, 4), FinalRun("selection", 10, 2), FinalRun("verdict", 1, 0)])
def test_a_run_is_known_by_its_load(run: FinalRun) -> None:
    assert FinalRun.under(run.load, run.trial) == run
