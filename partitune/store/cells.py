"""Take the cells of one stored row apart.

Decision: a database is edited by hand, half-restored and copied off failing disks, so nothing read from it is believed:
a cell that does not read as what its column holds raises a StoreError that names database, table, row and column, and
nothing is replaced by a guess.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from partitune.errors import StoreError

_PARTITION = re.compile(r"[0-9]{1,9}(,[0-9]{1,9})*")
Name = TypeVar("Name", bound=StrEnum)


def to_json(value: object) -> str:
    """The JSON text that is stored: keys in order, so that equal values are equal texts. No NaN, no infinity."""
    return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Cells:
    """Reads cells of the row that `row` names (`trial 3 of study k3`)."""

    database: str
    table: str
    row: str

    def reject(self, column: str, value: object, allowed: str) -> NoReturn:
        """Raise the StoreError for one cell."""
        shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
        raise StoreError(
            f"{self.database}: table {self.table}, {self.row}, column {column}: {shown} is not {allowed}. "
            "The row is damaged: restore the file from a copy, or correct the cell"
        )

    def text(self, column: str, value: object) -> str:
        """The cell, when it is a text. Raises StoreError."""
        return value if isinstance(value, str) else self.reject(column, value, "a text")

    def integer(self, column: str, value: object) -> int:
        """The cell, when it is an integer. Raises StoreError."""
        return value if isinstance(value, int) else self.reject(column, value, "an integer")

    def time(self, column: str, value: object) -> datetime:
        """A time with its zone from ISO 8601. Raises StoreError."""
        try:
            time = datetime.fromisoformat(self.text(column, value))
        except ValueError:
            self.reject(column, value, "a time such as 2026-11-29T12:00:00+00:00")
        return time if time.tzinfo is not None else self.reject(column, value, "a time with its zone")

    def one_of(self, column: str, value: object, names: type[Name]) -> Name:
        """The member of a closed set that the cell names. Raises StoreError."""
        try:
            return names(self.text(column, value))
        except ValueError:
            self.reject(column, value, f"one of {', '.join(names)}")

    def partition(self, column: str, value: object) -> tuple[int, ...]:
        """Layers per stage from `11,11,12`. Raises StoreError."""
        if not _PARTITION.fullmatch(self.text(column, value)):
            self.reject(column, value, "a partition such as 11,11,12")
        return tuple(int(count) for count in self.text(column, value).split(","))

    def mapping(self, column: str, value: object) -> dict[str, Any]:
        """The JSON object in a text, without NaN and infinity. Raises StoreError."""
        try:
            decoded = _DECODER.decode(self.text(column, value))
        except ValueError:
            self.reject(column, value, "JSON")
        return decoded if isinstance(decoded, dict) else self.reject(column, value, "a JSON object")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


_DECODER = json.JSONDecoder(parse_constant=_refuse)  # made once: json.loads makes one for every cell
