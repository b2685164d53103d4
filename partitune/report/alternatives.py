"""What is answered without a search: the exact front of partitions and what bounds it, and layouts side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from partitune.analysis.figures import figure, flags_text, percent
from partitune.report.output import Output, table

if TYPE_CHECKING:  # values to draw: what works them out is not imported
    from partitune.search.exact_front import Solved
    from partitune.search.layout_comparison import Compared


def print_solved(console: Output, solved: Solved) -> None:
    """The front as a table beside the engine's default, and what bounds it."""
    title = "  ".join(part for part in (solved.space, flags_text(solved.settings)) if part)
    right = ("slowest stage s", "over bound %", "KV tokens", "first token ms")
    rows = []
    for row in solved.rows:
        tokens = figure(row.kv_tokens, "kv_tokens")
        figures = (f"{row.slowest_s:.4g}", f"{100 * row.over_bound:.2f}", tokens, f"{1e3 * row.prompt_s:.4g}")
        tightest = min(row.memory, key=lambda stage: stage.kv_bytes)
        memory = "; ".join(row.reasons) or f"tightest {tightest.verdict}"
        rows.append((row.partition.text, *figures, ", ".join(row.names), memory))
    title = f"{title}  ({solved.regime}, planned)"
    console.draw(table(title, ("partition", *right, "is", "memory"), rows, right))
    console.say(*_sentences(solved))


def _sentences(solved: Solved) -> Iterator[str]:
    default, best = solved.rows[0], solved.best
    if best is None:
        yield f"no partition fits: {solved.infeasible}"
    else:
        avoidable = percent(default.slowest_s / best.slowest_s - 1)
        yield (
            f"bound: if layers could be cut anywhere, the slowest stage would take {solved.fluid_s:.4g} s of this "
            f"load; whole layers cost {percent(best.over_bound)}, the default partition at these flags {avoidable} more"
        )
    if solved.starting is not None:
        starting = solved.starting
        yield (
            f"all rows are at the same flags ({flags_text(solved.settings)}); the engine's default "
            f"{starting.partition.text} at its starting flags: slowest stage {starting.slowest_s:.4g} s, "
            f"KV tokens {figure(starting.kv_tokens, 'kv_tokens')} (seconds of a stage rank partitions, not flags: "
            "for those see partitune explain)"
        )
    knee = sum(default.stage_s) / default.slowest_s
    if solved.in_flight <= knee:
        yield (
            f"throughput: {solved.in_flight} of {len(default.stage_s)} groups of requests are in flight under these "
            f"flags; up to {knee:.1f} the sum of the stages counts and not the slowest"
        )
    if solved.orders_text:
        yield f"order: {solved.orders_text}"
    for order in solved.orders:
        reserved = f" (reserved GiB {','.join(map('{:g}'.format, order.reserved_gib))})" * any(order.reserved_gib)
        slowest = f"slowest stage {order.slowest_stage_s:.4g} s with {order.partition.text}"
        yield f"- {','.join(order.gpu)}{reserved}: {slowest}"
    yield f"times: {solved.cost_source}"
    yield from solved.caveats.lines()


def print_compared(console: Output, compared: Compared) -> None:
    """The table, what follows from it, and what was left out."""
    right = ("idle GPUs", "output tok/s", "ttft p50 ms", "tpot p50 ms", "KV tokens", "in flight")
    rows = []
    for row in compared.rows:
        figures = (figure(value, name) for name, value in row.metrics.items())
        candidate = row.result.candidate
        own = (row.layout.name, candidate.partition_text, flags_text(candidate.flags), row.idle_gpus)
        rows.append((*own, *figures, row.result.reason))
    if compared.rows:
        columns = ("layout", "partition", "knobs", *right, "reason")
        console.draw(table(f"{compared.space}: layouts, simulated", columns, rows, right))
        console.say(f"ranked by {compared.ranked_by}; {compared.tried_text}")
    console.say(*compared.advice)
    without: dict[str, list[str]] = {}
    for layout in compared.left_out:
        without.setdefault("; ".join(layout.reasons), []).append(layout.layout.name)
    console.say(*(f"not {', '.join(names)}: {reason}" for reason, names in without.items()))
    if compared.not_simulated:
        names_of_rest = ", ".join(layout.layout.name for layout in compared.not_simulated)
        console.say(f"thought slower than these and not simulated: {names_of_rest}")
    console.say(*compared.caveats.lines())
