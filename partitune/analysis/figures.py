"""How a value is written for a person, the same in every table and sentence.

Decision: apart from the tables, so that a command that opens no database need not import one.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.candidate import FlagValue


def figure(value: float | None, name: str = "") -> str:
    """A figure as a person reads it: whole numbers of blocks and tokens, three digits otherwise; `-` for none."""
    if value is None:
        return "-"
    if name.startswith("kv_") or abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.1f}"


def percent(share: float, form: str = ".1f") -> str:
    """`12.3 %` for 0.123; `form` is that of the number, such as `.0f`, or `+.1f` with its sign."""
    return f"{100 * share:{form}} %"


def gib(size_bytes: float) -> str:
    """Bytes as GiB with one digit behind the point, without the unit."""
    return f"{size_bytes / (1 << 30):.1f}"


def flags_text(flags: Mapping[str, FlagValue]) -> str:
    """Flags as a person writes them: `max_num_seqs=128 async_scheduling=true`."""
    return " ".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in flags.items())
