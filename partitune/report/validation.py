"""Tables of `partitune validate`, and below each what is off and its test of record."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.table import Table

from partitune.analysis.figures import percent
from partitune.report.output import Output, table

if TYPE_CHECKING:  # a value to draw: what works it out is not imported
    from partitune.fidelity.findings import Validation
    from partitune.fidelity.pairs import Pair

_FIGURES = {
    "total_throughput_tok_s": "tok/s",
    "output_throughput_tok_s": "output tok/s",
    "ttft_mean_ms": "TTFT",
    "tpot_mean_ms": "TPOT",
    "e2e_p90_ms": "p90 latency",
}


def print_validation(console: Output, validation: Validation) -> None:
    """One table, what is off, and the verdict."""
    console.draw(_pairs(validation) if validation.pairs else _groups(validation))
    console.say(*validation.notes, *([validation.verdict.text] if validation.verdict else []))


def _groups(validation: Validation) -> Table:
    right = ("points", "bias", "median", "p90", "roofline median", "roofline p90")
    rows = []
    for group in validation.groups:
        errors, roofline = group.errors, group.roofline
        shares = (errors.median, errors.p90, roofline.median, roofline.p90)
        words = (group.model, group.gpu, group.engine, errors.points, percent(errors.bias, "+.0f"))
        rows.append((*words, *(percent(share, ".0f") for share in shares)))
    return table(validation.title, ("model", "GPU", "engine", *right), rows, right)


def _pairs(validation: Validation) -> Table:
    right = ("published", "simulated", "error")
    rows: list[tuple[str, ...]] = []
    for (source, part), pairs in groupby(validation.pairs, lambda pair: (pair.source, pair.part)):
        rows.append((f"{source} ({part.replace('_', ' ')})", *[""] * 5))
        rows.extend(_pair(pair) for pair in pairs)
    return table(validation.title, ("published result", "figure", *right, "sign"), rows, right)


def _pair(pair: Pair) -> tuple[str, ...]:
    winners = {"a": "A wins", "b": "B wins"}
    published = f"{pair.expected:.2f}" if pair.expected else winners.get(pair.better, "same")
    simulated = "cannot run" if pair.simulated is None else f"{pair.simulated:.2f}"
    error = "" if pair.error is None else percent(pair.error, "+.0f")
    sign = "right" if pair.right else "WRONG"
    return f"  {pair.name}", _FIGURES.get(pair.metric, pair.metric), published, simulated, error, sign
