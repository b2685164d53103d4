"""The final: which runs are still due before anything is claimed, and what they said.

Decisions:
- The best of many trials looks better than it is (of 100 equal ones by 2.5 standard deviations), so the figures that
  made a trial the best never count in the verdict. Finalists run again on fresh servers and are halved round by round,
  what they ran before counting on; then the last one and the engine's default run in turns, and only these pairs speak.
- What is due follows from what was run, so a final goes on where it stopped.
- Every run of a round has the same number, from which the load's seed follows: all finalists answer the same requests.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from partitune.analysis.comparison import INDIFFERENCE_ZONE
from partitune.analysis.significance import survivors
from partitune.candidate import Objective, Outcome, Result

Phase = Literal["selection", "verdict"]
#: Rounds that halve as many finalists as there can be: a thousand.
MOST_ROUNDS = 10
#: Flags, of any engine, that limit how much is served at once: somebody feels a lower one, whatever a benchmark says.
SERVING_CAPS = frozenset({
    "max_num_seqs", "max_num_active_seqs", "max_num_queued_reqs", "max_num_queued_tokens", "max_model_len",
    "max_running_requests", "max_queued_requests", "max_total_tokens", "context_length",
})  # fmt: skip
#: Of every run that was made the value of the first objective, or where there is none how the run ended.
Done = Mapping["FinalRun", float | Outcome]


@dataclass(frozen=True, slots=True)
class FinalRun:
    """One fresh start of a trial's deployment."""

    phase: Phase
    repeat: int  # 1, 2, …: the round of the selection, or the pair of the verdict
    trial: int  # number of the trial that is run again

    @property
    def load(self) -> int:
        """Which load it answers: the same for all runs of a round, and new in every round. 0 is that of the trials."""
        return self.repeat if self.phase == "selection" else MOST_ROUNDS + self.repeat

    @classmethod
    def under(cls, load: int, trial: int) -> FinalRun:
        """The run in which a trial answered `load`, from 1."""
        return cls("selection", load, trial) if load <= MOST_ROUNDS else cls("verdict", load - MOST_ROUNDS, trial)

    @property
    def text(self) -> str:
        """What messages call it, such as `verdict, pair 2, trial 3`."""
        which = "selection, round" if self.phase == "selection" else "verdict, pair"
        return f"{which} {self.repeat}, trial {self.trial}"


@dataclass(frozen=True, slots=True)
class DecisionRules:
    """How a study decides: who takes part in the final, and what counts as a difference."""

    finalists: int = 0  # 0: there is no final
    pairs: int = 5
    zone: float = INDIFFERENCE_ZONE
    caps: frozenset[str] = SERVING_CAPS  # none is lowered for nothing


@dataclass(frozen=True, slots=True)
class Final:
    """Who takes part: trial numbers, and what their trials measured."""

    objective: Objective  # the first one, which names the winner
    default: int | None  # the engine's default; None when it has nothing to be compared by
    finalists: Mapping[int, float]  # best first: trial -> value of the objective
    pairs: int  # runs of the default and of the winner, each

    @property
    def trials(self) -> tuple[int, ...]:
        """Who takes part: the finalists, then the default."""
        return (*self.finalists, *(() if self.default is None else (self.default,)))

    @property
    def most_runs(self) -> int:
        """Starts that it takes when nothing fails."""
        return most_runs(len(self.finalists), 0 if self.default is None else self.pairs)

    def standing(self, done: Done) -> tuple[tuple[int, ...], tuple[FinalRun, ...]]:
        """Finalists still in, best first, and the runs that are due now; nothing due: the final is over."""
        left, due, _ = self._selection(done)
        # Who goes first changes from pair to pair: what always comes second would gain or lose by a drift.
        pairs = () if due else self._pairs(left, done)
        runs = (run for pair in pairs for run in (pair if pair[0].repeat % 2 else pair[::-1]))
        return left, due or tuple(run for run in runs if run not in done)

    def dropped(self, done: Done) -> Mapping[int, int]:
        """Finalists that are out, and after which round."""
        return self._selection(done)[2]

    def _selection(self, done: Done) -> tuple[tuple[int, ...], tuple[FinalRun, ...], Mapping[int, int]]:
        """Who is left, what is due before the next round, and who went after which round."""
        left = list(self.finalists)
        dropped: dict[int, int] = {}
        values = {trial: [value] for trial, value in self.finalists.items()}
        repeat = 1
        while len(left) > 1:
            runs = [FinalRun("selection", repeat, trial) for trial in left]
            if due := tuple(run for run in runs if run not in done):
                return tuple(left), due, dropped
            for run in runs:
                value = done[run]
                if isinstance(value, float):
                    values[run.trial].append(value)
                elif value is not Outcome.LOST:  # what infrastructure took says nothing of the trial
                    values[run.trial] = []
            own = [values[trial] for trial in left]
            kept = [left[index] for index in survivors(self.objective, own, (len(left) + 1) // 2)]
            dropped |= dict.fromkeys((trial for trial in left if trial not in kept), repeat)
            left, repeat = kept, repeat + 1
        return tuple(left), (), dropped

    def measured_pairs(self, done: Done) -> tuple[tuple[FinalRun, FinalRun], ...]:
        """(run of the default, run of the winner) of every pair of which both were measured."""
        pairs = self._pairs(self._selection(done)[0], done)
        return tuple(pair for pair in pairs if all(isinstance(done.get(run), float) for run in pair))

    def _pairs(self, left: Sequence[int], done: Done) -> list[tuple[FinalRun, FinalRun]]:
        """The pairs of the verdict, once one finalist is left.

        Their numbers are 1, 2, …, but for those that the default ran beside another winner: what lies hours apart is no
        pair.
        """
        if len(left) != 1 or self.default is None:
            return []
        winner, default = left[0], self.default
        verdicts = [run for run in done if run.phase == "verdict"]
        own = {run.repeat for run in verdicts if run.trial == winner}
        taken = {run.repeat for run in verdicts if run.trial not in (default, winner)} - own
        numbers = itertools.islice((number for number in itertools.count(1) if number not in taken), self.pairs)
        return [(FinalRun("verdict", number, default), FinalRun("verdict", number, winner)) for number in numbers]


def measured_value(result: Result, objective: Objective) -> float | None:
    """The value of a run that ended ok on something that was launched."""
    measured = result.outcome is Outcome.OK and result.measurement is not None and not result.measurement.simulated
    return result.metric(objective.metric) if measured else None


def run_value(result: Result, objective: Objective) -> float | Outcome:
    """The value of a run of a final; of one without a figure, how it ended."""
    value = measured_value(result, objective)
    return result.outcome if value is None else value


def most_runs(finalists: int, pairs: int) -> int:
    """Starts that a final takes when nothing fails."""
    runs, left = 2 * pairs, finalists
    while left > 1:
        runs, left = runs + left, (left + 1) // 2
    return runs
