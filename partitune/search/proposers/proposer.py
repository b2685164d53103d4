"""A proposer says what to measure next and learns from what came back.

Decision: `tell` takes a finished Result and nothing else, because a result read back from the database must teach
exactly as much as one that just arrived: resuming a study is telling it its past.
"""

from __future__ import annotations

from typing import Protocol

from partitune.candidate import Result
from partitune.search.space import Proposal


class Proposer(Protocol):
    """Proposes candidates; never the same one twice."""

    def ask(self) -> Proposal | None:
        """The next candidate, None when nothing new is left to try."""
        ...

    def tell(self, result: Result, label: str) -> None:
        """Learn from a finished trial, asked for here or read back from the store."""
        ...
