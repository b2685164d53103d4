"""When a run of a study ends, and how far it is.

Decision: one account for all that costs hours: the final spends from the same budget as the search before it. Its runs
come last, so a search that is limited by hours leaves some for it, as a search without a final claims nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from partitune.candidate import Outcome, Result


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When nothing more is started; what runs then is waited for."""

    trials: int | None  # with those already stored; None: any number
    hours: float | None = None  # of this run
    gpu_hours: float | None = None  # of all trials: GPUs x their duration
    later_runs: int = 0  # of the final: the search leaves hours for them, each as long as a trial was

    def spent(self, progress: Progress, slots: int = 1) -> str:
        """Why nothing may start; empty while something may. At most half of the hours is left to later runs."""
        if progress.hopeless:
            return progress.hopeless
        if self.trials is not None and progress.finished + progress.running >= self.trials:
            return f"the budget of {self.trials} trials is spent"
        later_s = self.later_runs * progress.busy_s / max(1, progress.outcomes.total())
        words = "spent but for the final" if later_s else "spent"
        if self.hours is not None:
            left_s = progress.began_s + 3600 * self.hours - time.monotonic()
            if left_s < min(later_s / max(1, slots), 1800 * self.hours):
                return f"the budget of {self.hours:g} hours is {words}"
        if self.gpu_hours is not None:
            left = self.gpu_hours - progress.gpu_hours
            if left <= min(later_s * progress.gpus / 3600, self.gpu_hours / 2):
                return f"the budget of {self.gpu_hours:g} GPU-hours is {words}"
        return ""


@dataclass(slots=True)
class Progress:
    """What the loop tells whoever watches."""

    finished: int = 0  # trials; the runs of a final are none
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    running: int = 0
    gpus: int = 0  # that a trial takes
    gpu_hours: float = 0.0
    busy_s: float = 0.0  # of the trials of this run
    began_s: float = field(default_factory=time.monotonic)
    where: str = ""  # which pool takes the next candidate
    phase: str = ""  # what goes on beside the search itself, and how far it is
    hopeless: str = ""  # why nothing can be found; empty: there is hope
    stopped: str = ""  # why the loop ended

    def count(self, result: Result, running: int) -> None:
        """One more that ended; so many still run."""
        self.finished += not result.repeat
        self.outcomes[result.outcome] += 1
        self.busy_s += result.duration_s
        self.gpu_hours += self.gpus * result.duration_s / 3600
        self.running = running
