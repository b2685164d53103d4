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
from typing import Any, NoReturn, TypeVar, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError
from sqlalchemy import Row

from partitune.analysis.final import Phase
from partitune.analysis.trial import Repeat, Screened, Trial
from partitune.candidate import StageReport
from partitune.errors import StoreError

_PARTITION = re.compile(r"[0-9]{1,9}(,[0-9]{1,9})*")
#: What is read from rows: the same values that were measured, and their types are the one description of a row.
_RECORDS: dict[type, TypeAdapter[Any]] = {
    kind: TypeAdapter(
        list[kind],  # type: ignore[valid-type]  # mypy wants it written out; of a list, because only that takes a config
        config=ConfigDict(strict=True, allow_inf_nan=False, revalidate_instances="always"),
    )
    for kind in (StageReport, Trial, Screened, Repeat)
}
#: What a column holds where the type of one value does not say it.
_HOLDS = {
    "kinds": "a JSON object of integers",
    "metrics": "a JSON object of numbers",
    "constraints": "a JSON object of numbers",
    "measurement": "the rest of a measurement (regime, kv_blocks, ...)",
    "phase": f"one of {', '.join(get_args(Phase))}",
}
_TYPES = {
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
}

Name = TypeVar("Name", bound=StrEnum)
Record = TypeVar("Record", StageReport, Trial, Screened, Repeat)


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
        """A text."""
        return value if isinstance(value, str) else self.reject(column, value, "a text")

    def integer(self, column: str, value: object) -> int:
        """An integer."""
        return value if isinstance(value, int) else self.reject(column, value, "an integer")

    def time(self, column: str, value: object) -> datetime:
        """A time with its zone, ISO 8601."""
        try:
            time = datetime.fromisoformat(self.text(column, value))
        except ValueError:
            self.reject(column, value, "a time such as 2026-11-29T12:00:00+00:00")
        return time if time.tzinfo is not None else self.reject(column, value, "a time with its zone")

    def one_of(self, column: str, value: object, names: type[Name]) -> Name:
        """A member of a closed set."""
        try:
            return names(self.text(column, value))
        except ValueError:
            self.reject(column, value, f"one of {', '.join(names)}")

    def partition(self, column: str, value: object) -> tuple[int, ...]:
        """Layers per stage."""
        if not _PARTITION.fullmatch(self.text(column, value)):
            self.reject(column, value, "a partition such as 11,11,12")
        return tuple(int(count) for count in self.text(column, value).split(","))

    def mapping(self, column: str, value: object) -> dict[str, Any]:
        """A JSON object."""
        try:
            decoded = _DECODER.decode(self.text(column, value))
        except ValueError:
            self.reject(column, value, "JSON")
        return decoded if isinstance(decoded, dict) else self.reject(column, value, "a JSON object")

    def checked(self, record: Record, row: Row[Any]) -> Record:
        """`record`, when every value that was taken for it from the columns of `row` has its type."""
        try:
            _RECORDS[type(record)].validate_python([record])
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            column = _column([str(name) for name in fault["loc"][1:]])
            self.reject(column, getattr(row, column), _HOLDS.get(column) or _TYPES.get(fault["type"], fault["msg"]))
        return record


def _column(path: list[str]) -> str:
    """The column that holds a field of a record."""
    match path[1:] if path[0] == "result" else path:
        case ["candidate", name, *_]:
            return "partition" if name == "partition" else "knobs"
        case ["measurement", "metrics" | "simulated" as name, *_]:
            return name
        case [name, *_]:
            return name
    raise AssertionError(path)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


_DECODER = json.JSONDecoder(parse_constant=_refuse)  # made once: json.loads makes one for every cell
