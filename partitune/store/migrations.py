"""Bring a database to the current schema, step by step, or refuse one from the future.

Decision: ordered functions and a table of their names (the pattern of simonw/llm) instead of Alembic: SQLite files live
on users' disks and only ever move forward. A fresh database is created from `schema.py` and every step is marked as
done; an older one runs the steps it lacks. A test holds both ways to the same schema, starting from the recorded dump
of the first one. Whoever changes `schema.py` appends a step here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import sqlalchemy as sa

from partitune.errors import StoreError
from partitune.store import schema
from partitune.version import __version__


class OlderSchema(StoreError):
    """A database that opening for writing would bring up to date."""


def m001_initial(connection: sa.Connection) -> None:
    """Studies, trials and stages, as first released."""


def m002_revisions(connection: sa.Connection) -> None:
    """Studies whose spec changes: every trial says which revision of it was in force."""
    for table in ("studies", "trials"):
        connection.execute(sa.text(f"ALTER TABLE partitune_{table} ADD COLUMN revision INTEGER DEFAULT 0 NOT NULL"))
    connection.execute(
        sa.text(
            "CREATE TABLE partitune_revisions (study_id INTEGER NOT NULL, number INTEGER NOT NULL,"
            " spec TEXT NOT NULL, runner TEXT NOT NULL, PRIMARY KEY (study_id, number),"
            " FOREIGN KEY (study_id) REFERENCES partitune_studies (id))"
        )
    )


def m003_screened_and_repeats(connection: sa.Connection) -> None:
    """What was simulated before a launch, and the runs of a final."""
    tables = sa.MetaData()
    sa.Table("partitune_studies", tables, sa.Column("id", sa.Integer, primary_key=True))

    def create(name: str, key: tuple[str, ...], **own: type[sa.Integer | sa.Text]) -> None:
        texts = ("partition", "knobs", "digest", "outcome", "reason", "constraints")
        sa.Table(
            name,
            tables,
            sa.Column("id", sa.Integer, primary_key=True),
            sa.Column("study_id", sa.ForeignKey("partitune_studies.id"), nullable=False),
            sa.Column("revision", sa.Integer, nullable=False),
            *(sa.Column(column, kind, nullable=False) for column, kind in own.items()),
            *(sa.Column(column, sa.Text, nullable=False) for column in texts),
            sa.Column("simulated", sa.Boolean),
            *(sa.Column(column, sa.Text) for column in ("metrics", "measurement")),
            sa.Column("duration_s", sa.Double, nullable=False),
            sa.UniqueConstraint("study_id", "revision", *key),
        ).create(connection)

    key = ("trial", "phase", "repeat")
    create("partitune_screened", ("digest",), origin=sa.Text)
    create("partitune_repeats", key, trial=sa.Integer, phase=sa.Text, repeat=sa.Integer, finished_at=sa.Text)


def m004_caveats(connection: sa.Connection) -> None:
    """Studies that say what their simulated figures leave out."""
    connection.execute(sa.text("ALTER TABLE partitune_studies ADD COLUMN caveats TEXT"))


#: Oldest first. Never reordered, never renamed.
MIGRATIONS: list[Callable[[sa.Connection], None]] = [
    m001_initial,
    m002_revisions,
    m003_screened_and_repeats,
    m004_caveats,
]


def migrate(connection: sa.Connection, database: str) -> None:
    """Bring `database` to the current schema in the transaction of `connection`. Raises StoreError if it is newer."""
    missing = _missing(connection, database)
    if missing == MIGRATIONS:
        schema.METADATA.create_all(connection)
    for step in missing:
        if missing != MIGRATIONS:
            step(connection)
        now = datetime.now(UTC).isoformat()
        connection.execute(sa.insert(schema.migrations).values(name=step.__name__, applied_at=now))


def check(connection: sa.Connection, database: str) -> None:
    """Raise StoreError unless `database` has the current schema: a reader may not change it."""
    missing = _missing(connection, database)
    if missing == MIGRATIONS:
        raise StoreError(
            f"{database}: not a partitune database: it has no partitune tables. Give the results.db of a search"
        )
    if missing:
        raise OlderSchema(
            f"{database}: written by an older partitune; it lacks {', '.join(step.__name__ for step in missing)}. "
            "`partitune gc` or the next search into it brings it up to date; to leave it as it is, do that with a copy"
        )


def _missing(connection: sa.Connection, database: str) -> list[Callable[[sa.Connection], None]]:
    """The steps that a database has not been through: all of them where it is none of ours yet."""
    ours = sa.inspect(connection).has_table(schema.migrations.name)
    applied = set(connection.scalars(sa.select(schema.migrations.c.name)) if ours else ())
    if unknown := sorted(applied - {step.__name__ for step in MIGRATIONS}):
        raise StoreError(
            f"{database}: written by a newer partitune (schema step {unknown[-1]}), this is {__version__}. "
            "Upgrade partitune, or use another --db"
        )
    return [step for step in MIGRATIONS if step.__name__ not in applied]
