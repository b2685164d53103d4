"""What `partitune validate` finds: errors by model and GPU, signs of published pairs, what remains off and why.

Decision: both cost models stand side by side, so that the choice of the default can be seen to be the better one. Every
table has its test of record, with the limit, and a bad group is never left without a word about its cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from partitune.analysis.figures import percent
from partitune.fidelity.findings import Group, Validation, Verdict, causes
from partitune.fidelity.layers import layer_points
from partitune.fidelity.pair_errors import pair_table
from partitune.fidelity.pairs import published_pairs
from partitune.fidelity.points import COVERED, Errors, Point
from partitune.fidelity.servers import Server, server_points

#: The test of record over covered whole servers.
MEDIAN_LIMIT, P90_LIMIT = 0.15, 0.35
_BAD = 0.25  # a group whose 90th percentile is worse is explained


def validate(names: Sequence[str], every: int) -> Iterator[Validation]:
    """The tables called `names`, each when it is asked for; of whole servers only every `every`-th."""
    with TemporaryDirectory() as directory:
        folder = Path(directory)
        if "layers" in names:
            yield layer_table(list(layer_points()))
        if "servers" in names:
            yield from server_tables(list(server_points(folder, every)))
        if "pairs" in names:
            yield pair_table(list(published_pairs(folder)))


def layer_table(points: Sequence[Point]) -> Validation:
    """Errors of layer times by model, GPU and engine."""
    return _of_points("layers", "layer times of one step: error against compositions of measured kernels", points)


def server_tables(rows: Sequence[Server | str]) -> tuple[Validation, Validation]:
    """Errors of the time per output token, held against the limits of record, and of the time to the first one."""
    servers = [row for row in rows if isinstance(row, Server)]
    skipped = Counter(row for row in rows if isinstance(row, str))
    notes = tuple(f"not simulated: {count} points of {server}" for server, count in skipped.items())
    points, firsts = [server.output_token for server in servers], [server.first_token for server in servers]
    title = "whole servers: error of the time "
    return (
        _of_points("servers", f"{title}per output token", points, notes, _server_verdict(points)),
        _of_points("first tokens", f"{title}to the first token", firsts),
    )


def _server_verdict(points: Sequence[Point]) -> Verdict:
    covered = [point for point in points if point.covered >= COVERED]
    if not covered:
        return Verdict("no point is covered by measured kernels", passed=False)
    whole = _group(("all", "", ""), covered)
    errors, roofline = whole.errors, whole.roofline
    return Verdict(
        f"{errors.points} of {len(points)} points rest on measured kernels by {percent(COVERED, '.0f')} or more: "
        f"median {percent(errors.median)} (at most {percent(MEDIAN_LIMIT, '.0f')}), "
        f"p90 {percent(errors.p90)} (at most {percent(P90_LIMIT, '.0f')}); "
        f"the roofline alone: {percent(roofline.median)}, {percent(roofline.p90)}",
        passed=errors.median <= MEDIAN_LIMIT and errors.p90 <= P90_LIMIT,
    )


def _of_points(
    table: str, title: str, points: Sequence[Point], notes: tuple[str, ...] = (), verdict: Verdict | None = None
) -> Validation:
    """The groups of `points`, and before `notes` a sentence on every cause that puts groups off by more than little."""
    groups = [_group(names, list(of_group)) for names, of_group in groupby(sorted(points, key=_names), _names)]
    off: dict[str, list[str]] = {}
    for group in groups:
        if group.errors.p90 > _BAD:
            errors = f"median {percent(group.errors.median, '.0f')}, p90 {percent(group.errors.p90, '.0f')}"
            off.setdefault(_why(table, group), []).append(f"{group.model} on {group.gpu} ({errors})")
    sentences = (f"off: {', '.join(those)}: {why}" for why, those in off.items())
    return Validation(title, (*groups, _group(("all", "", ""), points)), (), (*sentences, *notes), verdict)


def _names(point: Point) -> tuple[str, str, str]:
    return point.model, point.gpu, point.engine.split()[0]


def _group(names: tuple[str, str, str], points: Sequence[Point]) -> Group:
    errors, roofline = (point.error for point in points), (point.roofline_error for point in points)
    return Group(*names, Errors.of(errors), Errors.of(roofline))


def _why(table: str, group: Group) -> str:
    wanted = {"model": group.model, "gpu": group.gpu, "engine": group.engine}
    known = (c["why"] for c in causes(table) if all(c.get(key, value) == value for key, value in wanted.items()))
    return next(known, "cause unknown")
