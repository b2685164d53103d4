"""The loop: order of commits, budget, lost candidates, refill."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from partitune.candidate import Candidate, Origin, Outcome, Result, Submission
from partitune.execution.pools.local import LocalPool
from partitune.search.budget import Progress, StoppingRule
from partitune.search.events import Unwatched
from partitune.search.loop import search
from tests.scripted import ScriptedDriver


class ListProposer:
    """Proposes a fixed list and remembers what it is told."""

    def __init__(self, candidates: Sequence[Candidate], log: list[str]) -> None:
        self._left = deque(candidates)
        self._log = log

    def ask(self) -> Submission | None:
        return Submission(self._left.popleft(), Origin.SAMPLER, "front-0") if self._left else None

    def tell(self, submission: Submission, result: Result) -> None:
        self._log.append(f"told {result.candidate.partition[0]}")


class ListRecorder:
    """Numbers and remembers trials."""

    def __init__(self, log: list[str]) -> None:
        self.results: list[Result] = []
        self._log = log

    def record(self, submission: Submission, result: Result) -> int:
        self._log.append(f"committed {result.candidate.partition[0]}")
        self.results.append(result)
        return len(self.results) - 1


class OnceLostPool(LocalPool):
    """Loses the first attempts of its candidates, as a dying worker does."""

    def __init__(self, losses: int) -> None:
        super().__init__(ScriptedDriver())
        self._losses = losses
        self.attempts = 0

    def next_done(self, timeout_s: float | None) -> Result | None:
        result = super().next_done(timeout_s)
        if result is None:
            return None
        self.attempts += 1
        if self.attempts <= self._losses:
            return Result(result.candidate, Outcome.LOST, "Ray lost the worker: killed")
        return result


def candidates(count: int) -> list[Candidate]:
    return [Candidate((number,)) for number in range(1, count + 1)]


def run(
    count: int, budget: StoppingRule, pool: LocalPool | None = None, already: int = 0
) -> tuple[Progress, ListRecorder, list[str]]:
    log: list[str] = []
    recorder = ListRecorder(log)
    with pool or LocalPool(ScriptedDriver()) as chosen:
        progress = Progress(finished=already)
        proposer = ListProposer(candidates(count), log)
        progress.stopped = search(proposer, chosen, recorder.record, budget, progress, Unwatched())
    return progress, recorder, log


def test_a_result_is_committed_before_the_proposer_hears_of_it() -> None:
    _, _, log = run(2, StoppingRule(2))
    assert log == ["committed 1", "told 1", "committed 2", "told 2"]


def test_the_budget_counts_what_the_store_already_has() -> None:
    progress, recorder, _ = run(10, StoppingRule(5), already=3)
    assert len(recorder.results) == 2
    assert progress.finished == 5
    assert progress.stopped == "the budget of 5 trials is spent"


def test_an_exhausted_space_ends_the_search_and_says_so() -> None:
    progress, recorder, _ = run(3, StoppingRule(100))
    assert len(recorder.results) == 3
    assert progress.stopped == "nothing new left to try in this space"


def test_a_lost_candidate_is_run_once_more_and_only_once() -> None:
    pool = OnceLostPool(losses=1)
    _, recorder, _ = run(1, StoppingRule(1), pool)
    assert [result.outcome for result in recorder.results] == [Outcome.OK]
    pool = OnceLostPool(losses=2)
    _, recorder, _ = run(1, StoppingRule(1), pool)
    assert [result.outcome for result in recorder.results] == [Outcome.LOST]
    assert pool.attempts == 2


def test_no_time_left_starts_nothing() -> None:
    progress, recorder, _ = run(3, StoppingRule(3, hours=1e-12))
    assert recorder.results == []
    assert progress.stopped.startswith("the budget of 1e-12 hours")


def test_a_budget_of_gpu_hours_counts_what_was_stored_and_what_runs() -> None:
    log: list[str] = []
    acts = [Candidate((number,), {"act": "slow"}) for number in range(1, 9)]  # half a second each
    with LocalPool(ScriptedDriver()) as pool:
        recorder = ListRecorder(log)
        eight_s = StoppingRule(100, gpu_hours=8 / 3600)
        progress = Progress(gpus=4, gpu_hours=4.5 / 3600)
        stopped = search(ListProposer(acts, log), pool, recorder.record, eight_s, progress, Unwatched())
    assert len(recorder.results) == 2  # 4.5 + 2 + 2 GPU-seconds
    assert stopped == "the budget of 0.00222222 GPU-hours is spent"
    assert progress.gpu_hours >= 8 / 3600


class AwayPool(LocalPool):
    """Without slots for a while, and with nothing running: a cluster that is waited for."""

    def __init__(self) -> None:
        super().__init__(ScriptedDriver())
        self.waits = 3

    @property
    def free_slots(self) -> int:
        return 0 if self.waits else super().free_slots

    def next_done(self, timeout_s: float | None) -> Result | None:
        if self.waits:
            self.waits -= 1
            return None
        return super().next_done(timeout_s)


def test_a_pool_without_slots_is_waited_for() -> None:
    progress, recorder, _ = run(2, StoppingRule(2), AwayPool())
    assert len(recorder.results) == 2
    assert progress.stopped == "the budget of 2 trials is spent"


def test_outcomes_are_counted() -> None:
    log: list[str] = []
    acts = ["ok", "oom", "launch", "bench", "slo"]
    with LocalPool(ScriptedDriver()) as pool:
        proposer = ListProposer([Candidate((1,), {"act": act}) for act in acts], log)
        progress = Progress()
        search(proposer, pool, ListRecorder(log).record, StoppingRule(5), progress, Unwatched())
    assert progress.outcomes == {Outcome.OK: 1, Outcome.INFEASIBLE: 2, Outcome.FAILED: 1, Outcome.INVALID: 1}
