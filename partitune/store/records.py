"""What the store hands out and takes in: typed records on one side, rows on the other.

Decision: a trial that was read back is the same `Result` that was recorded, equal in every field, so that replaying a
study into a new sampler teaches it exactly what it knew. What cannot be read back unchanged is refused on the way in.
Trials, screened candidates and repeats are written and read in one way, and their fields are the one description of a
row. All rows are checked at once: a check of its own for every row costs as much as everything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from functools import cache, cached_property
from itertools import repeat
from types import MappingProxyType
from typing import Any, Generic, NoReturn, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model
from sqlalchemy import Table

from partitune.analysis.final import Phase
from partitune.analysis.trial import Repeat, Screened, Trial
from partitune.candidate import Candidate, FlagValue, Measurement, Outcome, Result, StageReport, flaw_in
from partitune.store import schema
from partitune.store.cells import Reader, cell_of, json_object, one_of, partition, reject, storable, time, to_json

_MAX_DURATION_S = 1e9  # 31 years: beyond it a start time cannot be computed


class StudyState(StrEnum):
    """How far a study is. Closed set."""

    RUNNING = "running"  # a process works on it
    FINISHED = "finished"  # its budget is spent or its space is exhausted
    INTERRUPTED = "interrupted"  # stopped or killed; can be resumed


@dataclass(frozen=True, slots=True)
class StudyTerms:
    """What a study is about: what was asked, of which engine, where and from which seed."""

    name: str
    spec: Mapping[str, Any]  # the resolved search space
    engine: str
    engine_version: str
    runner: str
    random_seed: int
    caveats: Mapping[str, Any] | None  # what its simulated figures leave out; None: begun before this was stored


@dataclass(frozen=True, slots=True)
class StudyRecord(StudyTerms):
    """One stored study: its terms, with which version it was begun, and how far it is."""

    created_at: datetime
    finished_at: datetime | None
    state: StudyState
    spec_digest: str
    partitune_version: str
    revision: int  # of the spec; trials of another one are set aside


@dataclass(frozen=True, slots=True)
class Revision:
    """A spec that a study had before."""

    number: int
    spec: Mapping[str, Any]
    runner: str


Record = TypeVar("Record")
#: What a study holds: a candidate and how it ended.
Ended = Trial | Screened | Repeat
AnyEnded = TypeVar("AnyEnded", bound=Ended)
#: A row: its cells by column.
Cells = dict[str, Any]


_STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
#: The fields of a Measurement that share one JSON cell; the others have a column or a table of their own.
_REST = {
    name: kind for name, kind in get_type_hints(Measurement).items() if name not in ("metrics", "stages", "simulated")
}


@cache
def _result_columns() -> dict[str, Any]:
    """What the columns of a candidate and its result hold, and of its digests and times."""
    rest = create_model(  # type: ignore[call-overload]  # its fields are not written here
        "_Rest",
        __config__=_STRICT,
        **{name: (kind, {} if name == "constraints" else ...) for name, kind in _REST.items()},
    )
    return get_type_hints(Result) | {
        "partition": tuple[int, ...],
        "knobs": Mapping[str, FlagValue],
        "simulated": bool | None,
        "metrics": Mapping[str, float] | None,
        "measurement": rest | None,
        "plan_digest": str,
        "started_at": datetime,
    }


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Checks the values of a column, all rows at once. Made when it is used: all of them take a tenth of a second."""
    return TypeAdapter(list[kind], config=_STRICT)


#: How texts are taken apart, whatever table they stand in.
_READERS: dict[str, Reader] = {
    "partition": partition,
    "outcome": one_of(Outcome),
    "state": one_of(StudyState),
    **dict.fromkeys(("knobs", "metrics", "measurement", "constraints", "kinds", "spec", "caveats"), json_object),
    **dict.fromkeys(("created_at", "started_at", "finished_at"), time),
}
#: What a measurement does not go without, and what these columns hold.
_NEEDED = {"metrics": "a text", "measurement": "a text", "simulated": "true or false"}
#: What a column holds; where its name is not here, by the fault that was found.
_ALLOWED = {
    "kinds": "a JSON object of integers",
    "metrics": "a JSON object of numbers",
    "constraints": "a JSON object of numbers",
    "measurement": "the rest of a measurement (regime, kv_blocks, ...)",
    "phase": f"one of {', '.join(get_args(Phase))}",
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
}


class RecordKind(Generic[Record]):
    """How one kind of record is stored."""

    def __init__(self, record: type[Record], table: Table, label: str, *key: str, order: str = "id") -> None:
        """Of a record and its table.

        Args:
            record: a dataclass; fields that have no column are the result's and the study's name.
            table: where they are kept.
            label: what messages call a row, its columns and `row`, its place from 1, in braces.
            key: columns that it is known by within its study.
            order: the column in whose order records are read.
        """
        self.record, self.table, self.label, self.key = record, table, label, key
        self.order = table.c[order]
        self.fields = tuple(get_type_hints(record))

    @cached_property
    def columns(self) -> dict[str, tuple[Reader | None, Any]]:
        """Of every column that is read: how its text is taken apart, and what it holds."""
        types = get_type_hints(self.record)
        types = (_result_columns() if "result" in types else {}) | types
        return {name: (_READERS.get(name), types[name]) for name in types if name in self.table.c}


STUDIES = RecordKind(StudyRecord, schema.studies, "study {name}", "name")
REVISIONS = RecordKind(Revision, schema.revisions, "revision {number} of study {study}", "number", order="number")
TRIALS = RecordKind(Trial, schema.trials, "trial {number} of study {study}", "number", order="number")
SCREENED = RecordKind(Screened, schema.screened, "simulated candidate {row} of study {study}", "revision", "digest")
REPEATS = RecordKind(Repeat, schema.repeats, "repeat {row} of study {study}", "revision", "trial", "phase", "repeat")
STAGES = RecordKind(
    StageReport, schema.stages, "stage {stage} of trial {trial} of study {study}", "stage", order="stage"
)
KINDS: dict[type[Ended], RecordKind[Any]] = {kind.record: kind for kind in (TRIALS, SCREENED, REPEATS)}


def flaw_of(result: Result) -> str | None:
    """Why `result` cannot be stored and read back unchanged, None when it can."""
    measurement = result.measurement
    if (result.outcome is Outcome.OK) != (result.reason == ""):
        return f"outcome is {result.outcome} and reason is {result.reason!r}; exactly ok has none"
    if result.outcome is Outcome.OK and measurement is None:
        return "outcome is ok without a measurement"
    if not result.candidate.partition or min(result.candidate.partition) < 0:
        return f"the partition is {list(result.candidate.partition)}"
    if measurement is not None and len({stage.stage for stage in measurement.stages}) != len(measurement.stages):
        return "measurement.stages names a stage twice"
    if not 0 <= result.duration_s <= _MAX_DURATION_S:
        return f"duration_s is {result.duration_s}"
    return (
        flaw_in(result.candidate, "candidate")
        or flaw_in(result.constraints, "constraints")
        or flaw_in(measurement, "measurement")
    )


def spec_digest(spec: Mapping[str, Any]) -> str:
    """12 hex digits of a resolved spec: whether somebody changed it since it was stored."""
    return hashlib.sha256(to_json(spec).encode()).hexdigest()[:12]


def study_columns(terms: StudyTerms) -> Cells:
    """The columns of a study that begins, or goes on, under these terms."""
    columns = {part.name: cell_of(getattr(terms, part.name)) for part in fields(StudyTerms)}
    return {**columns, "spec_digest": spec_digest(terms.spec), "state": StudyState.RUNNING.value, "finished_at": None}


def as_stored(record: AnyEnded) -> AnyEnded:
    """The record that will be read back: its reason is a text, and only trials have stages."""
    result = replace(record.result, reason=storable(record.result.reason))
    if not isinstance(record, Trial) and result.measurement is not None:
        result = replace(result, measurement=replace(result.measurement, stages=()))
    return replace(record, result=replace(result, repeat=record.run.load if isinstance(record, Repeat) else 0))


def columns_of(record: Ended) -> Cells:
    """The columns of a record but for its study, and without its stages. Its result has no flaw."""
    result, measurement = record.result, record.result.measurement
    columns = {
        "partition": result.candidate.partition_text,
        "knobs": to_json(result.candidate.settings),
        "digest": result.candidate.digest,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "simulated": None if measurement is None else measurement.simulated,
        "metrics": None if measurement is None else to_json(measurement.metrics),
        "measurement": None if measurement is None else to_json({name: getattr(measurement, name) for name in _REST}),
        "constraints": to_json(result.constraints),
        "duration_s": float(result.duration_s),
    }
    own = KINDS[type(record)].columns.keys() - columns.keys()
    return columns | {name: cell_of(getattr(record, name)) for name in own}


def stage_columns(record: Ended) -> list[Cells]:
    """The columns of every stage of a record but for its trial."""
    stages = () if record.result.measurement is None else record.result.measurement.stages
    return [{name: cell_of(getattr(stage, name)) for name in STAGES.fields} for stage in stages]


def read(
    kind: RecordKind[Record],
    study: str,
    columns: Mapping[str, Sequence[Any]],
    database: str,
    stages: Mapping[int, Sequence[StageReport]] = MappingProxyType({}),
) -> list[Record]:
    """The records in some rows.

    Args:
        kind: of the records.
        study: whose they are.
        columns: the cells of every column of the kind's table, row by row.
        database: as messages call it.
        stages: those of trials, by the number of the trial.

    Raises:
        StoreError: a damaged cell.
    """

    def refuse(index: int, column: str, allowed: str) -> NoReturn:
        row = kind.label.format(**{name: cells[index] for name, cells in columns.items()}, row=index + 1, study=study)
        reject((database, kind.table.name, row), column, columns[column][index], allowed)

    values: dict[str, Any] = {}
    if not any(columns.values()):
        return []
    for column, (reader, allowed_in) in kind.columns.items():
        values[column] = list(columns[column])
        for index, cell in enumerate(columns[column]):
            if reader is None or cell is None:
                continue
            try:
                values[column][index] = reader(cell)
            except (TypeError, ValueError) as error:
                refuse(index, column, str(error) if isinstance(cell, str) else "a text")
        try:
            _adapter(allowed_in).validate_python(values[column])
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            index = int(fault["loc"][0])
            missing = reader and columns[column][index] is None
            allowed = _ALLOWED.get(column) or _ALLOWED.get(fault["type"], fault["msg"])
            refuse(index, column, "a text" if missing else allowed)
    if "outcome" in columns:
        values["study"], values["result"] = repeat(study), _results(values, stages, refuse)
    return [kind.record(*cells) for cells in zip(*(values[name] for name in kind.fields))]  # noqa: B905 - study is endless


def _results(
    values: Mapping[str, Sequence[Any]],
    stages: Mapping[int, Sequence[StageReport]],
    refuse: Callable[[int, str, str], NoReturn],
) -> Iterator[Result]:
    for index, outcome in enumerate(values["outcome"]):
        measurement = None
        if values["metrics"][index] is not None or outcome is Outcome.OK:
            for column, allowed in _NEEDED.items():
                if values[column][index] is None:
                    refuse(index, column, allowed)
            measurement = Measurement(
                metrics=values["metrics"][index],
                stages=tuple(stages.get(values["number"][index], ())) if stages else (),
                simulated=values["simulated"][index],
                **values["measurement"][index],
            )
        yield Result(
            Candidate.of_settings(values["partition"][index], values["knobs"][index]),
            outcome,
            values["reason"][index],
            measurement,
            values["constraints"][index],
            values["duration_s"][index],
        )
