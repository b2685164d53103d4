"""The final asks for what is due: runs of the finalists round by round, then the last one and the default in turns.

Decision: `analysis.final` says what is due, which follows from what was told. So a final that was killed is told its
past like any other proposer and goes on with the runs that are left.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.analysis.final import Final, FinalRun, run_value
from partitune.candidate import Candidate, Origin, Outcome, Result, Submission
from partitune.search.budget import Progress


class FinalProposer:
    """Asks for every run of a final once, no more than a round at a time: who is in the next is not known before."""

    def __init__(self, final: Final, candidates: Mapping[int, Candidate], progress: Progress) -> None:
        """`candidates` are those of all trials, by number; `progress` is told which run comes."""
        self._final, self._candidates, self._progress = final, candidates, progress
        self._trials = {candidate.digest: number for number, candidate in candidates.items()}
        self._done: dict[FinalRun, float | Outcome] = {}
        self._asked: set[FinalRun] = set()  # and not told of yet

    @property
    def due(self) -> tuple[FinalRun, ...]:
        """What is left to run before more is known; nothing: the final is over."""
        return self._final.standing(self._done)[1]

    def ask(self) -> Submission | None:
        """The next run that is due."""
        run = next((run for run in self.due if run not in self._asked), None)
        if run is None:
            return None
        self._asked.add(run)
        begun = len(self._asked) + len([done for done in self._done if done.trial in self._final.trials])
        self._progress.phase = f"final, {run.text} ({begun} of at most {self._final.most_runs} runs)"
        return Submission(self._candidates[run.trial], Origin.FINAL, run.phase, repeat=run.load)

    def tell(self, submission: Submission, result: Result) -> None:
        """Count a run, asked for here or made before."""
        run = self.run_of(submission)
        self._asked.discard(run)
        self._done[run] = run_value(result, self._final.objective)

    def run_of(self, submission: Submission) -> FinalRun:
        """Which run of the final was submitted."""
        return FinalRun.under(submission.repeat, self._trials[submission.candidate.digest])
