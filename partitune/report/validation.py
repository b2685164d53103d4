"""Tables of `partitune validate`: errors by model and GPU, signs of published pairs, what remains off and why.

Decision: both cost models stand side by side, so that the choice of the default can be seen to be the better one. Below
each table stands its test of record, with the limit, and a bad group is never left without a word about its cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from partitune.fidelity.layers import layer_points
from partitune.fidelity.pairs import Pair, published_pairs
from partitune.fidelity.points import COVERED, Errors, Point, grouped
from partitune.fidelity.servers import Skipped, server_points
from partitune.report.output import Output, table

#: The test of record over covered whole servers.
MEDIAN_LIMIT, P90_LIMIT = 0.15, 0.35
_FIGURES = ("points", "bias", "median", "p90", "roofline median", "roofline p90")
_BAD = 0.25  # a group whose 90th percentile is worse is explained


@dataclass(frozen=True, slots=True)
class Verdict:
    """A test of record."""

    text: str
    passed: bool


def print_tables(console: Output, names: Sequence[str], every: int) -> list[Verdict]:
    """Run and print the tables called `names`; of whole servers only every `every`-th."""
    verdicts = []
    with TemporaryDirectory() as directory:
        folder = Path(directory)
        if "layers" in names:
            print_layers(console, list(layer_points()))
        if "servers" in names:
            found = list(server_points(folder, every))
            points = [one for one in found if isinstance(one, Point)]
            verdicts.append(print_servers(console, points, [one for one in found if isinstance(one, Skipped)]))
        if "pairs" in names:
            verdicts.append(print_pairs(console, list(published_pairs(folder))))
    return verdicts


def print_layers(console: Output, points: Sequence[Point]) -> None:
    """Errors of layer times by model, GPU and TP size."""
    _print_groups(console, "layers", "layer times of one step: error against compositions of measured kernels", points)


def print_servers(console: Output, points: Sequence[Point], skipped: Sequence[Skipped]) -> Verdict:
    """Errors of the time per output token by model and GPU."""
    _print_groups(console, "servers", "whole servers: error of the time per output token", points)
    for (engine, model, gpu, reason), group in _counted(skipped).items():
        console.print(f"not simulated: {group} points of {model} on {gpu} with {engine}: {reason}", markup=False)
    covered = [point for point in points if point.covered >= COVERED]
    if not covered:
        return Verdict("no point is covered by measured kernels", passed=False)
    errors, roofline = Errors.of(p.error for p in covered), Errors.of(p.roofline_error for p in covered)
    verdict = Verdict(
        f"{errors.points} of {len(points)} points rest on measured kernels by {100 * COVERED:.0f} % or more: "
        f"median {100 * errors.median:.1f} % (at most {100 * MEDIAN_LIMIT:.0f} %), "
        f"p90 {100 * errors.p90:.1f} % (at most {100 * P90_LIMIT:.0f} %); "
        f"the roofline alone: {100 * roofline.median:.1f} %, {100 * roofline.p90:.1f} %",
        passed=errors.median <= MEDIAN_LIMIT and errors.p90 <= P90_LIMIT,
    )
    console.print(verdict.text, markup=False)
    return verdict


def print_pairs(console: Output, pairs: Sequence[Pair]) -> Verdict:
    """Published A/B results: who wins, and by how much."""
    figures = ("published", "simulated")
    grid = table("published pairs: B over A", ("published result", "metric", *figures, "sign", "assumed"), figures)
    for pair in pairs:
        published = f"{pair.expected:.2f}" if pair.expected else {"a": "A wins", "b": "B wins"}.get(pair.better, "same")
        simulated = "cannot run" if pair.found is None else f"{pair.found:.2f}"
        grid.add_row(
            f"{pair.name} [{pair.source}]".replace("[", r"\["),
            pair.metric,
            published,
            simulated,
            "right" if pair.right else "WRONG",
            pair.assumed,
        )
    console.draw(grid)
    for pair in pairs:
        if not pair.right:
            why = next((c["why"] for c in _causes("pairs") if c["name"] == pair.name), pair.reason or "cause unknown")
            console.print(f"off: {pair.name}: {why}", markup=False)
    stated = [pair for pair in pairs if pair.stated]
    right = sum(pair.right for pair in stated)
    others = sum(pair.right for pair in pairs) - right
    verdict = Verdict(
        f"signs right: {right} of {len(stated)} pairs whose configuration is stated in full, {others} of "
        f"{len(pairs) - len(stated)} others",
        passed=right == len(stated),
    )
    console.print(verdict.text, markup=False)
    return verdict


def _print_groups(console: Output, name: str, title: str, points: Sequence[Point]) -> None:
    grid = table(title, ("model", "GPU", "engine", *_FIGURES), _FIGURES)
    explained = []
    groups = grouped(points, lambda point: (point.model, point.gpu, point.engine.split()[0]))
    for (model, gpu, engine), group in sorted(groups.items()):
        errors = Errors.of(point.error for point in group)
        grid.add_row(model, gpu, engine, *_figures(errors, Errors.of(point.roofline_error for point in group)))
        if errors.p90 > _BAD:
            off = f"median {100 * errors.median:.0f} %, p90 {100 * errors.p90:.0f} %"
            explained.append(f"off: {model} on {gpu} ({off}): {_why(name, model, gpu, engine)}")
    whole = Errors.of(point.error for point in points)
    grid.add_row("all", "", "", *_figures(whole, Errors.of(point.roofline_error for point in points)))
    console.draw(grid)
    for line in explained:
        console.print(line, markup=False)


def _figures(errors: Errors, roofline: Errors) -> list[str]:
    shares = (errors.median, errors.p90, roofline.median, roofline.p90)
    return [str(errors.points), f"{100 * errors.bias:+.0f} %", *(f"{100 * share:.0f} %" for share in shares)]


def _why(name: str, model: str, gpu: str, engine: str) -> str:
    wanted = {"model": model, "gpu": gpu, "engine": engine}
    for cause in _causes(name):
        if all(cause.get(key, value) == value for key, value in wanted.items()):
            return cause["why"]
    return "cause unknown"


def _causes(name: str) -> list[Mapping[str, str]]:
    text = resources.files("partitune.fidelity").joinpath("data", "causes.yaml").read_text("utf-8")
    return [cause for cause in yaml.safe_load(text) if cause["table"] == name]


def _counted(skipped: Iterable[Skipped]) -> dict[tuple[str, str, str, str], int]:
    counts: dict[tuple[str, str, str, str], int] = {}
    for one in skipped:
        key = (one.engine, one.model, one.gpu, one.reason)
        counts[key] = counts.get(key, 0) + 1
    return counts
