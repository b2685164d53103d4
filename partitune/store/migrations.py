"""Bring a database to the current schema, step by step, or refuse one from the future.

Decision: ordered functions and a table of their names (the pattern of simonw/llm) instead of Alembic: SQLite files live
on users' disks and only ever move forward. A fresh database is created from `schema.py` and every step is marked as
done; an older one runs the steps it lacks. A test holds both ways to the same schema, starting from the recorded dump
of the first one. Whoever changes `schema.py` appends a step here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import Connection, insert, inspect, select

from partitune import __version__
from partitune.errors import StoreError
from partitune.store.schema import Base, MigrationRow


def m001_initial(connection: Connection) -> None:
    """Studies, trials and stages, as first released."""


#: Oldest first. Never reordered, never renamed.
MIGRATIONS: list[Callable[[Connection], None]] = [m001_initial]


def migrate(connection: Connection, database: str) -> None:
    """Bring `database` to the current schema in the transaction of `connection`. Raises StoreError if it is newer."""
    applied = _applied(connection, database)
    missing = [step for step in MIGRATIONS if step.__name__ not in applied]
    if not applied:
        Base.metadata.create_all(connection)
    else:
        for step in missing:
            step(connection)
    for step in missing:
        now = datetime.now(UTC).isoformat()
        connection.execute(insert(MigrationRow).values(name=step.__name__, applied_at=now))


def check(connection: Connection, database: str) -> None:
    """Raise StoreError unless `database` has the current schema: a reader may not change it."""
    applied = _applied(connection, database)
    if not applied:
        raise StoreError(
            f"{database}: not a partitune database: it has no partitune tables. Give the results.db of a search"
        )
    if missing := [step.__name__ for step in MIGRATIONS if step.__name__ not in applied]:
        raise StoreError(
            f"{database}: written by an older partitune; it lacks {', '.join(missing)}. "
            "The next search into it brings it up to date; to only read it, do that with a copy"
        )


def _applied(connection: Connection, database: str) -> set[str]:
    if not inspect(connection).has_table(MigrationRow.__tablename__):
        return set()
    applied = set(connection.scalars(select(MigrationRow.name)))
    if unknown := sorted(applied - {step.__name__ for step in MIGRATIONS}):
        raise StoreError(
            f"{database}: written by a newer partitune (schema step {unknown[-1]}), this is {__version__}. "
            "Upgrade partitune, or use another --db"
        )
    return applied
