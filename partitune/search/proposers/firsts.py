"""What is tried before anything is learnt: the engine's default, the exact solution, the seeds.

Decision: the first candidates are fixed and no sampler's to choose, whatever it or a simulator thinks of them. Whoever
speaks after them is told of them all the same, and never asks for them again.
"""

from __future__ import annotations

from collections.abc import Iterable

from partitune.candidate import Result, Submission
from partitune.search.proposers.proposer import Reserving


class FirstsProposer:
    """Asks for a fixed list, then for what another proposer asks for."""

    def __init__(self, firsts: Iterable[Submission], then: Reserving) -> None:
        """`firsts` are worked out as they are asked for: a finished study asks for none."""
        self._firsts = iter(firsts)
        self._then = then

    def ask(self) -> Submission | None:
        """The next of the list that is new, then whatever the other one asks for."""
        first = next((submission for submission in self._firsts if self._then.reserve(submission)), None)
        return first or self._then.ask()

    def tell(self, submission: Submission, result: Result) -> None:
        """Teach the other one."""
        self._then.tell(submission, result)

    def reserve(self, submission: Submission) -> bool:
        """Neither of the two asks for it."""
        return self._then.reserve(submission)
