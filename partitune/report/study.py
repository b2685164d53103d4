"""A study as a person reads it: its trials, its front, its final, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from partitune.analysis.figures import figure, flags_text, percent
from partitune.analysis.references import engine_default_name
from partitune.analysis.significance import CONFIDENCE
from partitune.candidate import Objective, Origin, Outcome
from partitune.report.explained import print_result
from partitune.report.output import Output, table

if TYPE_CHECKING:  # values to draw: what works them out is not imported
    from partitune.analysis.judgement import Judgement
    from partitune.analysis.summary import Summary
    from partitune.analysis.trial import Trial
    from partitune.store import StudyRecord


def print_summary(console: Output, summary: Summary, stopped: str = "", *, every: bool = False) -> None:
    """What a study found: the front, the default, the winner and the verdict; all trials with `every`."""
    if every:
        console.draw(trials_table(f"trials of {summary.study}", summary.trials, summary.objectives))
    _draw_front(console, summary)
    if summary.final is not None:
        _draw_final(console, summary, summary.final)
    console.say(*_sentences(summary, stopped, every=every))


def _sentences(summary: Summary, stopped: str, *, every: bool) -> Iterable[str]:
    """What stands below the tables."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in summary.counts().items() if count)
    ended = f" ({stopped})" if stopped else ""
    yield f"trials: {counts or 'none'}{ended}   database: {summary.database}"
    if summary.set_aside:
        yield f"{summary.set_aside_text} (partitune show {summary.study} --trial N shows one)"
    if summary.default is not None:
        yield f"default: {_trial_text(summary, summary.default)}"
    if summary.best is not None:
        yield f"best:    {_trial_text(summary, summary.best)}"
    for trial in () if every else summary.trials:
        if trial.submission.origin in (Origin.EXACT, Origin.SEED) and trial.result.outcome is not Outcome.OK:
            yield f"not ok:  {_trial_text(summary, trial)}"
    yield from () if every else _reasons(summary)
    yield f"why: {summary.why}"
    yield from summary.layouts_tried()
    yield from () if summary.distance is None else summary.distance.lines()
    yield from () if summary.advice is None else summary.advice.lines()
    yield from summary.notes()
    yield from summary.caveats.lines()
    if summary.best is not None:
        yield from summary.against_same_flags(summary.best)
    if summary.verdict:
        against = "" if summary.default is None else f"against {engine_default_name(summary.default)}: "
        yield f"verdict: {'' if summary.best_is_default else against}{summary.verdict}"


def _reasons(summary: Summary) -> Iterable[str]:
    """Why the others did not end ok: of each outcome the commonest reason."""
    others = [trial for trial in summary.trials if trial.submission.origin not in (Origin.EXACT, Origin.SEED)]
    for outcome in (outcome for outcome in Outcome if outcome is not Outcome.OK):
        found = Counter(trial.result.reason for trial in others if trial.result.outcome is outcome)
        for reason, count in found.most_common(1):
            every = f"{found.total()} " + ("trial" if found.total() == 1 else "trials")
            share = f", {count} of them: " if count < found.total() else ": "
            rest = f" (partitune pareto {summary.study} has every reason)" if len(found) > 1 else ""
            yield f"{outcome}: {every}{share}{reason}{rest}"


def _trial_text(summary: Summary, trial: Trial) -> str:
    """Its figures: those of its fresh runs beside the default's where there are any."""
    result, final = trial.result, summary.final
    text = f"trial {trial.number}  {result.candidate.partition_text}  "
    if result.measurement is None:
        return f"{text}{result.outcome}: {result.reason}"
    values = {objective.metric: result.metric(objective.metric) for objective in summary.objectives}
    basis = ""
    if final is not None and final.gains and (trial.is_default or trial.number == final.last):
        means = {metric: final.means(metric) for metric in final.gains}
        values |= {metric: both[not trial.is_default] for metric, both in means.items() if both is not None}
        basis = f" (mean of {final.pairs} fresh runs)"
    return text + ", ".join(f"{metric} {figure(value, metric)}" for metric, value in values.items()) + basis


def trials_table(title: str, trials: Sequence[Trial], objectives: Sequence[Objective]) -> Table:
    """Trials with their objectives and, where one did not end ok, outcome and reason."""
    names = [objective.metric for objective in objectives]
    ended = () if all(trial.result.outcome is Outcome.OK for trial in trials) else ("outcome", "reason")
    rows = []
    for trial in trials:
        result, candidate = trial.result, trial.result.candidate
        values = (figure(result.metric(name), name) for name in names)
        ending = (result.outcome.value, result.reason) if ended else ()
        tried = (trial.number, trial.origin, candidate.partition_text, flags_text(candidate.settings))
        rows.append((*tried, *values, *ending))
    return table(title, ("trial", "origin", "partition", "knobs", *names, *ended), rows, names)


def _draw_front(console: Output, summary: Summary) -> None:
    if summary.pareto:
        measurements = (trial.result.measurement for trial in summary.trials)
        basis = "simulated" if all(measured is None or measured.simulated for measured in measurements) else "measured"
        console.draw(trials_table(f"Pareto front of {summary.study} ({basis})", summary.pareto, summary.objectives))


def print_pareto(console: Output, summary: Summary) -> None:
    """The front, its hypervolume, and what did not compete."""
    _draw_front(console, summary)
    volume, middle = summary.volume(), summary.knee()
    if middle is not None and len(summary.pareto) > 2:
        console.say(f"knee: trial {middle.number}, nearest to the best of all objectives at once")
    if volume is not None:
        console.say(f"hypervolume: {volume:.4g} over the worst values seen")
    console.say(*summary.caveats.lines())
    if summary.set_aside:
        console.say(summary.set_aside_text)
    others = [trial for trial in summary.trials if trial.result.outcome is not Outcome.OK]
    if others:
        console.draw(trials_table("not on it, because they did not end ok", others, summary.objectives))


def print_trial(console: Output, trial: Trial, summary: Summary) -> None:
    """One trial with its stages, what it is held against, and what was left out where it was simulated."""
    set_aside = trial.number in summary.set_aside
    if set_aside:
        console.say("set aside: measured under an earlier spec of the study")
    print_result(console, trial.result, f"trial {trial.number} ({trial.origin}): ")
    if trial.result.measurement is None:
        return
    if not set_aside:
        console.say(*summary.against_same_flags(trial), *summary.against_default(trial))
    if trial.result.measurement.simulated:
        console.say(*summary.caveats.lines())


def _draw_final(console: Output, summary: Summary, final: Judgement) -> None:
    """Who was run again and dropped when; then every objective of the pairs that decide."""
    name = summary.objectives[0].metric
    rounds = max(len(finalist.rounds) for finalist in final.finalists)
    right = ("fresh runs", "in search", *(f"round {number + 1}" for number in range(rounds)))
    rows = []
    for finalist in final.finalists:
        trial = summary.trial(finalist.trial)
        candidate, number = trial.result.candidate, f"{finalist.trial}{' (default)' * trial.is_default}"
        runs = f"{finalist.runs}{f', {finalist.failed} failed' * bool(finalist.failed)}"
        values = [figure(value, name) for value in (trial.result.metric(name), *finalist.rounds)]
        values += [""] * (rounds - len(finalist.rounds))
        rows.append((number, candidate.partition_text, flags_text(candidate.settings), runs, *values, finalist.out))
    columns = ("trial", "partition", "knobs", *right, "out after")
    console.draw(table(f"final of {summary.study}: {name}", columns, rows, right))
    if final.comparison is None or not final.comparison.changes:
        return
    rows_of_pairs = []
    for change in final.comparison.changes:
        metric, gain = change.objective.metric, final.gains[change.objective.metric]
        interval = f"{100 * gain.low:+.1f} to {percent(gain.high, '+.1f')}"
        figures = (figure(change.default, metric), figure(change.value, metric), percent(gain.gain, "+.1f"), interval)
        rows_of_pairs.append((metric, *figures, change.verdict))
    together = ", all together" if len(final.gains) > 1 else ""
    right = ("default", f"trial {final.last}", "change", f"{percent(CONFIDENCE, '.0f')} interval{together}")
    console.draw(table(f"{final.pairs} pairs of fresh runs", ("metric", *right, "verdict"), rows_of_pairs, right))


def studies_table(studies: Iterable[tuple[StudyRecord, Mapping[Outcome, int]]]) -> Table:
    """All studies of a database."""
    rows = []
    for study, counts in studies:
        engine, created = f"{study.engine} {study.engine_version}", f"{study.created_at:%Y-%m-%d %H:%M}"
        rows.append((study.name, study.state.value, engine, study.runner, sum(counts.values()), created))
    return table("studies", ("study", "state", "engine", "runner", "trials", "created (UTC)"), rows, ("trials",))
