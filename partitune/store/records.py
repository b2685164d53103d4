"""What the store hands out and takes in: typed records on one side, rows on the other.

Decision: a trial that was read back is the same `Result` that was recorded, equal in every field, so that replaying a
study into a new sampler teaches it exactly what it knew. What cannot be read back unchanged is refused on the way in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError
from sqlalchemy import Row

from partitune.analysis.final import Phase
from partitune.analysis.trial import Repeat, Screened, Trial
from partitune.candidate import Candidate, Measurement, Outcome, Result, StageReport, flaw_in
from partitune.partition import format_partition
from partitune.store.cells import Cells, to_json
from partitune.store.schema import StageRow, StudyRow, TrialRow

_MAX_DURATION_S = 1e9  # 31 years: beyond it a start time cannot be computed
#: Fields of a Measurement that have a column or a table of their own; the rest share one JSON cell.
_OWN_COLUMNS = frozenset({"metrics", "stages", "simulated"})
_REST = tuple(field.name for field in fields(Measurement) if field.name not in _OWN_COLUMNS)
_STAGE_FIELDS = tuple(field.name for field in fields(StageReport))


class StudyState(StrEnum):
    """How far a study is. Closed set."""

    RUNNING = "running"  # a process works on it
    FINISHED = "finished"  # its budget is spent or its space is exhausted
    INTERRUPTED = "interrupted"  # stopped or killed; can be resumed


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """One stored study: what was asked, with which versions, and how far it is."""

    name: str
    created_at: datetime
    finished_at: datetime | None
    state: StudyState
    spec: Mapping[str, Any]  # the resolved search space
    spec_digest: str
    partitune_version: str
    engine: str
    engine_version: str
    runner: str
    random_seed: int
    revision: int  # of the spec; trials of another one are set aside


#: What is read from rows. The fields of these dataclasses are the one description of a row.
_TYPES: dict[type, TypeAdapter[Any]] = {
    kind: TypeAdapter(
        list[kind],  # type: ignore[valid-type]  # mypy wants it written out; of a list, because only that takes a config
        config=ConfigDict(strict=True, allow_inf_nan=False, revalidate_instances="always"),
    )
    for kind in (StageReport, Trial, Screened, Repeat, StudyRecord)
}
#: What a column holds where the type of one value does not say it.
_HOLDS = {
    "kinds": "a JSON object of integers",
    "metrics": "a JSON object of numbers",
    "constraints": "a JSON object of numbers",
    "measurement": "the rest of a measurement (regime, kv_blocks, ...)",
    "phase": f"one of {', '.join(get_args(Phase))}",
}
_NAMED = {
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
}

Record = TypeVar("Record")


def spec_digest(spec: Mapping[str, Any]) -> str:
    """12 hex digits of a resolved spec; equal specs have equal digests in any process."""
    return hashlib.sha256(to_json(spec).encode()).hexdigest()[:12]


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


def to_rows(study_id: int, trial: Trial) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The columns of a finished trial, and of its stages. Its result has no flaw."""
    measurement = trial.result.measurement
    columns = {
        "study_id": study_id,
        "number": trial.number,
        "revision": trial.revision,
        **result_columns(trial.result),
        "plan_digest": trial.plan_digest,
        "origin": trial.origin,
        "started_at": trial.started_at.isoformat(),
        "finished_at": trial.finished_at.isoformat(),
    }
    return columns, [
        {name: getattr(stage, name) for name in _STAGE_FIELDS} | {"kinds": to_json(dict(stage.kinds))}
        for stage in (() if measurement is None else measurement.stages)
    ]


def result_columns(result: Result) -> dict[str, Any]:
    """The columns of a result without its stages. `result` has no flaw."""
    measurement = result.measurement
    columns: dict[str, Any] = {
        "partition": format_partition(result.candidate.partition),
        "knobs": to_json(result.candidate.settings),
        "digest": result.candidate.digest,
        "outcome": result.outcome.value,
        "reason": printable(result.reason),
        "simulated": None,
        "metrics": None,
        "measurement": None,
        "constraints": to_json(dict(result.constraints)),
        "duration_s": float(result.duration_s),
    }
    if measurement is None:
        return columns
    rest = {name: getattr(measurement, name) for name in _REST}
    return {
        **columns,
        "simulated": measurement.simulated,
        "metrics": to_json(dict(measurement.metrics)),
        "measurement": to_json({**rest, "constraints": dict(measurement.constraints)}),
    }


def printable(reason: str) -> str:
    """`reason` as any database takes it: NUL and bytes that are no text, as engine logs hold them, become escapes."""
    return reason.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def checked(record: Record, row: object, cells: Cells) -> Record:
    """`record`, when every value that was taken for it from the columns of `row` has its type. Raises StoreError."""
    try:
        _TYPES[type(record)].validate_python([record])
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        column = _column([str(name) for name in fault["loc"][1:]])
        cells.reject(column, getattr(row, column), _HOLDS.get(column) or _NAMED.get(fault["type"], fault["msg"]))
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


def trial_of(row: Row[Any], stages: Sequence[Row[Any]], study: str, database: str) -> Trial:
    """The trial of a row of `TrialRow` and the rows of `StageRow` it has. Raises StoreError for a damaged cell."""
    cells = Cells(database, TrialRow.__tablename__, f"trial {row.number} of study {study}")
    reports = tuple(_stage(stage, row.number, study, database) for stage in stages)
    cells.text("plan_digest", row.plan_digest)
    cells.time("started_at", row.started_at)
    finished_at = cells.time("finished_at", row.finished_at)
    trial = Trial(study, row.number, row.origin, finished_at, result_of(row, cells, reports), row.revision)
    return checked(trial, row, cells)


def result_of(row: Row[Any], cells: Cells, stages: tuple[StageReport, ...] = ()) -> Result:
    """The result in the columns that `result_columns` makes, its values not yet `checked`. Raises StoreError."""
    outcome = cells.one_of("outcome", row.outcome, Outcome)
    measured = row.metrics is not None or outcome is Outcome.OK
    return Result(
        candidate=Candidate.of_settings(cells.partition("partition", row.partition), cells.mapping("knobs", row.knobs)),
        outcome=outcome,
        reason=row.reason,
        measurement=_measurement(row, stages, cells) if measured else None,
        constraints=cells.mapping("constraints", row.constraints),
        duration_s=row.duration_s,
    )


def _measurement(row: Row[Any], stages: tuple[StageReport, ...], cells: Cells) -> Measurement:
    metrics = cells.mapping("metrics", row.metrics)
    rest = cells.mapping("measurement", row.measurement)
    try:
        return Measurement(metrics=metrics, stages=stages, simulated=row.simulated, **rest)
    except TypeError:
        cells.reject("measurement", row.measurement, "the rest of a measurement (regime, kv_blocks, ...)")


def _stage(row: Row[Any], trial: int, study: str, database: str) -> StageReport:
    cells = Cells(database, StageRow.__tablename__, f"stage {row.stage} of trial {trial} of study {study}")
    _, stage, layers, kinds, *figures = tuple(row)
    return checked(StageReport(stage, layers, cells.mapping("kinds", kinds), *figures), row, cells)


def study_record(row: StudyRow, database: str) -> StudyRecord:
    """The study of a stored row. Raises StoreError for a damaged cell."""
    cells = Cells(database, StudyRow.__tablename__, f"study {row.name}")
    columns = {field.name: getattr(row, field.name) for field in fields(StudyRecord)} | {
        "created_at": cells.time("created_at", row.created_at),
        "finished_at": None if row.finished_at is None else cells.time("finished_at", row.finished_at),
        "state": cells.one_of("state", row.state, StudyState),
        "spec": cells.mapping("spec", row.spec),
    }
    return checked(StudyRecord(**columns), row, cells)
