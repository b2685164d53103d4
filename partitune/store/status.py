"""What a stored study has come to: how far it is, and what it found, read while another process may write to it.

Decision: nothing is asked of the running search, so it cannot be disturbed, and the answer is the same after a crash.
The rate is that of the last trials, because the first ones run while workers still start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from partitune.analysis.final import DecisionRules
from partitune.analysis.pareto import front
from partitune.analysis.summary import Summary, summarise
from partitune.analysis.trial import Trial
from partitune.candidate import Caveats, Objective, Outcome
from partitune.store import Store, StudyState

#: Trials that the rate is taken from.
RECENT = 50


@dataclass(frozen=True, slots=True)
class StudyStatus:
    """One look at a study."""

    study: str
    state: StudyState
    running: bool  # a process works on it; a killed one leaves the state, and no lock
    writer: str  # who writes to the database now; empty: nobody
    trials: dict[str, int]  # by outcome, under the spec it has now
    set_aside: int  # trials measured under an earlier spec of the study; in no other figure here
    budget_trials: int
    per_minute: float | None  # None: too few trials to say
    minutes_left: float | None  # until the budget of trials is spent; None while none runs or the rate is unknown
    screened: int  # candidates simulated before a launch
    final_runs: int  # trials run again, after the last of them
    best: Trial | None
    objective: Objective
    caveats: Caveats  # of what was simulated

    @property
    def finished(self) -> int:
        """Trials stored, under the spec it has now."""
        return sum(self.trials.values())

    def to_json(self) -> dict[str, Any]:
        """The object that `status --json` prints."""
        best, metric = self.best, self.objective.metric
        told = {name: getattr(self, name) for name in _TOLD}
        shown = None if best is None else {"trial": best.number, "metric": metric, "value": best.result.metric(metric)}
        return told | {"best": shown} | self.caveats.to_json()

    def to_text(self) -> str:
        """The line that `status` prints, for people."""
        state = self.state.value
        if self.state is StudyState.RUNNING and not self.writer:
            state = "interrupted (its process is gone; the same search command goes on)"
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.trials.items() if count)
        parts = [f"{self.study}: {state}", f"{self.finished}/{self.budget_trials} trials ({counts or 'none yet'})"]
        told = (
            (self.set_aside, f"{self.set_aside} of an earlier spec set aside"),
            (self.screened, f"{self.screened} screened in the simulator"),
            (self.final_runs, f"{self.final_runs} runs of the final"),
            (self.running and self.per_minute is not None, f"{self.per_minute or 0:.3g} a minute"),
            (self.minutes_left is not None, f"about {_span(self.minutes_left or 0)} left"),
        )
        parts += [text for holds, text in told if holds]
        if self.best is not None:
            value = self.best.result.metric(self.objective.metric)
            partition = self.best.result.candidate.partition_text
            what = "best single run" if self.final_runs else "best"  # which trial to use is for `show` to say
            parts.append(f"{what} {self.objective.metric} {value:.4g} (trial {self.best.number}, {partition})")
        if self.best is not None and self.caveats.not_modelled:
            parts.append(f"not modelled: {' '.join(self.caveats.not_modelled)}")
        return ", ".join(parts)


#: Fields of a status that its object has as they are.
_TOLD = [part.name for part in fields(StudyStatus) if part.name not in ("objective", "caveats")]


def look(store: Store, study: str, objectives: Sequence[Objective], budget_trials: int) -> StudyStatus:
    """How far `study` is at this moment; takes no lock. Raises StoreError: no such study, a damaged row."""
    trials = store.trials(study, stages=False)
    results = [trial.result for trial in trials]
    best = next(iter(front(results, objectives[:1])), None)
    record, writer = store.study(study), store.writer()
    state = record.state
    running, left = state is StudyState.RUNNING and bool(writer), budget_trials - len(trials)
    per_minute = _per_minute(trials[-RECENT:], datetime.now(UTC))
    return StudyStatus(
        study=study,
        state=state,
        running=running,
        writer=writer,
        trials={outcome.value: sum(result.outcome is outcome for result in results) for outcome in Outcome},
        set_aside=len(store.set_aside(study)),
        budget_trials=budget_trials,
        per_minute=per_minute,
        minutes_left=left / per_minute if running and per_minute and left > 0 else None,
        screened=len(store.screened(study)),
        final_runs=len(store.repeats(study)),
        best=None if best is None else trials[best],
        objective=objectives[0],
        caveats=Caveats.from_json(record.caveats),
    )


def stored_summary(store: Store, study: str, objectives: Sequence[Objective], rules: DecisionRules) -> Summary:
    """What `study` found. Stages are read only of the trials that the summary names. Raises StoreError."""
    return summarise(
        study,
        store.label,
        store.trials(study, stages=False),
        objectives,
        rules,
        runs={repeat.run: repeat.result for repeat in store.repeats(study)},
        screened=[screened.result for screened in store.screened(study)],
        set_aside=store.set_aside(study),
        caveats=Caveats.from_json(store.study(study).caveats),
        with_stages=lambda trial: store.trial(study, trial.number),
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
