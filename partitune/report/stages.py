"""The stages of a candidate as rows of a table: what each takes of the time, and of the memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table

from partitune.analysis.figures import gib
from partitune.candidate import StageReport
from partitune.report.output import table

TIMES = ("compute s", "transfer s", "wait s", "busy %")
SIZES = ("weights GiB", "free GiB", "KV blocks", "stranded GiB")
Cells = Mapping[str, object]


def stage_cells(stage: StageReport) -> Cells:
    """What a run says of one stage, by column."""
    times = (*(f"{seconds:.3f}" for seconds in (stage.compute_s, stage.transfer_s, stage.wait_s)),)
    busy = f"{100 * stage.busy_fraction:.1f}"
    sizes = (gib(stage.weights_bytes), gib(stage.free_bytes), f"{stage.kv_blocks:,}", gib(stage.stranded_bytes))
    cells = zip((*TIMES, *SIZES), (*times, busy, *sizes), strict=True)
    return {"stage": stage.stage, "layers": stage.layers, **dict(cells)}


def stage_table(title: str, columns: Sequence[str], stages: Iterable[Cells]) -> Table:
    """The named columns of these stages."""
    rows = ((cells[column] for column in columns) for cells in stages)
    return table(title, columns, rows, (*TIMES, *SIZES))
