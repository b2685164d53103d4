"""A database that is open: for one writing process, or to read; its sessions, its lock, its end.

Decision: opening for writing does everything that has to be done once (lock, schema, studies a killed process left
running), so that whoever holds one need not ask. Every session runs under `explained`: what the database raises leaves
as a StoreError.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine, Row, event, select, update

from partitune.errors import StoreError, nearest
from partitune.spec.own_file import PRIVATE, own_file
from partitune.store import schema
from partitune.store.cells import integer
from partitune.store.connection import connect, explained, for_writing
from partitune.store.location import Location, check_readable, check_writable, locate
from partitune.store.lost_file import NOT_OPEN, keep
from partitune.store.migrations import check, migrate
from partitune.store.records import StudyState
from partitune.store.writer import FileKey, WriterLock, file_key, holder_of, lock_for_writing


class Database:
    """An open database of partitune. A context manager; every error is a StoreError that names it."""

    def __init__(self, location: Location, engine: Engine) -> None:
        """Use `open`."""
        self.label = location.label
        self._location = location
        self.engine = engine
        self._for_writing = for_writing(engine)
        self._lock: WriterLock | None = None  # None: opened for reading
        self._file: FileKey | None = None  # that a writer writes to; None on a server
        self._log: FileKey | None = None  # its write-ahead log; None until a write of this process has made one
        self._connections = 0
        self._lost = ""  # what became of the file, said already

    @classmethod
    def open(cls, where: str | Path, *, read_only: bool = False, mode: int = PRIVATE) -> Self:
        """Open an SQLite file (a path or `sqlite:///` URL) or a `postgresql://` URL.

        For writing, the file is created with `mode` if it is missing, an older schema is brought up to date, this
        process becomes the only writer, and studies that a killed one left running become interrupted. For reading,
        nothing is created or changed, and a search may write meanwhile.
        """
        location = locate(where)
        label = location.label
        if location.path is not None:
            (check_readable if read_only else check_writable)(location.path, label)
            if not read_only:
                own_file(location.path, mode)  # SQLite gives the files beside it the same
        engine = connect(location, read_only=read_only)
        store = cls(location, engine)
        event.listen(engine, "connect", store._connected)
        event.listen(engine, "close", store._disconnected)
        try:
            if not read_only:
                store._lock = lock_for_writing(location, engine)
            with explained(label), (engine if read_only else for_writing(engine)).begin() as connection:
                if read_only:
                    check(connection, label)
                else:
                    migrate(connection, label)
                    left = update(schema.studies).where(schema.studies.c.state == StudyState.RUNNING)
                    connection.execute(left.values(state=StudyState.INTERRUPTED.value))
            if store._lock is not None:
                store._file, store._log = store._lock.file, store._log_now()
        except StoreError:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close every connection and let the next writer in."""
        try:
            with explained(self.label):
                self.engine.dispose()
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with explained(self.label), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction that writes."""
        if self._lock is None:
            raise StoreError(f"{self.label}: opened for reading; nothing can be recorded")
        self._check_file()
        with explained(self.label), self._for_writing.begin() as connection:
            yield connection
        self._log = self._log or self._log_now()

    def _log_now(self) -> FileKey | None:
        """Which file stands where the write-ahead log is."""
        path = self._location.path
        return None if path is None else file_key(path.with_name(f"{path.name}-wal"))

    def _connected(self, *_: object) -> None:
        self._connections += 1

    def _disconnected(self, *_: object) -> None:
        """A signal makes SQLAlchemy close a connection, SQLite removes its log with the last, a write makes another."""
        self._connections -= 1
        self._log = None

    def _check_file(self) -> None:
        """Raise StoreError once somebody took the file away: SQLite would go on writing to what has no name."""
        path = self._location.path
        if path is None:
            return
        is_gone = file_key(path) != self._file
        if not self._lost and (is_gone or self._log not in (None, self._log_now())):
            what = "the file" if is_gone else f"{path.name}-wal beside it"
            kept = keep(self.engine, path) if self._connections else NOT_OPEN  # a new connection opens another file
            self._lost = f"{self.label}: {what} was removed or replaced while this process wrote. {kept}"
        if self._lost:
            raise StoreError(self._lost)

    def writer(self) -> str:
        """Who writes to the database now, in words; empty when nobody does."""
        return holder_of(self._location, self.engine)

    def compact(self) -> str:
        """Give the free pages of an SQLite file back to the disk; a server does that by itself.

        Returns:
            Why not; empty where there is nothing to give back, or it was done.
        """
        path = self._location.path
        if path is None:
            return ""
        with explained(self.label), closing(self.engine.raw_connection()) as connection:
            cursor = connection.cursor()
            if not cursor.execute("PRAGMA freelist_count").fetchone()[0]:
                return ""
            needed, free = 2 * path.stat().st_size, shutil.disk_usage(path.parent).free  # sqlite.org/lang_vacuum.html
            if free < needed:
                return (
                    f"{self.label}: compacting takes {needed:,} bytes of free disk for a while, and {free:,} are left"
                )
            cursor.execute("VACUUM")
        return ""

    # Studies by name

    def _names(self, connection: Connection) -> list[str]:
        return list(connection.scalars(select(schema.studies.c.name).order_by(schema.studies.c.id)))

    def _row(self, connection: Connection, name: str) -> Row[Any]:
        row = connection.execute(select(schema.studies).where(schema.studies.c.name == name)).first()
        if row is None:
            names = self._names(connection)
            near = nearest(name, names, most=3) or names[-3:]
            known = f"Did you mean {', '.join(near)}?" if near else "The database holds no study yet"
            if len(names) > len(near):
                last = names[-10:]
                known += f" It holds {', '.join(last)}" + (f" and {len(names) - 10} older ones" if names[10:] else "")
            raise StoreError(f"{self.label}: no study {name}. {known}")
        return row

    def _revision(self, row: Row[Any]) -> int:
        """Which revision of its spec a study has now."""
        return integer((self.label, schema.studies.name, f"study {row.name}"), "revision", row.revision)
