"""What every Proposer promises. Subclasses say how to make one over a scripted space, fresh, with the same seed."""

from __future__ import annotations

from partitune.candidate import Result
from partitune.execution.driver import run
from partitune.search.proposers.proposer import Proposer
from partitune.search.space import Proposal
from tests.scripted import ScriptedDriver

DRIVER = ScriptedDriver()


def measure(proposal: Proposal) -> Result:
    return run(DRIVER, proposal.candidate)


def walk(proposer: Proposer, steps: int) -> list[tuple[Proposal, Result]]:
    """Ask and tell one after the other, as a pool with one slot does."""
    found = []
    for _ in range(steps):
        proposal = proposer.ask()
        if proposal is None:
            break
        result = measure(proposal)
        proposer.tell(result, proposal.label)
        found.append((proposal, result))
    return found


class ProposerContract:
    #: Candidates that the space of `make` holds in all.
    size: int

    def make(self) -> Proposer:
        raise NotImplementedError

    def test_the_engines_default_comes_first(self) -> None:
        first = self.make().ask()
        assert first is not None
        assert first.origin == "default"

    def test_no_candidate_comes_twice_and_a_finite_space_ends(self) -> None:
        proposer = self.make()
        asked = walk(proposer, 10 * self.size)
        digests = [proposal.candidate.digest for proposal, _ in asked]
        assert len(digests) == len(set(digests)) == self.size
        assert proposer.ask() is None

    def test_what_is_running_is_not_proposed_again(self) -> None:
        proposer = self.make()
        asked = [proposer.ask() for _ in range(self.size)]
        digests = {proposal.candidate.digest for proposal in asked if proposal is not None}
        assert len(digests) == self.size
        assert proposer.ask() is None

    def test_equal_seeds_propose_equally(self) -> None:
        first, second = (walk(self.make(), self.size) for _ in range(2))
        assert [proposal for proposal, _ in first] == [proposal for proposal, _ in second]

    def test_a_resumed_study_goes_on_as_the_uninterrupted_one(self) -> None:
        whole = walk(self.make(), self.size)
        for stored in (1, 3, self.size // 2, self.size - 1):
            resumed = self.make()
            for proposal, result in whole[:stored]:
                resumed.tell(result, proposal.label)
            rest = walk(resumed, self.size)
            assert [proposal for proposal, _ in rest] == [proposal for proposal, _ in whole[stored:]]

    def test_results_may_come_back_in_any_order(self) -> None:
        """Side by side, the one asked for last may be stored first; nothing is proposed twice after a resume."""
        proposer = self.make()
        asked = [proposal for _ in range(4) if (proposal := proposer.ask()) is not None]
        resumed = self.make()
        for proposal in reversed(asked):
            resumed.tell(measure(proposal), proposal.label)
        rest = walk(resumed, 10 * self.size)
        digests = {proposal.candidate.digest for proposal, _ in rest}
        assert digests.isdisjoint(proposal.candidate.digest for proposal in asked)
        assert len(digests) == self.size - len(asked)
