"""Live progress on stderr: one line that moves on a terminal, one line a better trial in a log.

Decision: stdout is for data, so a search can be piped while it is watched. Nothing is printed that was not recorded.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from partitune.analysis.figures import figure
from partitune.candidate import SAMPLER, Objective, Outcome, Result, Submission
from partitune.errors import printable

if TYPE_CHECKING:  # values to draw: what works them out is not imported
    from partitune.search.budget import Progress


class TerminalWatcher:
    """Shows what a `search.events.Watcher` is told. A context manager: leaving it takes the moving line away."""

    def __init__(self, objectives: Sequence[Objective], trials: int, *, quiet: bool) -> None:
        self._objective = objectives[0]
        self._trials = trials
        self._console = Console(file=sys.stderr, highlight=False, quiet=quiet, soft_wrap=True)
        # Draws on a terminal alone. Streams stay as they are: stdout may lead to a file while stderr is a terminal.
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._least_cost = math.inf  # in the objective, of the trials so far
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the moving line away; what is said after that are lines."""
        self._live.stop()

    def said(self, text: str) -> None:
        """One line above the moving one."""
        text = printable(text)
        if self._console.is_terminal:
            self._console.print(Text(text))
        elif not self._console.quiet:  # in one write: a console that a signal interrupts says its last line again
            self._console.file.write(f"{text}\n")

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
        if self._live.is_started:
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)  # one line: it can be erased

    def _is_news(self, result: Result, submission: Submission) -> bool:
        value = result.metric(self._objective.metric) if result.outcome is Outcome.OK else None
        cost = math.inf if value is None else self._objective.cost(value)
        better = cost < self._least_cost
        self._least_cost = min(cost, self._least_cost)
        return better or submission.origin != SAMPLER
