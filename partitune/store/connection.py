"""Open a database for one writer or for a reader.

Decision: SQLite runs in WAL mode, so that readers never wait for the search and a killed process loses nothing that was
committed; `synchronous=NORMAL` gives up only the last commits of a power cut, for a commit without fsync. We say BEGIN
ourselves, because the driver would leave schema changes outside the transaction: IMMEDIATE for a transaction that
writes (`for_writing`), which then cannot fail half-way for a lock. A reader can neither create nor change anything.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from partitune.errors import StoreError
from partitune.store.location import Location

#: How long a statement waits for a lock that another program holds on the file.
BUSY_TIMEOUT_S = 30.0
_WRITES = "partitune_writes"


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
    uri = f"file:{quote(os.fsencode(path))}"
    if not read_only:
        uri += "?mode=rwc"
    elif os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        uri += "?mode=rw"  # with `query_only` below: unlike mode=ro, the last one out removes the -wal and -shm files
    else:
        # Reading needs a -shm file. Where none can be made nobody can write either, unless a -wal file says otherwise.
        uri += "?mode=ro" if Path(f"{path}-wal").exists() else "?mode=ro&immutable=1"

    def open_file() -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)

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
