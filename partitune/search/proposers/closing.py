"""What a search tries before it is called finished: whatever the closing analysis would name beside its winner.

Decision: nothing that the last page says of the space is left untried. The default partition at the winner's flags is
what the winner is compared with first; then what the analysis of the winner's own batches finds better, and what an
advice changes within the space, and of the winner that comes out of it again, until nothing new is named. All follow
from the trials alone, so a finished study that is run again asks for none of it a second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from partitune.analysis.advice import Change, advised
from partitune.analysis.comparison import choose
from partitune.analysis.final import DecisionRules
from partitune.analysis.limits import Distance, distances
from partitune.candidate import DEFAULT_PLAN, Candidate, Objective, Origin, Result, Submission
from partitune.errors import RunError, SpecError
from partitune.search.space import Space
from partitune.spec.domains import domain_allows

#: Plan of a partition that the analysis of a winner found.
ANALYSIS_PLAN = "analysis"
#: Trials that a closing adds at most, whether in one run of the study or in several.
MOST_CLOSING = 8


class ClosingProposer:
    """Asks, one at a time, for what the analysis of the best trial so far would name."""

    def __init__(self, space: Space, objectives: Sequence[Objective], rules: DecisionRules, *, analysed: bool) -> None:
        """`analysed`: whether the simulator's finds are tried too, not only the default at the winner's flags."""
        self._space, self._objectives, self._rules, self._analysed = space, objectives, rules, analysed
        self._results: list[Result] = []
        self._known: set[str] = set()
        self._default: int | None = None
        self._added = 0
        self._analyses: dict[str, list[Candidate]] = {}  # by the winner that was analysed

    def ask(self) -> Submission | None:
        """The next that is named and new."""
        best, _ = choose(self._results, self._objectives, self._default, self._rules.zone, caps=self._rules.caps)
        if best is None or self._added >= MOST_CLOSING:
            return None
        named = self._named(self._results[best].candidate)
        new = next((one for one in named if one.candidate.digest not in self._known), None)
        if new is not None:
            self._known.add(new.candidate.digest)
        return new

    def tell(self, submission: Submission, result: Result) -> None:
        """Count a trial, of the search or of the closing itself."""
        if submission.origin == Origin.DEFAULT:
            self._default = len(self._results)
        self._added = self._added + 1 if submission.origin == Origin.CLOSING else 0
        self._known.add(submission.candidate.digest)
        self._results.append(result)

    def _named(self, winner: Candidate) -> Iterator[Submission]:
        problem = self._space.problem.on(winner.layout)
        default = replace(winner, partition=tuple(problem.default_partition))
        yield Submission(default, Origin.CLOSING, DEFAULT_PLAN)
        if self._analysed:
            yield from (Submission(better, Origin.CLOSING, ANALYSIS_PLAN) for better in self._better(winner))

    def _better(self, winner: Candidate) -> Sequence[Candidate]:
        """What the last page would name of the space: partitions for the winner's own batches, and advice on it."""
        if winner.digest not in self._analyses:
            named: list[Candidate] = []
            with suppress(SpecError, RunError):  # a winner that only runs on the real engine
                distance = distances(self._space.problem, winner)
                parts = [distance] if isinstance(distance, Distance) else distance.parts.values()
                named += [replace(winner, partition=part.best_partition) for part in parts]
                advice = advised(self._space.problem, winner)
                named += [change.candidate for change in advice.changes if self._varies(change)]
            self._analyses[winner.digest] = [candidate for candidate in named if self._space.admits(candidate)]
        return self._analyses[winner.digest]

    def _varies(self, change: Change) -> bool:
        """Whether the space lets every flag of a change take its value."""
        domains = self._space.parameters
        return all(name in domains and domain_allows(domains[name], value) for name, value in change.flags.items())
