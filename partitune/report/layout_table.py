"""Layouts side by side, what follows from them, and what was left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitune.analysis.figures import figure
from partitune.report.output import Output, table

if TYPE_CHECKING:  # a value to draw: what works it out is not imported
    from partitune.search.layout_comparison import Compared


def print_compared(console: Output, compared: Compared) -> None:
    """The table, what follows from it, and what was left out."""
    right = ("idle GPUs", "output tok/s", "ttft p50 ms", "tpot p50 ms", "KV tokens", "in flight")
    rows = (
        (
            row.layout.name,
            row.result.candidate.partition_text,
            row.idle_gpus,
            *(figure(value, name) for name, value in row.metrics.items()),
            row.result.reason,
        )
        for row in compared.rows
    )
    if compared.rows:
        columns = ("layout", "partition", *right, "reason")
        console.draw(table(f"{compared.space}: layouts, simulated", columns, rows, right))
    console.say(*compared.advice)
    without: dict[str, list[str]] = {}
    for layout in compared.left_out:
        without.setdefault("; ".join(layout.reasons), []).append(layout.layout.name)
    console.say(*(f"not {', '.join(names)}: {reason}" for reason, names in without.items()))
    if compared.not_simulated:
        names_of_rest = ", ".join(layout.layout.name for layout in compared.not_simulated)
        console.say(f"thought slower than these and not simulated: {names_of_rest}")
