"""The final: which runs are still due before anything is claimed, and what they said.

Decisions:
- The best of many trials looks better than it is (of 100 equal ones by 2.5 standard deviations), so the figures that
  made a trial the best never count in the verdict. Finalists run again on fresh servers and are halved round by round,
  what they ran before counting on; then the last one and the engine's default run in turns, and only these pairs speak.
- What is due follows from what was run, so a final goes on where it stopped.
- Every run of a round has the same number, from which the load's seed follows: all finalists answer the same requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from partitune.analysis.significance import survivors
from partitune.result import Objective

Phase = Literal["selection", "verdict"]
#: The value of the first objective of every run that was made; None where it failed.
Done = Mapping["Run", float | None]


@dataclass(frozen=True, slots=True)
class Run:
    """One fresh start of a trial's deployment."""

    phase: Phase
    repeat: int  # 1, 2, …: the round of the selection, or the pair of the verdict
    trial: int  # number of the trial that is run again


@dataclass(frozen=True, slots=True)
class Final:
    """Who takes part: trial numbers, and what their trials measured."""

    objective: Objective  # the first one, which names the winner
    default: int | None  # the engine's default; None when it has nothing to be compared by
    finalists: Mapping[int, float]  # best first: trial -> value of the objective
    pairs: int  # runs of the default and of the winner, each

    def standing(self, done: Done) -> tuple[tuple[int, ...], tuple[Run, ...]]:
        """Finalists still in, best first, and the runs that are due now; nothing due: the final is over."""
        left = list(self.finalists)
        values = {trial: [value] for trial, value in self.finalists.items()}
        repeat = 1
        while len(left) > 1:
            runs = [Run("selection", repeat, trial) for trial in left]
            if due := tuple(run for run in runs if run not in done):
                return tuple(left), due
            for run in runs:
                value = done[run]
                values[run.trial] = [*values[run.trial], value] if value is not None else []
            kept = survivors(self.objective, [values[trial] for trial in left], (len(left) + 1) // 2)
            left = [left[index] for index in kept]
            repeat += 1
        if not left or self.default is None:
            return tuple(left), ()
        runs = [Run("verdict", pair, trial) for pair in range(1, self.pairs + 1) for trial in self._turn(pair, left[0])]
        return tuple(left), tuple(run for run in runs if run not in done)

    def measured_pairs(self, done: Done) -> tuple[tuple[Run, Run], ...]:
        """(run of the default, run of the winner) of every pair of which both were measured."""
        left, _ = self.standing(done)
        if len(left) != 1 or self.default is None:
            return ()
        numbers = range(1, self.pairs + 1)
        pairs = [(Run("verdict", pair, self.default), Run("verdict", pair, left[0])) for pair in numbers]
        return tuple(pair for pair in pairs if all(done.get(run) is not None for run in pair))

    def _turn(self, pair: int, winner: int) -> Sequence[int]:
        """Who goes first changes from pair to pair: what always comes second would gain or lose by a drift."""
        assert self.default is not None  # noqa: S101 - asked before
        return (self.default, winner) if pair % 2 else (winner, self.default)


def most_runs(finalists: int, pairs: int) -> int:
    """Starts that a final takes when nothing fails."""
    runs, left = 2 * pairs, finalists
    while left > 1:
        runs, left = runs + left, (left + 1) // 2
    return runs
