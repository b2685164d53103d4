"""What the final of a study says: who won, by how much and how surely, and which trial to use.

Decisions:
- Only the pairs of the verdict speak, every objective by its own interval, in the words of `PairedGain.verdict`.
- The first objective decides. Where it shows no difference, another one may, as long as none is worse: a trade that
  nobody asked for is no gain. In every other case the engine's default stays.
- A limit that the winner missed in one of its runs is missed: limits are never relaxed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partitune.analysis.comparison import NO_DIFFERENCE, WORSE, Change, Comparison
from partitune.analysis.final import Final, Run, measured_value, most_runs
from partitune.analysis.significance import MOST_PAIRS, PairedGain, paired_gain, pairs_needed
from partitune.candidate import Objective, Outcome, Result


@dataclass(frozen=True, slots=True)
class Finalist:
    """One trial in the final, or the engine's default."""

    trial: int
    runs: int  # fresh ones
    failed: int  # of them, without a figure that counts
    rounds: tuple[float | None, ...]  # the first objective in each round of the selection; None: failed
    out: str  # after which round; empty: it stayed


@dataclass(frozen=True, slots=True)
class Judgement:
    """A final, finished or not."""

    finalists: tuple[Finalist, ...]  # best first, the default last
    runs: int  # made
    most_runs: int  # that it takes, where nothing fails
    over: bool
    last: int | None  # the trial that was left against the default; None: not over, or none was
    pairs: int  # in which both were measured
    gains: Mapping[str, PairedGain]  # by metric; of `last` over the default
    comparison: Comparison | None  # the same in words; None: there was nothing to compare
    chosen: int | None  # the trial to use: `last` or the default; None while it is not over, or where none can be
    why: str

    def means(self, metric: str) -> tuple[float, float] | None:
        """Means over the pairs: of the default, of `last`."""
        changes = () if self.comparison is None else self.comparison.changes
        return next(((one.default, one.value) for one in changes if one.objective.metric == metric), None)

    def more_pairs(self, metric: str, zone: float) -> int | None:
        """Pairs beyond those run that would find the gain that was seen; None where there is none to find."""
        found = self.gains[metric]
        if found.gain <= zone or found.verdict(zone) != NO_DIFFERENCE:
            return None
        return max(pairs_needed(found.noise / math.sqrt(2), found.gain) - found.pairs, 1)

    def lines(self, zone: float) -> list[str]:
        """What a person should know beside the tables."""
        if not self.over:
            text = f"the final is not finished ({self.runs} of {self.most_runs} runs)"
            return [f"{text}: the verdict rests on single runs until it is; the same search command goes on with it"]
        found = []
        for metric, one in self.gains.items():
            if (more := self.more_pairs(metric, zone)) is not None:
                many = f"more than {MOST_PAIRS}" if more + one.pairs >= MOST_PAIRS else f"{more + one.pairs}"
                found.append(
                    f"{metric}: {100 * one.gain:.1f} % better was seen and may be noise; to find that much takes about "
                    f"{many} pairs, {more} more (budget.pairs)"
                )
        return found

    def to_json(self, zone: float) -> dict[str, Any]:
        """As `--json` has it."""
        return {
            "over": self.over,
            "runs": self.runs,
            "most_runs": self.most_runs,
            "finalists": [
                {"trial": one.trial, "runs": one.runs, "failed": one.failed, "rounds": list(one.rounds), "out": one.out}
                for one in self.finalists
            ],
            "last": self.last,
            "pairs": self.pairs,
            "gains": {
                metric: {
                    "gain": one.gain, "low": one.low, "high": one.high, "pairs": one.pairs, "means": self.means(metric),
                    "verdict": one.verdict(zone), "more_pairs": self.more_pairs(metric, zone),
                }
                for metric, one in self.gains.items()
            },
        }  # fmt: skip


def judge(final: Final, results: Mapping[Run, Result], objectives: Sequence[Objective], zone: float) -> Judgement:
    """What the runs so far say. `results` may hold runs of trials that take no part any more."""
    done = {run: measured_value(result, final.objective) for run, result in results.items()}
    left, due = final.standing(done)
    last = left[0] if left and not due else None
    pairs = final.measured_pairs(done) if last is not None else ()
    gains = {}
    for objective in objectives:
        if found := paired_gain(objective, *_sides(results, pairs, objective.metric)):
            gains[objective.metric] = found
    missed = [
        run
        for run, result in results.items()
        if run.phase == "verdict" and run.trial == last and result.outcome is Outcome.INFEASIBLE
    ]
    chosen, why = _choice(final, last, gains, objectives, zone, len(missed)) if not due else (None, "")
    rows = [*final.finalists, *([] if final.default is None else [final.default])]
    return Judgement(
        finalists=tuple(_finalist(final, trial, done) for trial in rows),
        runs=len([run for run in done if run.trial in rows]),
        most_runs=most_runs(len(final.finalists), 0 if final.default is None else final.pairs),
        over=not due,
        last=last,
        pairs=len(pairs),
        gains=gains,
        comparison=_comparison(final, last, pairs, gains, results, objectives, zone),
        chosen=chosen,
        why=why,
    )


def _choice(
    final: Final,
    last: int | None,
    gains: Mapping[str, PairedGain],
    objectives: Sequence[Objective],
    zone: float,
    missed: int,
) -> tuple[int | None, str]:
    first = objectives[0].metric
    if last is None:
        kept = "no trial can be deployed" if final.default is None else "engine default"
        return final.default, f"{kept}: every finalist failed when it was run again"
    if final.default is None:
        return last, f"best {first} of the finalists when they were run again"
    if missed:
        return final.default, f"engine default: trial {last} missed a limit in {missed} of its {final.pairs} last runs"
    said = {metric: found.verdict(zone) for metric, found in gains.items()}
    better = [metric for metric, words in said.items() if words not in (NO_DIFFERENCE, WORSE)]
    if first in better:
        return last, f"best {first} of the finalists, and better than the default in fresh runs"
    if better and WORSE not in said.values() and first in said:
        return last, f"{first} as the default, and better in {', '.join(better)} in fresh runs"
    return final.default, f"engine default: trial {last}, the best of the finalists, is not better in fresh runs"


def _comparison(
    final: Final,
    last: int | None,
    pairs: Sequence[tuple[Run, Run]],
    gains: Mapping[str, PairedGain],
    results: Mapping[Run, Result],
    objectives: Sequence[Objective],
    zone: float,
) -> Comparison | None:
    if last is None or final.default is None:
        return None
    if not gains:
        text = f"{NO_DIFFERENCE} (trial {last} and the default: {len(pairs)} of {final.pairs} pairs could be measured)"
        return Comparison((), False, text)
    changes = []
    for objective in objectives:
        if (found := gains.get(objective.metric)) is not None:
            before, after = (_mean(side) for side in _sides(results, pairs, objective.metric))
            changes.append(Change(objective, before, after, found.gain, found.verdict(zone)))
    words = "; ".join(f"{change.objective.metric} {change.verdict}" for change in changes)
    basis = f"trial {last} and the default, {len(pairs)} pairs of fresh runs"
    return Comparison(tuple(changes), False, f"{words} ({basis}; indifference zone {100 * zone:g} %)")


def _finalist(final: Final, trial: int, done: Mapping[Run, float | None]) -> Finalist:
    own = [value for run, value in done.items() if run.trial == trial]
    rounds = sorted(
        (run.repeat, value) for run, value in done.items() if run.trial == trial and run.phase == "selection"
    )
    after = final.dropped(done).get(trial)
    out = "" if after is None else f"round {after}"
    return Finalist(trial, len(own), own.count(None), tuple(value for _, value in rounds), out)


def _sides(
    results: Mapping[Run, Result], pairs: Sequence[tuple[Run, Run]], metric: str
) -> tuple[list[float], list[float]]:
    """Values of the default and of the winner, of the pairs that have both."""
    values = [(results[default].metric(metric), results[winner].metric(metric)) for default, winner in pairs]
    sound = [(a, b) for a, b in values if a is not None and b is not None]
    return [a for a, _ in sound], [b for _, b in sound]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
