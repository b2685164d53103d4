"""Tables of `partitune validate`, and below each what is off and its test of record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from partitune.analysis.figures import percent
from partitune.report.output import Output, table

if TYPE_CHECKING:  # a value to draw: what works it out is not imported
    from partitune.fidelity.validation import Validation


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
    winners = {"a": "A wins", "b": "B wins"}
    right = ("published", "simulated")
    rows = []
    for pair in validation.pairs:
        published = f"{pair.expected:.2f}" if pair.expected else winners.get(pair.better, "same")
        simulated = "cannot run" if pair.simulated is None else f"{pair.simulated:.2f}"
        sign = "right" if pair.right else "WRONG"
        rows.append((f"{pair.name} [{pair.source}]", pair.metric, published, simulated, sign, pair.assumed))
    return table(validation.title, ("published result", "metric", *right, "sign", "assumed"), rows, right)
