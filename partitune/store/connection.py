"""Open a database for one writer or for a reader, and say what its errors mean to the person who meets them.

Decision: SQLite runs in WAL mode, so that readers never wait for the search and a killed process loses nothing that was
committed; `synchronous=NORMAL` gives up only the last commits of a power cut, for a commit without fsync. We say BEGIN
ourselves, because the driver would leave schema changes outside the transaction: IMMEDIATE for a transaction that
writes (`for_writing`), which then cannot fail half-way for a lock. A reader can neither create nor change anything.

Everything leaves the store as a StoreError. SQLite's own result codes decide what it says, not message texts; each
class of code has one sentence that says what happened to the trials and what to do.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from partitune.errors import StoreError
from partitune.store.location import Location

#: How long a statement waits for a lock that another program holds on the file.
BUSY_TIMEOUT_S = 30.0
_WRITES = "partitune_writes"
#: Result code (or its prefix, https://sqlite.org/rescode.html) -> what it means and what to do.
_MEANING = {
    "SQLITE_NOTADB": "not an SQLite database. Give the results.db of a search, or another --db",
    "SQLITE_CORRUPT": "the database is damaged. Keep the file and save what is readable: "
    "sqlite3 FILE .recover | sqlite3 recovered.db",
    "SQLITE_BUSY": "locked by another program that writes to it. Close that program (a database browser, an Optuna "
    "worker), then resume",
    "SQLITE_LOCKED": "locked by another connection. Close the program that holds it, then resume",
    "SQLITE_FULL": "the disk is full. This trial was not stored, all earlier ones are. Free some space, then resume",
    "SQLITE_READONLY": "read-only. Make the file and its folder writable, or use another --db",
    "SQLITE_CANTOPEN": "cannot be opened. Check the rights of the file, of its folder, and of the -wal and -shm files "
    "beside it; a copy in a writable folder can always be read",
    "SQLITE_IOERR": "the disk reports an error or is full. All earlier trials are stored. Check the disk, then resume",
}


@contextmanager
def explained(database: str) -> Iterator[None]:
    """Turn what SQLAlchemy and sqlite3 raise inside the block into a StoreError about `database`."""
    try:
        yield
    except DBAPIError as error:
        raise StoreError(_message(database, error.orig)) from error
    except UnicodeDecodeError as error:  # raised while sqlite3 hands over a text, be it a cell or a name of the schema
        raise StoreError(f"{database}: {_MEANING['SQLITE_CORRUPT']} ({error})") from error
    except sqlite3.Error as error:  # raised by a connect listener, which SQLAlchemy does not wrap
        raise StoreError(_message(database, error)) from error
    except SQLAlchemyError as error:
        raise StoreError(f"{database}: {error}") from error


def _message(database: str, error: BaseException | None) -> str:
    code = getattr(error, "sqlite_errorname", "")
    lines = dict.fromkeys(" ".join(line.split()) for line in str(error).splitlines())  # psycopg repeats its hints
    text = " ".join(lines)
    for prefix, meaning in _MEANING.items():
        if code.startswith(prefix):
            return f"{database}: {meaning} ({text})"
    return f"{database}: the database cannot be used: {text}"


def _no_room(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_FULL", "SQLITE_IOERR"))


def connect(location: Location, *, read_only: bool) -> Engine:
    """An engine for `location`; nothing is opened before its first use. Raises StoreError without a database driver."""
    if location.path is not None:
        return _sqlite(location.path, read_only=read_only)
    try:
        return create_engine(location.url, connect_args={"application_name": f"partitune {os.getpid()}"})
    except ModuleNotFoundError as error:
        raise StoreError(
            f"{location.label}: needs the database driver {error.name}: pip install 'psycopg[binary]'"
        ) from error


def for_writing(engine: Engine) -> Engine:
    """The same engine, the same connections, for transactions that write."""
    return engine.execution_options(**{_WRITES: True})


def _sqlite(path: Path, *, read_only: bool) -> Engine:
    uri = base = f"file:{quote(os.fsencode(path))}"
    if not read_only:
        uri += "?mode=rwc"
    elif os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        uri += "?mode=rw"  # with `query_only` below: unlike mode=ro, the last one out removes the -wal and -shm files
    else:
        # Reading needs a -shm file. Where none can be made nobody can write either, unless a -wal file says otherwise.
        uri += "?mode=ro" if Path(f"{path}-wal").exists() else "?mode=ro&immutable=1"

    def connected(uri: str) -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)

    def open_file() -> sqlite3.Connection:
        connection = connected(uri)
        if read_only:
            try:
                connection.execute("PRAGMA schema_version")
            except sqlite3.OperationalError as error:
                # On a full disk there is no room for a -shm file. As above: then nobody writes, unless a -wal says so.
                wal = Path(f"{path}-wal")
                if not _no_room(error) or (wal.exists() and wal.stat().st_size):
                    raise
                connection.close()
                connection = connected(f"{base}?mode=ro&immutable=1")
        return connection

    engine = create_engine("sqlite://", creator=open_file, poolclass=QueuePool)

    @event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, entry: ConnectionPoolEntry) -> None:  # noqa: ARG001 - SQLAlchemy's signature
        connection.execute("PRAGMA foreign_keys = ON")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITES) else "BEGIN")

    return engine
