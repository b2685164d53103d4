"""What the final of a study says: who won, by how much and how surely, and which trial to use.

Decisions:
- Only the pairs of the verdict speak, every objective by its own interval, in the words of `PairedGain.verdict`.
- The first objective decides. Where it shows no difference, another one may, as long as none is worse: a trade that
  nobody asked for is no gain. In every other case the engine's default stays.
- A limit that the winner missed in one of its runs is missed: limits are never relaxed.
- A winner that failed to start, or broke, more often than the default is none, whatever its other runs measured; what
  infrastructure took (`lost`) says nothing about it. Where the default fails more often, a winner that is worse in
  nothing needs no gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from partitune.analysis.comparison import NO_DIFFERENCE, WORSE, Change, Comparison, gain
from partitune.analysis.figures import percent
from partitune.analysis.final import DecisionRules, Done, Final, FinalRun, measured_value, run_value
from partitune.analysis.significance import MOST_PAIRS, PairedGain, confidences, paired_gain, pairs_needed
from partitune.analysis.trial import Trial
from partitune.candidate import Objective, Outcome, Result


@dataclass(frozen=True, slots=True)
class Finalist:
    """One trial in the final, or the engine's default."""

    trial: int
    runs: int  # fresh ones
    failed: int  # of them, without a figure that counts; those that infrastructure took are not among them
    rounds: tuple[float | None, ...]  # the first objective in each round of the selection; None: it has none
    out: str  # after which round; empty: it stayed


@dataclass(frozen=True, slots=True)
class Starts:
    """How often one trial was started for the verdict, and failed for reasons of its own."""

    trial: int
    runs: int  # those that infrastructure took not counted
    failed: int
    missed: int  # ran, and missed a limit

    @classmethod
    def of(cls, trial: int, results: Mapping[FinalRun, Result]) -> Starts:
        """Count those of `trial` among the runs of the verdict."""
        own = [result for run, result in results.items() if run.phase == "verdict" and run.trial == trial]
        counted = [result for result in own if result.outcome is not Outcome.LOST]
        missed = [result for result in counted if result.outcome is Outcome.INFEASIBLE and result.measurement]
        measured = [result for result in counted if result.outcome is Outcome.OK]
        return cls(trial, len(counted), len(counted) - len(measured) - len(missed), len(missed))

    @property
    def share(self) -> float:
        """Of the starts, that failed."""
        return self.failed / self.runs if self.runs else 0.0


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
    starts: tuple[Starts, ...] = ()  # for the verdict: of `last`, then of the default

    def means(self, metric: str) -> tuple[float, float] | None:
        """Means over the pairs: of the default, of `last`."""
        changes = () if self.comparison is None else self.comparison.changes
        return next(((change.default, change.value) for change in changes if change.objective.metric == metric), None)

    def more_pairs(self, metric: str, zone: float) -> int | None:
        """Pairs beyond those run that would find the gain that was seen; None where there is none to find."""
        paired = self.gains[metric]
        if paired.gain <= zone or paired.verdict(zone) != NO_DIFFERENCE:
            return None
        return max(pairs_needed(paired.noise / math.sqrt(2), paired.gain, paired.confidence) - paired.pairs, 1)

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
            "starts": [asdict(starts) for starts in self.starts],
            "gains": {
                metric: {
                    **{name: getattr(paired, name) for name in ("gain", "low", "high", "pairs", "confidence")},
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
    done = {run: run_value(result, final.objective) for run, result in results.items()}
    left, due = final.standing(done)
    last = left[0] if left and not due else None
    pairs = final.measured_pairs(done) if last is not None else ()
    gains, changes = {}, []
    for objective, confidence in zip(objectives, confidences(len(objectives)), strict=True):
        values = [tuple(results[run].metric(objective.metric) for run in pair) for pair in pairs]
        sound = [(before, after) for before, after in values if before is not None and after is not None]
        default, other = [before for before, _ in sound], [after for _, after in sound]
        if (paired := paired_gain(objective, default, other, confidence)) is not None:
            gains[objective.metric] = paired
            changes.append(Change(objective, fmean(default), fmean(other), paired.gain, paired.verdict(zone)))
    starts: tuple[Starts, ...] = ()
    comparison = None
    if last is not None and final.default is not None:
        starts = (Starts.of(last, results), Starts.of(final.default, results))
        failures = ""
        if any(own.failed for own in starts):
            shares = (f"trial {own.trial} {own.failed} of {own.runs}" for own in starts)
            failures = f", failed starts: {', '.join(shares)}"
        basis = f"trial {last} and the default, {len(pairs)} pairs of fresh runs{failures}"
        comparison = Comparison.of(changes, basis, zone)
        if not changes:
            pairs_text = f"{len(pairs)} of {final.pairs} pairs could be measured{failures}"
            comparison = Comparison((), f"{NO_DIFFERENCE} (trial {last} and the default: {pairs_text})")
    chosen, why = (None, "") if due else _choice(final, last, changes, starts)
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
        starts=starts,
    )


def fails_more(default: int | None, results: Mapping[FinalRun, Result]) -> frozenset[int]:
    """Trials of whose starts for the verdict more failed than of the default's, as far as they were made."""
    accepted = 0.0 if default is None else Starts.of(default, results).share
    started = {run.trial for run in results if run.phase == "verdict"}
    return frozenset(trial for trial in started if Starts.of(trial, results).share > accepted)


def _choice(
    final: Final, last: int | None, changes: Sequence[Change], starts: tuple[Starts, ...]
) -> tuple[int | None, str]:
    """The trial to use, and why."""
    first = final.objective.metric
    if last is None:
        kept = "no trial can be deployed" if final.default is None else "engine default"
        return final.default, f"{kept}: every finalist failed when it was run again"
    if final.default is None:
        return last, f"best {first} of the finalists when they were run again"
    own, defaults = starts
    if own.share > defaults.share:
        beside = f"the default {defaults.failed} of {defaults.runs}"
        return final.default, f"engine default: trial {last} failed in {own.failed} of its {own.runs} starts, {beside}"
    if own.missed:
        return final.default, f"engine default: trial {last} missed a limit in {own.missed} of its {own.runs} last runs"
    verdicts = {change.objective.metric: change.verdict for change in changes}
    better = [metric for metric, words in verdicts.items() if words not in (NO_DIFFERENCE, WORSE)]
    if first in better:
        return last, f"best {first} of the finalists, and better than the default in fresh runs"
    if better and WORSE not in verdicts.values() and first in verdicts:
        return last, f"{first} as the default, and better in {', '.join(better)} in fresh runs"
    if own.share < defaults.share and WORSE not in verdicts.values():
        failed = f"{defaults.failed} of {defaults.runs} starts of the default failed, {own.failed} of {own.runs} of it"
        return last, f"{failed}, and it is worse in nothing"
    return final.default, f"engine default: trial {last}, the best of the finalists, is not better in fresh runs"


def _finalist(trial: int, done: Done, after: int | None) -> Finalist:
    own = {run: value for run, value in done.items() if run.trial == trial}
    selection = sorted((run for run in own if run.phase == "selection"), key=lambda run: run.repeat)
    rounds = tuple(value if isinstance(value := own[run], float) else None for run in selection)
    failed = sum(not isinstance(value, float) and value is not Outcome.LOST for value in own.values())
    return Finalist(trial, len(own), failed, rounds, "" if after is None else f"round {after}")
