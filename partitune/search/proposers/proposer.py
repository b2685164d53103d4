"""A proposer says what to run next and learns from what came back.

Decision: `tell` takes what was asked for and what it gave, and nothing else, because a result read back from the
database must teach exactly as much as one that just arrived: resuming a study is telling it its past.
"""

from __future__ import annotations

from typing import Protocol

from partitune.candidate import Result, Submission


class Proposer(Protocol):
    """Asks for runs; never for the same one twice."""

    def ask(self) -> Submission | None:
        """The next run; None when there is none, for now at least where some are not told of yet."""
        ...

    def tell(self, submission: Submission, result: Result) -> None:
        """Learn from a run that ended, asked for here or read back from the store."""
        ...


class Reserving(Proposer, Protocol):
    """A proposer that leaves alone what others ask for."""

    def reserve(self, submission: Submission) -> bool:
        """Never ask for this candidate from now on. False where it was asked for, or told of, before."""
        ...
