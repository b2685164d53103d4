"""Live progress on stderr: one line that moves on a terminal, one line a better trial in a log.

Decision: stdout is for data, so a search can be piped while it is watched. Nothing is printed that was not recorded.
The moving line is one write of our own: rich's Live says its last line again after a signal, and takes stdout over.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from rich.text import Text

from partitune.analysis.figures import figure
from partitune.candidate import MADE_UP, Objective, Outcome, Result, Submission
from partitune.errors import printable

if TYPE_CHECKING:  # values to draw: what works them out is not imported
    from partitune.search.budget import Progress

_ERASE_LINE = "\r\x1b[2K"


class TerminalWatcher:
    """Shows what a `search.events.Watcher` is told. A context manager: leaving it takes the moving line away."""

    def __init__(self, objectives: Sequence[Objective], trials: int, *, quiet: bool) -> None:
        self._objective = objectives[0]
        self._trials = trials
        self._quiet, self._moves = quiet, not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._least_cost = math.inf  # in the objective, of the trials so far
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the moving line away; what is said after that are lines."""
        if self._moves:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()
        self._moves = False

    def said(self, text: str) -> None:
        """One line above the moving one, which the next tick draws again."""
        if not self._quiet:
            sys.stderr.write(f"{_ERASE_LINE if self._moves else ''}{printable(text)}\n")

    def resumed(self, results: Sequence[Result]) -> None:
        """What was stored before is no news, and a trial has to be better than all of it to be."""
        self._least_cost = min(map(self._cost, results), default=math.inf)

    def finished(self, progress: Progress, number: int, submission: Submission, result: Result) -> None:
        """A trial that is better than all before gets a line that stays."""
        if not submission.repeat and self._is_news(result, submission):
            name = self._objective.metric
            value = result.reason or f"{name} {figure(result.metric(name), name)}"
            partition = result.candidate.partition_text
            self.said(f"trial {number} ({submission.label}) {partition} {result.outcome}: {value}")
        self.tick(progress)

    def tick(self, progress: Progress) -> None:
        """Draw the moving line anew."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in progress.outcomes.items()) or "none yet"
        line = progress.phase or f"{progress.finished}/{self._trials} trials ({counts})"
        line += "" if progress.phase and not progress.running else f", {progress.running} running"
        line += f", {time.monotonic() - self._start:.0f} s, {progress.where}"
        if self._moves:
            shown = Text(line)
            shown.truncate(os.get_terminal_size(sys.stderr.fileno()).columns - 1, overflow="ellipsis")
            sys.stderr.write(_ERASE_LINE + shown.plain)
            sys.stderr.flush()

    def _cost(self, result: Result) -> float:
        value = result.metric(self._objective.metric) if result.outcome is Outcome.OK else None
        return math.inf if value is None else self._objective.cost(value)

    def _is_news(self, result: Result, submission: Submission) -> bool:
        cost = self._cost(result)
        better = cost < self._least_cost
        self._least_cost = min(cost, self._least_cost)
        return better or submission.promoted or submission.origin not in MADE_UP
