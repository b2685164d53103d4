"""What a study holds: finished trials, and beside them what was only simulated and what was run again.

Decision: the search stores these values, jobs send them home and every conclusion is drawn from them. Whoever writes
one down, in rows or in lines of a log, reads it back by its types, so they are described here and nowhere else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from partitune.analysis.final import FinalRun, Phase
from partitune.candidate import Origin, Result, Submission


@dataclass(frozen=True, slots=True)
class Trial:
    """One finished trial of a study, with its number."""

    study: str
    number: int
    origin: str  # why it was tried and which plan it was: `exact:front-0`
    finished_at: datetime  # UTC
    result: Result
    revision: int = 0  # of the study's spec that it was measured under

    @property
    def text(self) -> str:
        """What messages call it, such as `trial 3`."""
        return f"trial {self.number}"

    @property
    def is_default(self) -> bool:
        """True for the engine's own split with its own flags."""
        return self.submission.origin == Origin.DEFAULT

    @property
    def submission(self) -> Submission:
        """What was asked for, as `origin` says it in one text."""
        return Submission.labelled(self.result.candidate, self.origin)

    @property
    def started_at(self) -> datetime:
        """When its measurement began, in UTC."""
        return self.finished_at - timedelta(seconds=self.result.duration_s)

    @property
    def plan_digest(self) -> str:
        """12 hex digits of the partition alone; equal partitions have equal digests in any process."""
        return hashlib.sha256(self.result.candidate.partition_text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Screened:
    """A candidate as it was simulated before a launch, without its stages."""

    study: str
    origin: str  # as that of a trial
    result: Result

    @property
    def text(self) -> str:
        """What messages call it; it has no number."""
        return "a simulated candidate"

    @property
    def submission(self) -> Submission:
        """What was asked for, as `origin` says it in one text."""
        return Submission.labelled(self.result.candidate, self.origin)


@dataclass(frozen=True, slots=True)
class Repeat:
    """One run of a final, without its stages."""

    study: str
    phase: Phase
    repeat: int  # as that of a `FinalRun`
    trial: int  # number of the trial that was run again
    finished_at: datetime  # UTC
    result: Result

    @property
    def text(self) -> str:
        """What messages call it, such as `verdict, pair 2, trial 3`."""
        return self.run.text

    @property
    def origin(self) -> str:
        """Why it was run, as that of a trial: `final:verdict-2`."""
        return f"{Origin.FINAL}:{self.phase}-{self.repeat}"

    @property
    def run(self) -> FinalRun:
        """Which run of the final it was."""
        return FinalRun(self.phase, self.repeat, self.trial)
