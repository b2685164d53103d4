"""The tables of a results database.

Decision: real columns for what a person filters or sorts by, JSON text for the rest, so that a new metric needs no
migration and `sqlite3 results.db` stays readable. JSON is kept as text and taken apart in `records.py`, because a
damaged cell must be reported with its table, row and column; a decoding column type would raise in the middle of a
fetch. Times are ISO 8601 in UTC for the same reason. Every name starts with `partitune_`: Optuna may keep its own
tables in the file. Tables and not mapped classes: the mapper costs a fifth of a second of every command that reads.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

METADATA = MetaData()  # the current schema


def _required(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names]


def _optional(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind) for name in names]


def _key() -> Column[int]:
    return Column("id", Integer, primary_key=True)


def _of_study(**how: Any) -> Column[int]:
    return Column("study_id", ForeignKey("partitune_studies.id"), nullable=False, **how)


def _result() -> list[Column[Any]]:
    """A candidate and its result, but for the stages."""
    return [
        *_required(Text, "partition", "knobs"),  # layers per stage: 11,11,12; JSON
        *_required(Text, "digest"),  # of partition and flags: `Candidate.digest`
        *_required(Text, "outcome", "reason"),
        *_optional(Boolean, "simulated"),  # None where nothing was measured, as the two below
        *_optional(Text, "metrics", "measurement"),  # JSON; what a Measurement holds beside metrics, stages, simulated
        *_required(Text, "constraints"),  # JSON
        *_required(Double, "duration_s"),
    ]


#: One schema step that this database has been through.
migrations = Table(
    "partitune_migrations", METADATA, Column("name", Text, primary_key=True), *_required(Text, "applied_at")
)

#: One search: what was asked, with which versions, and how it ended.
studies = Table(
    "partitune_studies",
    METADATA,
    _key(),
    Column("name", Text, nullable=False, unique=True),
    *_required(Text, "created_at"),
    *_optional(Text, "finished_at"),
    *_required(Text, "state", "spec"),  # the resolved search space as JSON, enough to explain a result a year later
    *_required(Text, "spec_digest", "partitune_version", "engine", "engine_version", "runner"),
    *_required(BigInteger, "random_seed"),
    Column("revision", Integer, nullable=False, server_default=text("0")),  # of the spec above
    *_optional(Text, "caveats"),  # JSON of `partitune.candidate.Caveats`; None in studies begun before it was stored
)

#: A spec that a study had before: what its trials of that revision mean.
revisions = Table(
    "partitune_revisions",
    METADATA,
    _of_study(primary_key=True),
    Column("number", Integer, primary_key=True),
    *_required(Text, "spec", "runner"),
)

#: One finished trial. Never updated, never deleted.
trials = Table(
    "partitune_trials",
    METADATA,
    _key(),
    _of_study(),
    *_required(Integer, "number"),
    Column("revision", Integer, nullable=False, server_default=text("0")),  # of the spec it was measured under
    *_required(Text, "plan_digest", "origin", "started_at", "finished_at"),  # the first is of the partition alone
    *_result(),
    UniqueConstraint("study_id", "number"),
    Index("partitune_trials_by_digest", "study_id", "digest"),
    Index("partitune_trials_by_outcome", "study_id", "outcome"),
)

#: One stage of one measured trial: the fields of `partitune.candidate.StageReport`.
stages = Table(
    "partitune_stages",
    METADATA,
    Column("trial_id", ForeignKey("partitune_trials.id"), primary_key=True),
    Column("stage", Integer, primary_key=True),
    *_required(Integer, "layers"),
    *_required(Text, "kinds"),  # JSON: layer kind -> count
    *_required(Double, "compute_s", "transfer_s", "wait_s", "busy_fraction"),
    *_required(BigInteger, "weights_bytes", "free_bytes", "kv_blocks", "stranded_bytes"),
)

#: A candidate as the simulator sees it, of a study that launches: in the order in which they were simulated.
screened = Table(
    "partitune_screened",
    METADATA,
    _key(),
    _of_study(),
    *_required(Integer, "revision"),
    *_required(Text, "origin"),
    *_result(),
    UniqueConstraint("study_id", "revision", "digest"),
)

#: A trial that was run again in the final of its study. Never updated, never deleted.
repeats = Table(
    "partitune_repeats",
    METADATA,
    _key(),
    _of_study(),
    *_required(Integer, "revision", "trial"),
    *_required(Text, "phase"),  # selection or verdict
    *_required(Integer, "repeat"),  # the round of the selection, or the pair of the verdict
    *_required(Text, "finished_at"),
    *_result(),
    UniqueConstraint("study_id", "revision", "trial", "phase", "repeat"),
)
