"""Two fidelities: thousands simulated, few launched, and the simulator followed only as far as it proves right.

Decisions:
- The screen is an ordinary study on the simulator. Its order of the candidates, thinned so that two which it cannot
  tell apart are not both launched, is what the cluster measures next.
- Every launch is a test of the simulator. As its rank agreement falls or its error grows past the gain it promises,
  more of the launches go to a sampler that has only ever seen measured figures.
- The opening is not the simulator's to choose: the engine's default, the exact optimum and the seeds are launched
  whatever it thinks of them, as a person expects the vectors he names to be tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter

from partitune.analysis.comparison import INDIFFERENCE_ZONE, gain
from partitune.analysis.fidelity import Fidelity, fidelity
from partitune.analysis.trial import Screened
from partitune.candidate import MADE_UP, Candidate, Objective, Origin, Outcome, Result, Submission
from partitune.execution.driver import Driver, run
from partitune.search.proposers.proposer import Reserving

#: Origins of the candidates that are launched first, whatever the screen says.
OPENING = (Origin.DEFAULT, Origin.EXACT, Origin.SEED)
#: Stores what the simulator says of a candidate.
Keep = Callable[[Submission, Result], object]
#: Layers moved between stages up to which two partitions under equal flags are close.
CLOSE_LAYERS = 2


class ScreenedProposer:
    """Proposes what the screen ranks best, or what the measured figures suggest; trust decides the shares."""

    def __init__(
        self, sampler: Reserving, screened: Sequence[Screened], objective: Objective, simulator: Driver, keep: Keep
    ) -> None:
        """`objective` is the first one; `simulator` predicts candidates the screen did not hold, `keep` stores it."""
        self._sampler = sampler
        self._objective = objective
        self._simulator = simulator
        self._keep = keep
        self._predicted = {stored.result.candidate.digest: self._value(stored.result) for stored in screened}
        defaults = (self._value(stored.result) for stored in screened if stored.submission.origin == Origin.DEFAULT)
        self._default = next(defaults, None)  # what is predicted of it
        self._ranked = self._rank(screened)
        self._asked: dict[str, Submission] = {}  # launched or in flight, by digest
        self._pairs: list[tuple[float, float]] = []

    @property
    def fidelity(self) -> Fidelity:
        """How the simulator fared so far."""
        return fidelity(self._pairs)

    def ask(self) -> Submission | None:
        """From the screen or the sampler, in the shares that the simulator has earned."""
        promoted = self._promote() if self._screens_turn() else None
        chosen = promoted or self._sampler.ask() or self._promote()
        if chosen is not None:
            self.reserve(chosen)
        return chosen

    def tell(self, submission: Submission, result: Result) -> None:
        """Teach the sampler, and hold the simulator against what was measured."""
        digest = submission.candidate.digest
        self._asked[digest] = submission
        self._sampler.tell(submission, result)
        measured = self._value(result)
        if measured is None:
            return
        if digest not in self._predicted:
            late = run(self._simulator, submission.candidate)
            self._predicted[digest] = self._value(late)
            self._keep(submission, late)
        predicted = self._predicted[digest]
        if predicted is not None:
            self._pairs.append((predicted, measured))

    def reserve(self, submission: Submission) -> bool:
        """Never ask for this candidate from now on. False where it was asked for, or told of, before."""
        if submission.candidate.digest in self._asked:
            return False
        self._asked[submission.candidate.digest] = submission
        self._sampler.reserve(submission)
        return True

    def _screens_turn(self) -> bool:
        promoted = sum(submission.promoted for submission in self._asked.values())
        sampled = sum(not one.promoted and one.origin in MADE_UP for one in self._asked.values())
        return promoted < self.fidelity.trust(self._promised()) * (promoted + sampled + 1)

    def _promised(self) -> float | None:
        """Gain over the default of the best candidate that is not launched yet, as simulated; None without a default.

        The default is the engine's own and nothing else: measured against the exact plan, nothing would promise a gain.
        """
        best = next((self._predicted[submission.candidate.digest] for submission in self._left()), None)
        if best is None:
            return 0.0
        return None if self._default is None else max(0.0, gain(self._objective, self._default, best))

    def _left(self) -> list[Submission]:
        """Candidates that are not launched, the best first."""
        return [submission for submission in self._ranked if submission.candidate.digest not in self._asked]

    def _promote(self) -> Submission | None:
        """The best candidate not launched; one that is like a launched one waits for the others."""
        left = self._left()
        apart = (submission for submission in left if not self._is_close(submission.candidate))
        return next(apart, left[0] if left else None)

    def _is_close(self, candidate: Candidate) -> bool:
        """Same flags, hardly another partition, and the same figure as a launched candidate as far as can be told."""
        mine = self._predicted[candidate.digest]
        for digest, asked in self._asked.items():
            value, other = self._predicted.get(digest), asked.candidate
            if mine is None or value is None or other.settings != candidate.settings:
                continue
            alike = abs(gain(self._objective, value, mine)) <= INDIFFERENCE_ZONE
            if alike and layers_moved(candidate.partition, other.partition) <= CLOSE_LAYERS:
                return True
        return False

    def _rank(self, screened: Sequence[Screened]) -> list[Submission]:
        ranked = [
            (self._objective.cost(value), stored.submission)
            for stored in screened
            if stored.submission.origin not in OPENING and (value := self._value(stored.result)) is not None
        ]
        return [replace(submission, promoted=True) for _, submission in sorted(ranked, key=itemgetter(0))]

    def _value(self, result: Result) -> float | None:
        return result.metric(self._objective.metric) if result.outcome is Outcome.OK else None


def layers_moved(before: Sequence[int], after: Sequence[int]) -> int:
    """Layers that stand on another stage, counted once, between partitions of one layout."""
    return sum(abs(a - b) for a, b in zip(before, after, strict=True)) // 2
