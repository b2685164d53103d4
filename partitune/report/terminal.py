"""The tables of every command: which columns, in which words.

Decision: this module only chooses; `output.py` draws. Every table says whether its figures were simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from partitune.analysis.comparison import gain
from partitune.analysis.explanation import Explained
from partitune.analysis.figures import figure, knobs_text
from partitune.analysis.judgement import Judgement
from partitune.analysis.layouts_tried import layouts_tried
from partitune.analysis.significance import CONFIDENCE
from partitune.analysis.summary import Summary, set_aside_text
from partitune.analysis.trial import Trial
from partitune.candidate import Objective, Outcome, Result, StageReport
from partitune.costs.cost_model import StageSeconds
from partitune.partition import format_partition
from partitune.planning.workload_mix import taken_apart
from partitune.report.output import Output, table
from partitune.spec.catalog import Entry
from partitune.spec.objectives import METRICS, NEEDS
from partitune.store import StudyRecord

_GIB = 1 << 30
#: Columns of the stage tables.
TIMES = ("compute s", "transfer s", "wait s", "busy %")
SIZES = ("weights GiB", "free GiB", "KV blocks", "stranded GiB")
#: Metrics of the comparison in `explain`, in reading order.
COMPARED = (
    "output_throughput_tok_s",
    "total_throughput_tok_s",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "tpot_p99_ms",
    "makespan_s",
    "kv_tokens",
)


def print_explained(console: Output, one: Explained, default: Explained | None) -> None:
    """The per-stage table of one candidate, what limits it, and the comparison with the default."""
    knobs = knobs_text(one.candidate.settings)
    title = "  ".join(part for part in (format_partition(one.candidate.partition), knobs) if part)
    _print_stages(console, one, escape(f"{title}  (regime {one.regime}, simulated)"))
    measured = one.result.measurement
    if measured is None:
        console.print(f"cannot run ({one.result.outcome}): {escape(one.result.reason)}")
    else:
        console.print(f"limit: {escape(measured.limiting_reason)}")
        tokens = f"{measured.kv_tokens:,} tokens"
        console.print(f"KV cache: {measured.kv_blocks:,} blocks, {tokens}, decided by the stage with the fewest blocks")
        if one.result.reason:
            console.print(f"missed: {escape(one.result.reason)}")
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in one.balance.items())
    console.print(f"slowest stage over mean stage: {shown}")
    for line in () if one.distance is None else one.distance.lines():
        console.print(escape(line))
    if default is not None:
        _print_against_default(console, one, default)
    whole, parts = taken_apart({} if measured is None else measured.metrics)
    if parts:
        named = {name: whole[name] for name in (*COMPARED, *NEEDS) if name in whole}
        console.draw(_figures_table("under every load of the mix", named, parts))
    console.print(f"times: {escape(one.cost_source)}")
    shares = ", ".join(f"{name.replace('_', ' ')} {_measured_share(times)}" for name, times in one.sources.items())
    console.print(f"share of measured kernels in the stage times: {shares}")
    for note in one.notes:
        console.print(f"note: {escape(note)}")


def _measured_share(stages: Sequence[StageSeconds]) -> str:
    percents = sorted(round(100 * one.shares()["measured"]) for one in stages)
    low, high = percents[0], percents[-1]
    return f"{low} %" if low == high else f"{low}-{high} %"


def _print_stages(console: Output, one: Explained, title: str) -> None:
    """All columns in one table, or in a narrow window times first and memory below."""
    owns = ("stage", "node", "gpu", "layers", "kinds")
    grid = table(title, (*owns, *TIMES, *SIZES, ""), (*TIMES, *SIZES))
    times = table(title, ("stage", "layers", "kinds", *TIMES), TIMES)
    memory = table("memory", ("stage", "node", "gpu", *SIZES, ""), SIZES)
    for stage, memory_of_stage in enumerate(one.memory):
        row = one.stages[stage] if one.stages else None
        free = memory_of_stage.kv_bytes if row is None else row.free_bytes
        sizes = [f"{memory_of_stage.weight_bytes / _GIB:.1f}", f"{free / _GIB:.1f}"]
        sizes += [f"{row.kv_blocks:,}", f"{row.stranded_bytes / _GIB:.1f}"] if row else ["-", "-"]
        kinds = " ".join(f"{count} {kind}" for kind, count in one.kinds[stage].items())
        mark = "<- limits" if stage == one.limiting_stage else ""
        mark = mark if memory_of_stage.fits else "does not fit"
        where, layers = (str(one.nodes[stage]), memory_of_stage.gpu), str(one.candidate.partition[stage])
        grid.add_row(str(stage), *where, layers, kinds, *_times(row), *sizes, mark)
        times.add_row(str(stage), layers, kinds, *_times(row))
        memory.add_row(str(stage), *where, *sizes, mark)
    for part in [grid] if console.fits(grid) else [times, memory]:
        console.draw(part)


def _times(row: StageReport | None) -> list[str]:
    if row is None:
        return ["-"] * len(TIMES)
    return [f"{row.compute_s:.3f}", f"{row.transfer_s:.3f}", f"{row.wait_s:.3f}", f"{100 * row.busy_fraction:.1f}"]


def _print_against_default(console: Output, one: Explained, default: Explained) -> None:
    title = f"against the engine's default {format_partition(default.candidate.partition)}"
    grid = table(title, ("metric", "default", "this", "change"), ("default", "this", "change"))
    for name in (*COMPARED, *(name for name in NEEDS if one.result.metric(name) is not None)):
        before, after = default.result.metric(name), one.result.metric(name)
        change = "-"
        if before is not None and after is not None:
            relative = gain(Objective(name, METRICS[name].value), before, after)
            change = (
                f"{100 * abs(relative):.1f} % {'better' if relative > 0 else 'worse'}"
                if abs(relative) > 5e-4
                else "same"
            )
        grid.add_row(name, figure(before, name), figure(after, name), change)
    if default.result.measurement is None:
        console.print(f"the engine's default cannot run here: {escape(default.result.reason)}")
    console.draw(grid)


def _figures_table(title: str, whole: Mapping[str, float], parts: Mapping[str, Mapping[str, float]]) -> Table:
    """All figures of `whole`, and beside each those under every load of a mix."""
    columns = ("mix" if parts else "value", *parts)
    grid = table(title, ("metric", *columns), columns)
    for name, value in whole.items():
        grid.add_row(name, figure(value, name), *(figure(part.get(name), name) for part in parts.values()))
    return grid


def trials_table(title: str, trials: Sequence[Trial], objectives: Sequence[Objective]) -> Table:
    """Trials with their objectives and, where one did not end ok, outcome and reason."""
    names = [objective.metric for objective in objectives]
    ended = () if all(trial.result.outcome is Outcome.OK for trial in trials) else ("outcome", "reason")
    grid = table(title, ("trial", "origin", "partition", "knobs", *names, *ended), names)
    for trial in trials:
        result = trial.result
        figures = [figure(result.metric(name), name) for name in names]
        grid.add_row(
            str(trial.number),
            escape(trial.origin),
            format_partition(result.candidate.partition),
            escape(knobs_text(result.candidate.settings)),
            *figures,
            *((result.outcome.value, escape(result.reason)) if ended else ()),
        )
    return grid


def _draw_front(console: Output, summary: Summary) -> None:
    if summary.pareto:
        title = f"Pareto front of {summary.study} ({_basis(summary)})"
        console.draw(trials_table(title, summary.pareto, summary.objectives))


def print_pareto(console: Output, summary: Summary) -> None:
    """The front, its hypervolume, and what did not compete."""
    _draw_front(console, summary)
    volume, middle = summary.volume(), summary.knee()
    if middle is not None and len(summary.pareto) > 2:
        console.print(f"knee: trial {middle.number}, nearest to the best of all objectives at once")
    if volume is not None:
        console.print(f"hypervolume: {volume:.4g} over the worst values seen")
    if summary.set_aside:
        console.print(set_aside_text(summary))
    others = [trial for trial in summary.trials if trial.result.outcome is not Outcome.OK]
    if others:
        console.draw(trials_table("not on it, because they did not end ok", others, summary.objectives))


def print_trial(console: Output, trial: Trial, set_aside: bool) -> None:
    """One trial with its stages."""
    if set_aside:
        console.print("set aside: measured under an earlier spec of the study")
    print_result(console, trial.result, f"trial {trial.number} ({escape(trial.origin)}): ")


def print_result(console: Output, result: Result, title: str = "") -> None:
    """How a candidate ended, every figure, the stages, and what limits."""
    console.print(f"{title}{result.outcome} {escape(result.reason)}".rstrip())
    console.print(
        f"{format_partition(result.candidate.partition)}   {escape(knobs_text(result.candidate.settings))}".rstrip()
    )
    measured = result.measurement
    if measured is None:
        return
    whole, parts = taken_apart(measured.metrics)
    title = f"regime {measured.regime}, {'simulated' if measured.simulated else 'measured'}"
    console.draw(_figures_table(title, whole, parts))
    grid = table("stages", ("stage", "layers", *TIMES, *SIZES), (*TIMES, *SIZES))
    for row in measured.stages:
        sizes = [f"{row.weights_bytes / _GIB:.1f}", f"{row.free_bytes / _GIB:.1f}"]
        sizes += [f"{row.kv_blocks:,}", f"{row.stranded_bytes / _GIB:.1f}"]
        grid.add_row(str(row.stage), str(row.layers), *_times(row), *sizes)
    console.draw(grid)
    console.print(f"limit: {escape(measured.limiting_reason)}")


def catalog_table(entries: Sequence[Entry]) -> Table:
    """What a name can mean."""
    grid = table("search spaces and runners", ("name", "kind", "origin", "file"))
    for entry in entries:
        grid.add_row(entry.name, entry.kind.words, entry.origin, escape(entry.label))
    return grid


def print_summary(console: Output, summary: Summary, stopped: str = "", *, every: bool = False) -> None:
    """What a study found: the front, the default, the winner and the verdict; all trials with `every`."""
    if every:
        console.draw(trials_table(f"trials of {summary.study}", summary.trials, summary.objectives))
    counts = ", ".join(f"{count} {outcome}" for outcome, count in summary.counts().items() if count)
    _draw_front(console, summary)
    if summary.final is not None:
        _draw_final(console, summary, summary.final)
    ended = f" ({stopped})" if stopped else ""
    console.print(f"trials: {counts or 'none'}{ended}   database: {escape(summary.database)}")
    if summary.set_aside:
        console.print(f"{set_aside_text(summary)} (partitune show {escape(summary.study)} --trial N shows one)")
    if summary.default is not None:
        console.print(f"default: {_line(summary.default, summary.objectives, summary.final)}")
    if summary.best is not None:
        console.print(f"best:    {_line(summary.best, summary.objectives, summary.final)}")
    for trial in () if every else summary.trials:
        if trial.origin.startswith(("exact:", "seed:")) and trial.result.outcome is not Outcome.OK:
            console.print(f"not ok:  {_line(trial, summary.objectives)}")
    console.print(f"why: {summary.why}")
    for line in layouts_tried(((one.number, one.result) for one in summary.trials), summary.objectives[0]):
        console.print(escape(line))
    for line in () if summary.distance is None else summary.distance.lines():
        console.print(escape(line))
    for line in summary.notes():
        console.print(escape(line))
    if summary.verdict:
        console.print(f"verdict: {escape(summary.verdict)}")


def _draw_final(console: Output, summary: Summary, final: Judgement) -> None:
    """Who was run again and dropped when; then every objective of the pairs that decide."""
    name = summary.objectives[0].metric
    rounds = [f"round {number + 1}" for number in range(max(len(one.rounds) for one in final.finalists))]
    figures = ("fresh runs", "in search", *rounds)
    grid = table(f"final of {summary.study}: {name}", ("trial", "partition", "knobs", *figures, "out after"), figures)
    for one in final.finalists:
        trial = summary.trial(one.trial)
        grid.add_row(
            f"{one.trial}{' (default)' * trial.is_default}",
            format_partition(trial.result.candidate.partition),
            escape(knobs_text(trial.result.candidate.settings)),
            f"{one.runs}{f', {one.failed} failed' * bool(one.failed)}",
            figure(trial.result.metric(name), name),
            *(figure(value, name) for value in one.rounds),
            *("" for _ in rounds[len(one.rounds) :]),
            one.out,
        )
    console.draw(grid)
    if final.comparison is None or not final.comparison.changes:
        return
    columns = ("default", f"trial {final.last}", "change", f"{100 * CONFIDENCE:.0f} % interval")
    grid = table(f"{final.pairs} pairs of fresh runs", ("metric", *columns, "verdict"), columns)
    for change in final.comparison.changes:
        paired, metric = final.gains[change.objective.metric], change.objective.metric
        interval = f"{100 * paired.low:+.1f} to {100 * paired.high:+.1f} %"
        shown = (figure(change.default, metric), figure(change.value, metric), f"{100 * paired.gain:+.1f} %", interval)
        grid.add_row(metric, *shown, change.verdict)
    console.draw(grid)


def _basis(summary: Summary) -> str:
    measured = [trial.result.measurement for trial in summary.trials if trial.result.measurement is not None]
    return "simulated" if all(one.simulated for one in measured) else "measured"


def _line(trial: Trial, objectives: Sequence[Objective], final: Judgement | None = None) -> str:
    """Its figures: those of its fresh runs beside the default's where there are any."""
    result: Result = trial.result
    means = {} if final is None else {metric: final.means(metric) for metric in final.gains}
    fresh = final is not None and bool(means) and (trial.is_default or trial.number == final.last)
    values = {one.metric: result.metric(one.metric) for one in objectives}
    if final is not None and fresh:
        values |= {metric: both[0 if trial.is_default else 1] for metric, both in means.items() if both is not None}
    figures = ", ".join(f"{metric} {figure(value, metric)}" for metric, value in values.items())
    what = figures if result.measurement is not None else f"{result.outcome}: {escape(result.reason)}"
    basis = f" (mean of {final.pairs} fresh runs)" if final is not None and fresh else ""
    return f"trial {trial.number}  {format_partition(result.candidate.partition)}  {what}{basis}"


def studies_table(studies: Sequence[tuple[StudyRecord, Mapping[Outcome, int]]]) -> Table:
    """All studies of a database."""
    grid = table("studies", ("study", "state", "engine", "runner", "trials", "created (UTC)"), ("trials",))
    for study, counts in studies:
        trials = sum(counts.values())
        created = study.created_at.strftime("%Y-%m-%d %H:%M")
        grid.add_row(
            study.name, study.state.value, f"{study.engine} {study.engine_version}", study.runner, str(trials), created
        )
    return grid
