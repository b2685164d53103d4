"""What every Proposer promises. Subclasses say how to make one over a scripted space, fresh, with the same seed."""

from __future__ import annotations

from partitune.candidate import Result, Submission
from partitune.execution.driver import Driver, run
from partitune.search.proposers.proposer import Proposer
from tests.scripted import ScriptedDriver


def walk(proposer: Proposer, steps: int, driver: Driver | None = None) -> list[tuple[Submission, Result]]:
    """Ask and tell one after the other, as a pool with one slot does."""
    found = []
    for _ in range(steps):
        submission = proposer.ask()
        if submission is None:
            break
        result = run(driver or ScriptedDriver(), submission.candidate, submission.repeat)
        proposer.tell(submission, result)
        found.append((submission, result))
    return found


class ProposerContract:
    #: Runs that the proposer of `make` asks for in all.
    size: int
    #: Runs that it asks for before it is told of any; None: all.
    at_once: int | None = None
    driver: Driver = ScriptedDriver()

    def make(self) -> Proposer:
        raise NotImplementedError

    def test_no_run_comes_twice_and_a_finite_space_ends(self) -> None:
        proposer = self.make()
        asked = walk(proposer, 10 * self.size, self.driver)
        keys = [submission.key for submission, _ in asked]
        assert len(keys) == len(set(keys)) == self.size
        assert proposer.ask() is None

    def test_what_is_running_is_not_proposed_again(self) -> None:
        proposer, most = self.make(), self.at_once or self.size
        asked = [proposer.ask() for _ in range(most)]
        assert len({submission.key for submission in asked if submission is not None}) == most
        assert proposer.ask() is None

    def test_equal_seeds_propose_equally(self) -> None:
        first, second = (walk(self.make(), self.size, self.driver) for _ in range(2))
        assert [submission for submission, _ in first] == [submission for submission, _ in second]

    def test_a_resumed_study_goes_on_as_the_uninterrupted_one(self) -> None:
        whole = walk(self.make(), self.size, self.driver)
        for stored in (1, 3, self.size // 2, self.size - 1):
            resumed = self.make()
            for submission, result in whole[:stored]:
                resumed.tell(submission, result)
            rest = walk(resumed, self.size, self.driver)
            assert [submission for submission, _ in rest] == [submission for submission, _ in whole[stored:]]

    def test_results_may_come_back_in_any_order(self) -> None:
        """Side by side, the one asked for last may be stored first; nothing is proposed twice after a resume."""
        proposer = self.make()
        asked = [submission for _ in range(4) if (submission := proposer.ask()) is not None]
        resumed = self.make()
        for submission in reversed(asked):
            resumed.tell(submission, run(self.driver, submission.candidate, submission.repeat))
        rest = walk(resumed, 10 * self.size, self.driver)
        keys = {submission.key for submission, _ in rest}
        assert keys.isdisjoint(submission.key for submission in asked)
        assert len(keys) == self.size - len(asked)
