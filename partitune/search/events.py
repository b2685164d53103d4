"""What whoever watches a search is told.

Decision: one protocol from the loop to the terminal, each event a method with nothing in it to ask for. What a watcher
is told of was recorded before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from partitune.candidate import Result, Submission
from partitune.search.budget import Progress


class Watcher(Protocol):
    """Hears of everything that happens. An exception that a method raises ends the search, as Ctrl-C does."""

    def resumed(self, results: Sequence[Result]) -> None:
        """These trials were stored before the search began or went on."""
        ...

    def finished(self, progress: Progress, number: int, submission: Submission, result: Result) -> None:
        """A run ended and is recorded; `number` is that of its trial."""

    def tick(self, progress: Progress) -> None:
        """Time passed, a run was given to the pool, or another figure of `progress` changed."""

    def said(self, text: str) -> None:
        """One sentence that a person should read."""


class Unwatched(Watcher):
    """Shows nothing; a watcher that shows little overrides what it shows."""

    def resumed(self, results: Sequence[Result]) -> None:
        """Say nothing of what is known."""

    def finished(self, progress: Progress, number: int, submission: Submission, result: Result) -> None:
        """Say nothing of a run that ended."""

    def tick(self, progress: Progress) -> None:
        """Say nothing of how far the search is."""

    def said(self, text: str) -> None:
        """Say nothing to anybody, whatever it is."""
