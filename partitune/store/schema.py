"""The tables of a results database, as typed rows.

Decision: real columns for what a person filters or sorts by, JSON text for the rest, so that a new metric needs no
migration and `sqlite3 results.db` stays readable. JSON is kept as text and taken apart in `records.py`, because a
damaged cell must be reported with its table, row and column; a decoding column type would raise in the middle of a
fetch. Times are ISO 8601 in UTC for the same reason. Every name starts with `partitune_`: Optuna may keep its own
tables in the file.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Double, ForeignKey, Index, Text, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Root of the rows; its metadata is the current schema."""

    type_annotation_map = {str: Text, float: Double}  # noqa: RUF012 - SQLAlchemy reads it as a plain class attribute


class MigrationRow(Base):
    """One schema step that this database has been through."""

    __tablename__ = "partitune_migrations"

    name: Mapped[str] = mapped_column(primary_key=True)
    applied_at: Mapped[str]


class StudyRow(Base):
    """One search: what was asked, with which versions, and how it ended."""

    __tablename__ = "partitune_studies"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[str]
    finished_at: Mapped[str | None]
    state: Mapped[str]
    spec: Mapped[str]  # JSON: the resolved search space, enough to explain a result a year later
    spec_digest: Mapped[str]
    partitune_version: Mapped[str]
    engine: Mapped[str]
    engine_version: Mapped[str]
    runner: Mapped[str]
    random_seed: Mapped[int] = mapped_column(BigInteger)
    revision: Mapped[int] = mapped_column(server_default=text("0"))  # of the spec above


class RevisionRow(Base):
    """A spec that a study had before: what its trials of that revision mean."""

    __tablename__ = "partitune_revisions"

    study_id: Mapped[int] = mapped_column(ForeignKey("partitune_studies.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    spec: Mapped[str]  # JSON
    runner: Mapped[str]


class StageRow(Base):
    """One stage of one measured trial: the fields of `partitune.candidate.StageReport`."""

    __tablename__ = "partitune_stages"

    trial_id: Mapped[int] = mapped_column(ForeignKey("partitune_trials.id"), primary_key=True)
    stage: Mapped[int] = mapped_column(primary_key=True)
    layers: Mapped[int]
    kinds: Mapped[str]  # JSON: layer kind -> count
    compute_s: Mapped[float]
    transfer_s: Mapped[float]
    wait_s: Mapped[float]
    busy_fraction: Mapped[float]
    weights_bytes: Mapped[int] = mapped_column(BigInteger)
    free_bytes: Mapped[int] = mapped_column(BigInteger)
    kv_blocks: Mapped[int] = mapped_column(BigInteger)
    stranded_bytes: Mapped[int] = mapped_column(BigInteger)


class ResultColumns:
    """A candidate of a study and its result, but for the stages."""

    id: Mapped[int] = mapped_column(primary_key=True, sort_order=-2)
    study_id: Mapped[int] = mapped_column(ForeignKey("partitune_studies.id"), sort_order=-1)
    partition: Mapped[str]  # layers per stage: 11,11,12
    knobs: Mapped[str]  # JSON
    digest: Mapped[str]  # of partition and flags: `Candidate.digest`
    outcome: Mapped[str]
    reason: Mapped[str]
    simulated: Mapped[bool | None]  # None where nothing was measured, as the two below
    metrics: Mapped[str | None]  # JSON
    measurement: Mapped[str | None]  # JSON: what a Measurement holds beside metrics, stages and simulated
    constraints: Mapped[str]  # JSON
    duration_s: Mapped[float]


class TrialRow(ResultColumns, Base):
    """One finished trial. Never updated, never deleted."""

    __tablename__ = "partitune_trials"
    __table_args__ = (
        UniqueConstraint("study_id", "number"),
        Index("partitune_trials_by_digest", "study_id", "digest"),
        Index("partitune_trials_by_outcome", "study_id", "outcome"),
    )

    number: Mapped[int]
    revision: Mapped[int] = mapped_column(server_default=text("0"))  # of the spec it was measured under
    plan_digest: Mapped[str]  # of the partition alone
    origin: Mapped[str]
    started_at: Mapped[str]
    finished_at: Mapped[str]


class ScreenedRow(ResultColumns, Base):
    """A candidate as the simulator sees it, of a study that launches: in the order in which they were simulated."""

    __tablename__ = "partitune_screened"
    __table_args__ = (UniqueConstraint("study_id", "revision", "digest"),)

    revision: Mapped[int]
    origin: Mapped[str]


class RepeatRow(ResultColumns, Base):
    """A trial that was run again in the final of its study. Never updated, never deleted."""

    __tablename__ = "partitune_repeats"
    __table_args__ = (UniqueConstraint("study_id", "revision", "trial", "phase", "repeat"),)

    revision: Mapped[int]
    trial: Mapped[int]  # its number
    phase: Mapped[str]  # selection or verdict
    repeat: Mapped[int]  # the round of the selection, or the pair of the verdict
    finished_at: Mapped[str]
