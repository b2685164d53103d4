"""Live progress on stderr: one line that moves on a terminal, one line a better trial in a log.

Decision: stdout is for data, so a search can be piped while it is watched. Nothing is printed that was not recorded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from partitune.analysis.figures import figure
from partitune.candidate import Objective, Outcome, Result
from partitune.partition import format_partition

if TYPE_CHECKING:  # values to draw: what works them out is not imported
    from partitune.search.budget import Progress
    from partitune.search.space import Proposal


class Watcher:
    """Shows a running search. Call it as the loop's `watch`."""

    def __init__(self, objectives: Sequence[Objective], trials: int, *, quiet: bool) -> None:
        self._objective = objectives[0]
        self._trials = trials
        self._console = Console(file=sys.stderr, highlight=False, quiet=quiet, soft_wrap=True)
        self._live = (
            Live(console=self._console, auto_refresh=False, transient=True) if self._console.is_terminal else None
        )
        self._best: float | None = None
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """One line above the moving one."""
        self._console.print(Text(text))

    def __call__(
        self, progress: Progress, number: int | None, proposal: Proposal | None, result: Result | None
    ) -> None:
        """Show what just happened: a trial that is better than all before gets a line that stays."""
        if result is not None and proposal is not None and self._is_news(result, proposal):
            name = self._objective.metric
            value = result.reason or f"{name} {figure(result.metric(name), name)}"
            partition = format_partition(result.candidate.partition)
            self.say(f"trial {number} ({proposal.label}) {partition} {result.outcome}: {value}")
        if self._live is not None:
            counts = ", ".join(f"{count} {outcome}" for outcome, count in progress.outcomes.items()) or "none yet"
            line = progress.phase or f"{progress.finished}/{self._trials} trials ({counts})"
            line += "" if progress.phase and not progress.running else f", {progress.running} running"
            line += f", {time.monotonic() - self._start:.0f} s, {progress.where}"
            self._live.update(Text(line), refresh=True)

    def _is_news(self, result: Result, proposal: Proposal) -> bool:
        value = result.metric(self._objective.metric)
        if result.outcome is not Outcome.OK or value is None:
            return proposal.origin != "sampler"
        better = self._best is None or self._objective.cost(value) < self._objective.cost(self._best)
        if better:
            self._best = value
        return better or proposal.origin != "sampler"
