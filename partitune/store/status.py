"""How far a study is, read from its database while another process writes to it.

Decision: nothing is asked of the running search, so it cannot be disturbed, and the answer is the same after a crash.
The rate is that of the last trials, because the first ones run while workers still start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from partitune.analysis.pareto import best_by
from partitune.analysis.trial import Trial
from partitune.candidate import Objective, Outcome
from partitune.store import Store, StudyState

#: Trials that the rate is taken from.
RECENT = 50


@dataclass(frozen=True, slots=True)
class StudyStatus:
    """One look at a study."""

    study: str
    state: StudyState
    writer: str  # who writes to the database now; empty: nobody
    counts: dict[str, int]
    set_aside: int  # trials measured under an earlier spec of the study; in no other figure here
    budget_trials: int
    per_minute: float | None  # None: too few trials to say
    objective: Objective
    best: Trial | None
    screened: int = 0  # candidates simulated before a launch
    final_runs: int = 0  # trials run again, after the last of them

    @property
    def finished(self) -> int:
        """Trials stored, under the spec it has now."""
        return sum(self.counts.values())

    @property
    def running(self) -> bool:
        """True while a process works on it. A killed one leaves the state, and no lock."""
        return self.state is StudyState.RUNNING and bool(self.writer)

    @property
    def minutes_left(self) -> float | None:
        """Until the budget of trials is spent at this rate; None while none runs or the rate is unknown."""
        left = self.budget_trials - self.finished
        return left / self.per_minute if self.running and self.per_minute and left > 0 else None

    def to_json(self) -> dict[str, Any]:
        """The object that `status --json` prints."""
        best = self.best
        value = None if best is None else best.result.metric(self.objective.metric)
        return {
            "study": self.study,
            "state": self.state.value,
            "running": self.running,
            "writer": self.writer,
            "trials": self.counts,
            "set_aside": self.set_aside,
            "budget_trials": self.budget_trials,
            "per_minute": self.per_minute,
            "minutes_left": self.minutes_left,
            "screened": self.screened,
            "final_runs": self.final_runs,
            "best": None if best is None else {"trial": best.number, "metric": self.objective.metric, "value": value},
        }

    def to_text(self) -> str:
        """The line that `status` prints, for people."""
        state = self.state.value
        if self.state is StudyState.RUNNING and not self.writer:
            state = "interrupted (its process is gone; the same search command goes on)"
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items() if count)
        parts = [f"{self.study}: {state}", f"{self.finished}/{self.budget_trials} trials ({counts or 'none yet'})"]
        if self.set_aside:
            parts.append(f"{self.set_aside} of an earlier spec set aside")
        if self.screened:
            parts.append(f"{self.screened} screened in the simulator")
        if self.final_runs:
            parts.append(f"{self.final_runs} runs of the final")
        if self.running and self.per_minute is not None:
            parts.append(f"{self.per_minute:.3g} a minute")
        if self.minutes_left is not None:
            parts.append(f"about {_span(self.minutes_left)} left")
        if self.best is not None:
            value = self.best.result.metric(self.objective.metric)
            partition = self.best.result.candidate.partition_text
            what = "best single run" if self.final_runs else "best"  # which trial to use is for `show` to say
            parts.append(f"{what} {self.objective.metric} {value:.4g} (trial {self.best.number}, {partition})")
        return ", ".join(parts)


def look(store: Store, study: str, objectives: Sequence[Objective], budget_trials: int) -> StudyStatus:
    """How far `study` is at this moment; takes no lock. Raises StoreError: no such study, a damaged row."""
    trials = store.trials(study, stages=False)
    results = [trial.result for trial in trials]
    best = best_by(results, objectives[0])
    return StudyStatus(
        study=study,
        state=store.study(study).state,
        writer=store.writer(),
        counts={outcome.value: sum(result.outcome is outcome for result in results) for outcome in Outcome},
        set_aside=len(store.set_aside(study)),
        budget_trials=budget_trials,
        per_minute=_per_minute(trials[-RECENT:], datetime.now(UTC)),
        objective=objectives[0],
        best=None if best is None else trials[best],
        screened=len(store.screened(study)),
        final_runs=len(store.repeats(study)),
    )


def _per_minute(recent: Sequence[Trial], now: datetime) -> float | None:
    if len(recent) < 2:
        return None
    span_s = max((now - recent[0].finished_at).total_seconds(), 1e-3)
    return 60 * (len(recent) - 1) / span_s


def _span(minutes: float) -> str:
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
