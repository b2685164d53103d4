"""The loop of the final: order, lost runs, several at once, and where it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from partitune.analysis.final import Final, Run, measured_value, most_runs
from partitune.candidate import Candidate, Measurement, Objective, Outcome, Result
from partitune.execution.pools.pools import LocalPool
from partitune.search.budget import Budget, Progress
from partitune.search.finals import play
from tests.scripted import measurement

THROUGHPUT = Objective("output_throughput_tok_s", "maximize")
CANDIDATES = {trial: Candidate((trial + 1,)) for trial in range(9)}


@dataclass(frozen=True)
class Launched:
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

    def __init__(self, stop_after: int | None = None) -> None:
        self.runs: dict[Run, Result] = {}
        self._stop_after = stop_after

    def record_run(self, run: Run, result: Result) -> None:
        if len(self.runs) == self._stop_after:
            raise KeyboardInterrupt
        assert run not in self.runs
        assert result.repeat == run.load
        self.runs[run] = result

    @property
    def values(self) -> dict[Run, float | None]:
        return {run: measured_value(result, THROUGHPUT) for run, result in self.runs.items()}


def final(finalists: int = 4, pairs: int = 3) -> Final:
    return Final(THROUGHPUT, 0, dict.fromkeys(range(1, finalists + 1), 100.0), pairs)


@pytest.mark.parametrize("slots", [1, 3, 50])
def test_every_run_is_made_once_however_many_run_at_once(slots: int) -> None:
    recorder, pool = Recorder(), ManySlots(slots)
    assert play(final(), CANDIDATES, {}, pool, recorder, Budget(1), Progress())
    assert len(recorder.runs) == most_runs(4, 3) == 12
    assert set(pool.attempts.values()) == {1}
    assert {run.trial for run in recorder.runs if run.phase == "verdict"} == {0, 4}
    # No more than a round at once: who is in the next one is not known before.
    assert pool.most == {1: 1, 3: 3, 50: 6}[slots]


def test_a_lost_run_is_made_once_more_and_then_stored_as_lost() -> None:
    recorder, pool = Recorder(), ManySlots(2, lambda result, attempt: attempt == 1)
    assert play(final(), CANDIDATES, {}, pool, recorder, Budget(1), Progress())
    assert set(pool.attempts.values()) == {2}
    assert {result.outcome for result in recorder.runs.values()} == {Outcome.OK}
    doomed = CANDIDATES[4].digest
    recorder = Recorder()
    pool = ManySlots(2, lambda result, attempt: result.candidate.digest == doomed)
    assert play(final(), CANDIDATES, {}, pool, recorder, Budget(1), Progress())
    assert recorder.runs[Run("selection", 1, 4)].outcome is Outcome.LOST
    assert {run.trial for run in recorder.runs if run.phase == "verdict"} == {0, 3}
    assert pool.attempts[doomed, 1] == 2


@pytest.mark.parametrize("stored", range(12))
def test_a_final_that_was_stopped_anywhere_makes_the_rest(stored: int) -> None:
    whole = Recorder()
    play(final(), CANDIDATES, {}, ManySlots(1), whole, Budget(1), Progress())
    first, second = Recorder(stop_after=stored), Recorder()
    with pytest.raises(KeyboardInterrupt):
        play(final(), CANDIDATES, {}, ManySlots(1), first, Budget(1), Progress())
    assert play(final(), CANDIDATES, first.values, ManySlots(1), second, Budget(1), Progress())
    assert list(first.runs) + list(second.runs) == list(whole.runs)


def test_the_budget_ends_a_final_and_says_so() -> None:
    progress, recorder = Progress(gpus=2, gpu_hours=1.0, stopped="the budget of 8 trials is spent"), Recorder()
    assert not play(final(), CANDIDATES, {}, ManySlots(1), recorder, Budget(8, gpu_hours=1.0), progress)
    assert recorder.runs == {}
    assert progress.stopped == "the budget of 1 GPU-hours is spent; the final is not finished"
    progress = Progress(stopped="the budget of 8 trials is spent")
    assert play(final(), CANDIDATES, {}, ManySlots(1), Recorder(), Budget(8, hours=1), progress)
    assert progress.stopped == "the budget of 8 trials is spent"
