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
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from partitune.analysis.comparison import NO_DIFFERENCE, WORSE, Change, Comparison, gain
from partitune.analysis.figures import percent
from partitune.analysis.final import DecisionRules, Done, Final, FinalRun, measured_value
from partitune.analysis.significance import MOST_PAIRS, PairedGain, paired_gain, pairs_needed
from partitune.analysis.trial import Trial
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
        return next(((change.default, change.value) for change in changes if change.objective.metric == metric), None)

    def more_pairs(self, metric: str, zone: float) -> int | None:
        """Pairs beyond those run that would find the gain that was seen; None where there is none to find."""
        paired = self.gains[metric]
        if paired.gain <= zone or paired.verdict(zone) != NO_DIFFERENCE:
            return None
        return max(pairs_needed(paired.noise / math.sqrt(2), paired.gain) - paired.pairs, 1)

    def lines(self, zone: float) -> list[str]:
        """What a person should know beside the tables."""
        if not self.over:
            text = f"the final is not finished ({self.runs} of {self.most_runs} runs)"
            return [f"{text}: the verdict rests on single runs until it is; the same search command goes on with it"]
        lines = []
        for metric, paired in self.gains.items():
            if (more := self.more_pairs(metric, zone)) is not None:
                many = f"more than {MOST_PAIRS}" if more + paired.pairs >= MOST_PAIRS else f"{more + paired.pairs}"
                lines.append(
                    f"{metric}: {percent(paired.gain)} better was seen and may be noise; to find that much takes about "
                    f"{many} pairs, {more} more (budget.pairs)"
                )
        return lines

    def to_json(self, zone: float) -> dict[str, Any]:
        """The object under `final` of `search --json`, with the verdicts for an indifference zone."""
        return {
            **{name: getattr(self, name) for name in ("over", "runs", "most_runs")},
            "finalists": [asdict(finalist) for finalist in self.finalists],
            "last": self.last,
            "pairs": self.pairs,
            "gains": {
                metric: {
                    **{name: getattr(paired, name) for name in ("gain", "low", "high", "pairs")},
                    "means": self.means(metric),
                    "verdict": paired.verdict(zone),
                    "more_pairs": self.more_pairs(metric, zone),
                }
                for metric, paired in self.gains.items()
            },
        }


def line_up(trials: Sequence[Trial], objective: Objective, rules: DecisionRules) -> Final | None:
    """The final of a study: of the trials that may be better than the default, the best.

    One that measured worse than the default by more than the zone would have to be launched again ten times to be found
    no better. Simulated trials take no part: they are what they are.

    Returns:
        None: there is nothing to find out.
    """
    default = next((trial for trial in trials if trial.is_default), None)
    base = None if default is None else measured_value(default.result, objective)
    values = {trial.number: measured_value(trial.result, objective) for trial in trials if trial is not default}
    sound = {
        number: value
        for number, value in values.items()
        if value is not None and (base is None or gain(objective, base, value) >= -rules.zone)
    }
    best = sorted(sound, key=lambda number: (objective.cost(sound[number]), number))[: rules.finalists]
    finalists = {number: sound[number] for number in best}
    compared = None if default is None or base is None else default.number
    return Final(objective, compared, finalists, rules.pairs) if finalists else None


def judge(final: Final, results: Mapping[FinalRun, Result], objectives: Sequence[Objective], zone: float) -> Judgement:
    """What the runs so far say. `results` may hold runs of trials that take no part any more."""
    done = {run: measured_value(result, final.objective) for run, result in results.items()}
    left, due = final.standing(done)
    last = left[0] if left and not due else None
    pairs = final.measured_pairs(done) if last is not None else ()
    gains, changes = {}, []
    for objective in objectives:
        values = [tuple(results[run].metric(objective.metric) for run in pair) for pair in pairs]
        sound = [(before, after) for before, after in values if before is not None and after is not None]
        default, other = [before for before, _ in sound], [after for _, after in sound]
        if (paired := paired_gain(objective, default, other)) is not None:
            gains[objective.metric] = paired
            changes.append(Change(objective, fmean(default), fmean(other), paired.gain, paired.verdict(zone)))
    if last is None or final.default is None:
        comparison = None
    elif changes:
        comparison = Comparison.of(changes, f"trial {last} and the default, {len(pairs)} pairs of fresh runs", zone)
    else:
        text = f"{NO_DIFFERENCE} (trial {last} and the default: {len(pairs)} of {final.pairs} pairs could be measured)"
        comparison = Comparison((), text)
    verdicts = [result for run, result in results.items() if run.phase == "verdict" and run.trial == last]
    missed = len([result for result in verdicts if result.outcome is Outcome.INFEASIBLE])
    chosen, why = (None, "") if due else _choice(final, last, changes, missed)
    dropped = final.dropped(done)
    return Judgement(
        finalists=tuple(_finalist(trial, done, dropped.get(trial)) for trial in final.trials),
        runs=len([run for run in done if run.trial in final.trials]),
        most_runs=final.most_runs,
        over=not due,
        last=last,
        pairs=len(pairs),
        gains=gains,
        comparison=comparison,
        chosen=chosen,
        why=why,
    )


def _choice(final: Final, last: int | None, changes: Sequence[Change], missed: int) -> tuple[int | None, str]:
    """The trial to use, and why. `missed` counts the runs of the verdict in which `last` missed a limit."""
    first = final.objective.metric
    if last is None:
        kept = "no trial can be deployed" if final.default is None else "engine default"
        return final.default, f"{kept}: every finalist failed when it was run again"
    if final.default is None:
        return last, f"best {first} of the finalists when they were run again"
    if missed:
        return final.default, f"engine default: trial {last} missed a limit in {missed} of its {final.pairs} last runs"
    verdicts = {change.objective.metric: change.verdict for change in changes}
    better = [metric for metric, words in verdicts.items() if words not in (NO_DIFFERENCE, WORSE)]
    if first in better:
        return last, f"best {first} of the finalists, and better than the default in fresh runs"
    if better and WORSE not in verdicts.values() and first in verdicts:
        return last, f"{first} as the default, and better in {', '.join(better)} in fresh runs"
    return final.default, f"engine default: trial {last}, the best of the finalists, is not better in fresh runs"


def _finalist(trial: int, done: Done, after: int | None) -> Finalist:
    own = {run: value for run, value in done.items() if run.trial == trial}
    rounds = sorted((run for run in own if run.phase == "selection"), key=lambda run: run.repeat)
    failed = list(own.values()).count(None)
    return Finalist(
        trial, len(own), failed, tuple(own[run] for run in rounds), "" if after is None else f"round {after}"
    )
