"""A proposer says what to run next and learns from what came back; a fixed list is tried before anything is learnt.

Decisions:
- `tell` takes what was asked for and what it gave, and nothing else, because a result read back from the database must
  teach exactly as much as one that just arrived: resuming a study is telling it its past.
- The first candidates (the engine's default, the exact solution, the seeds) are fixed and no sampler's to choose,
  whatever it or a simulator thinks of them. Whoever speaks after them is told of them all the same, and never asks for
  them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from partitune.candidate import Result, Submission


class Proposer(Protocol):
    """Asks for runs; never for the same one twice."""

    def ask(self) -> Submission | None:
        """The next run; None when there is none, for now at least where some are not told of yet."""

    def tell(self, submission: Submission, result: Result) -> None:
        """Learn from a run that ended, asked for here or read back from the store."""


class Reserving(Proposer, Protocol):
    """A proposer that leaves alone what others ask for."""

    def reserve(self, submission: Submission) -> bool:
        """Never ask for this candidate from now on. False where it was asked for, or told of, before."""


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
        """Teach the other one, whoever asked for it."""
        self._then.tell(submission, result)

    def reserve(self, submission: Submission) -> bool:
        """Neither of the two asks for it."""
        return self._then.reserve(submission)
