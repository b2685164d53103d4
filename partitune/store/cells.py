"""One cell of a stored row: the text it is kept as, and the value read from it.

Decision: a database is edited by hand, half-restored and copied off failing disks, so nothing read from it is believed:
a cell that does not read as what its column holds raises a StoreError that names database, table, row and column, and
nothing is replaced by a guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, NoReturn

from partitune.errors import StoreError, shortened

_PARTITION = re.compile(r"[0-9]{1,9}(,[0-9]{1,9})*")

#: Takes the text of a cell apart; raises ValueError, which says what is allowed.
Reader = Callable[[str], Any]


def to_json(value: object) -> str:
    """The JSON text that is stored: keys in order, so that equal values are equal texts. No NaN, no infinity."""
    return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"), default=dict)  # views of mappings


def cell_of(value: Any) -> Any:
    """The cell of a field: JSON of a mapping, ISO 8601 of a time, the text of a member, any other value as it is."""
    match value:
        case int() | float():  # most are, and the others take longer to tell
            return value
        case Mapping():
            return to_json(value)
        case datetime():
            return value.isoformat()
        case StrEnum():
            return value.value
    return value


def storable(reason: str) -> str:
    """`reason` as any database takes it: NUL and bytes that are no text, as engine logs hold them, become escapes."""
    return reason.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def reject(place: tuple[str, str, str], column: str, value: object, allowed: str) -> NoReturn:
    """Raise the StoreError for one cell.

    Args:
        place: database, table and row, the row as a person names it (`trial 3 of study k3`).
        column: its name.
        value: what it holds.
        allowed: what it may hold.
    """
    database, table, row = place
    raise StoreError(
        f"{database}: table {table}, {row}, column {column}: {shortened(repr(value), 80)} is not {allowed}. "
        "The row is damaged: restore the file from a copy, or correct the cell"
    )


def integer(place: tuple[str, str, str], column: str, value: object) -> int:
    """The cell, when it is an integer. Raises StoreError."""
    return value if isinstance(value, int) else reject(place, column, value, "an integer")


def time(cell: str) -> datetime:
    """A time with its zone, from ISO 8601."""
    try:
        value = datetime.fromisoformat(cell)
    except ValueError:
        raise ValueError("a time such as 2026-11-29T12:00:00+00:00") from None
    if value.tzinfo is None:
        raise ValueError("a time with its zone")
    return value


def one_of(names: type[StrEnum]) -> Reader:
    """Reads a member of a closed set."""

    def read(cell: str) -> StrEnum:
        try:
            return names(cell)
        except ValueError:
            raise ValueError(f"one of {', '.join(names)}") from None

    return read


def partition(cell: str) -> tuple[int, ...]:
    """Layers per stage, from `11,11,12`."""
    if not _PARTITION.fullmatch(cell):
        raise ValueError("a partition such as 11,11,12")
    return tuple(map(int, cell.split(",")))


def json_object(cell: str) -> dict[str, Any]:
    """The JSON object in a text, without NaN and infinity."""
    try:
        value = _DECODER.decode(cell)
    except ValueError:
        raise ValueError("JSON") from None
    if not isinstance(value, dict):
        raise ValueError("a JSON object")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


_DECODER = json.JSONDecoder(parse_constant=_refuse)  # made once: json.loads makes one for every cell
