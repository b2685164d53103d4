"""The screen of a study that launches: simulated once, stored, and read back when the study goes on.

Decision: what the simulator said is part of the study, for it is what the measured figures are held against. So every
simulated candidate is stored, also those that were only predicted because another one proposed them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from partitune.analysis import trial
from partitune.candidate import Result, Submission
from partitune.execution.driver import Driver
from partitune.execution.pools.local import LocalPool
from partitune.search.budget import Budget, Progress
from partitune.search.events import Unwatched, Watcher
from partitune.search.loop import search
from partitune.search.proposers.proposer import Proposer
from partitune.search.proposers.screened import OPENING, Screened
from partitune.search.space import Space
from partitune.store import Store


@dataclass(slots=True)
class Screen:
    """Stores what was simulated, in its order, and says how far it is."""

    store: Store
    study: str
    watcher: Watcher
    wanted: int = 0
    screened: list[Screened] = field(default_factory=list)

    def run(self, space: Space, sampler: Proposer, simulator: Driver, count: int) -> None:
        """Read what is stored, and simulate what is missing of it now.

        Args:
            space: that the candidates are proposed in; those it would no longer propose are left out.
            sampler: a new one, which the screen alone teaches.
            simulator: that says how good they are.
            count: how many; a seed that is new is simulated whatever the count.
        """
        opening = {first.candidate.digest for first in space.first_proposals()}
        for stored in self.store.screened(self.study):
            submission = stored.submission
            candidate = submission.candidate
            proposable = submission.origin not in OPENING and space.encode(candidate, submission.plan) is not None
            if proposable or candidate.digest in opening:
                sampler.tell(submission, stored.result)
                self.screened.append((submission, stored.result))
        new = opening - {submission.candidate.digest for submission, _ in self.screened}
        self.wanted = max(count, len(self.screened) + len(new))
        progress = Progress(finished=len(self.screened))
        with LocalPool(simulator) as pool:
            search(sampler, pool, self.record, Budget(self.wanted), progress, Unwatched())

    def record(self, submission: Submission, result: Result) -> int:
        """Store what the simulator says of one more; what is stored already stays."""
        self.keep(submission, result)
        self.screened.append((submission, result))
        phase = f"screen, {len(self.screened)} of {self.wanted} candidates simulated"
        self.watcher.tick(Progress(where="in process", phase=phase))
        return len(self.screened)

    def keep(self, submission: Submission, result: Result) -> None:
        """Store one that was predicted after the screen."""
        self.store.record(trial.Screened(self.study, submission.label, result))
