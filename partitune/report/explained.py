"""One candidate stage by stage: from `explain`, beside the engine's default, or as a trial or a launch ended.

Decision: every table says whether its figures were simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from partitune.analysis.comparison import gain
from partitune.analysis.figures import figure, flags_text, gib, percent
from partitune.analysis.references import Reference, worth
from partitune.candidate import Objective, Result, StageReport
from partitune.report.output import Output, table
from partitune.spec.metrics import HEADLINES, METRICS, NEEDS, by_load

if TYPE_CHECKING:  # a value to draw: what works it out is not imported
    from partitune.analysis.explanation import Explained

#: Metrics of the comparison with the default, in reading order.
COMPARED = (*HEADLINES, "kv_tokens")
#: Columns of a stage that ran: what it takes of the time, and of the memory.
TIMES = ("compute s", "transfer s", "wait s", "busy %")
SIZES = ("weights GiB", "free GiB", "KV blocks", "stranded GiB")
Cells = Mapping[str, object]  # of one row, by column


def print_explained(console: Output, explained: Explained, references: Sequence[Reference]) -> None:
    """The per-stage table of one candidate, what limits it, and the comparison with each reference."""
    partition, flags = explained.candidate.partition_text, flags_text(explained.candidate.settings)
    title = "  ".join(part for part in (partition, flags, f"({explained.resolved.flow.name}, simulated)") if part)
    _print_stages(console, explained, title)
    result, measured = explained.result, explained.result.measurement
    if measured is None:
        console.say(f"cannot run ({result.outcome}): {result.reason}")
    else:
        blocks = f"KV cache: {measured.kv_blocks:,} blocks, {measured.kv_tokens:,} tokens"
        console.say(
            f"limit: {measured.limiting_reason}",
            f"{blocks}, decided by the stage with the fewest blocks",
            *([f"missed: {result.reason}"] if result.reason else []),
        )
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in explained.balance.items())
    console.say(f"slowest stage over mean stage: {shown}")
    console.say(*(() if explained.distance is None else explained.distance.lines()))
    console.say(*(() if explained.advice is None else explained.advice.lines()))
    for reference in references:
        _print_against(console, explained, reference)
    if len(references) > 1:
        objective = Objective(HEADLINES[0], METRICS[HEADLINES[0]])
        console.say(*worth(objective, references[1].result, references[0].result, result))
    whole, loads = by_load({} if measured is None else measured.metrics)
    if loads:
        named = {name: whole[name] for name in (*COMPARED, *NEEDS) if name in whole}
        console.draw(_figures_table("under every load of the mix", named, loads))
    shares = ", ".join(
        f"{name.replace('_', ' ')} {'-'.join(dict.fromkeys(map(str, percents)))} %"
        for name, percents in explained.measured_percent().items()
    )
    kernels = explained.resolved.problem.costs.kernels
    console.say(
        f"times: {explained.resolved.problem.costs.source}",
        f"kernels assumed: {'; '.join(f'{work}: {name}' for work, name in kernels.items())}",
        f"share of measured kernels in the stage times: {shares}",
        *(other.text for other in explained.other_tables),
        *explained.caveats.lines(),
        *(f"note: {note}" for note in explained.notes),
    )


def _print_stages(console: Output, explained: Explained, title: str) -> None:
    """All columns in one table, or in a narrow window times first and memory below."""
    stages = [_cells(explained, stage) for stage in range(len(explained.resolved.memory))]
    whole = _stage_table(title, ("stage", "node", "gpu", "layers", "kinds", *TIMES, *SIZES, ""), stages)
    if console.fits(whole):
        console.draw(whole)
    else:
        console.draw(_stage_table(title, ("stage", "layers", "kinds", *TIMES), stages))
        console.draw(_stage_table("memory", ("stage", "node", "gpu", *SIZES, ""), stages))


def _cells(explained: Explained, stage: int) -> Cells:
    """Also of a stage that cannot run."""
    memory = explained.resolved.memory[stage]
    planned = dict.fromkeys((*TIMES, *SIZES), "-")
    planned |= {"weights GiB": gib(memory.weight_bytes), "free GiB": gib(memory.kv_bytes)}
    mark = "<- limits" if stage == explained.limiting_stage else ""
    return {
        "stage": stage,
        "node": explained.resolved.problem.placement.nodes[stage],
        "gpu": memory.gpu,
        "layers": explained.candidate.partition[stage],
        "kinds": " ".join(f"{count} {kind}" for kind, count in explained.resolved.kinds[stage].items()),
        **(_ran(explained.stages[stage]) if explained.stages else planned),
        "": mark if memory.fits else "does not fit",
    }


def _ran(stage: StageReport) -> Cells:
    """What a run says of one stage."""
    times = [f"{seconds:.3f}" for seconds in (stage.compute_s, stage.transfer_s, stage.wait_s)]
    sizes = (gib(stage.weights_bytes), gib(stage.free_bytes), f"{stage.kv_blocks:,}", gib(stage.stranded_bytes))
    cells = (stage.stage, stage.layers, *times, f"{100 * stage.busy_fraction:.1f}", *sizes)
    return dict(zip(("stage", "layers", *TIMES, *SIZES), cells, strict=True))


def _stage_table(title: str, columns: Sequence[str], stages: Iterable[Cells]) -> Table:
    rows = ((cells[column] for column in columns) for cells in stages)
    return table(title, columns, rows, (*TIMES, *SIZES))


def _print_against(console: Output, explained: Explained, reference: Reference) -> None:
    rows = []
    for name in (*COMPARED, *(name for name in NEEDS if explained.result.metric(name) is not None)):
        before, after = reference.result.metric(name), explained.result.metric(name)
        change = "-"
        if before is not None and after is not None:
            relative = gain(Objective(name, METRICS[name]), before, after)
            change = f"{percent(abs(relative))} {'better' if relative > 0 else 'worse'}"
            change = change if abs(relative) > 5e-4 else "same"
        rows.append((name, figure(before, name), figure(after, name), change))
    if reference.result.measurement is None:
        console.say(f"{reference.name} cannot run here: {reference.result.reason}")
    right = (reference.column, "this", "change")
    console.say(f"against {reference.name}:")
    console.draw(table("", ("metric", *right), rows, right))


def _figures_table(title: str, whole: Mapping[str, float], loads: Mapping[str, Mapping[str, float]]) -> Table:
    """All figures of `whole`, and beside each those under every load of a mix."""
    columns = {"mix" if loads else "value": whole, **loads}
    rows = ((name, *(figure(figures.get(name), name) for figures in columns.values())) for name in whole)
    return table(title, ("metric", *columns), rows, tuple(columns))


def print_result(console: Output, result: Result, title: str = "") -> None:
    """How a candidate ended, every figure, the stages, and what limits."""
    candidate, measured = result.candidate, result.measurement
    text = f"{candidate.partition_text}   {flags_text(candidate.settings)}"
    console.say(f"{title}{result.outcome} {result.reason}".rstrip(), text.rstrip())
    if measured is None:
        return
    title = f"{measured.regime}, {'simulated' if measured.simulated else 'measured'}"
    console.draw(_figures_table(title, *by_load(measured.metrics)))
    console.draw(_stage_table("stages", ("stage", "layers", *TIMES, *SIZES), map(_ran, measured.stages)))
    console.say(f"limit: {measured.limiting_reason}")
