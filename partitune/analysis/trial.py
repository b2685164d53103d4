"""A finished trial of a study: what the search stores, jobs send home and every conclusion is drawn from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from partitune.candidate import DEFAULT, Result, Submission
from partitune.partition import format_partition


@dataclass(frozen=True, slots=True)
class Trial:
    """One finished trial."""

    study: str
    number: int
    revision: int  # of the study's spec that it was measured under
    origin: str  # why it was tried and which plan it was: `exact:front-0`
    finished_at: datetime  # UTC
    result: Result

    @property
    def is_default(self) -> bool:
        """True for the engine's own split with its own flags."""
        return self.submission.origin == DEFAULT

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
        return hashlib.sha256(format_partition(self.result.candidate.partition).encode()).hexdigest()[:12]
