"""One writing process per database, which names itself to the others.

Decision: the lock is the operating system's, or the server's, never a row or a file's existence: it ends with its
holder however that dies, so there is no stale lock to judge. For SQLite it is a POSIX record lock on `FILE.lock` rather
than flock(), because a forked worker would inherit the latter and keep it after the search is gone. The file's content
only names the holder; it stays behind empty, as removing a lock file is a race.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, Engine, text

from partitune.errors import StoreError
from partitune.spec.own_file import mode_of, own_file
from partitune.store.connection import explained
from partitune.store.location import Location

#: Any fixed number will do; PostgreSQL keeps advisory locks per database.
_ADVISORY_KEY = 7_274_788_431

#: struct flock of fcntl(2) on Linux: type, whence, start, length, pid.
_FLOCK = "hhqqi"

#: Record locks do not exclude their own process, and closing any descriptor of the file would drop ours.
#: The process is part of the key, as a fork inherits the set and not the locks.
_held_here: set[tuple[int, Path]] = set()


def lock_for_writing(location: Location, engine: Engine) -> Callable[[], None]:
    """Become the one writer of `location`; calling what is returned lets the next one in.

    Raises:
        StoreError: names who is the writer.
    """
    return _lock_server(engine, location.label) if location.path is None else _lock_file(location.path, location.label)


def holder_of(location: Location, engine: Engine) -> str:
    """Who is the writer of `location` now, in words; empty when nobody is. Takes no lock, not even for a moment."""
    if location.path is None:
        with explained(location.label), engine.connect() as connection:
            return _server_holder(connection) or ""
    path = location.path.with_name(location.path.name + ".lock")
    if (os.getpid(), path) in _held_here:
        return f"this process ({os.getpid()})"
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return ""  # no writer was ever there, or this is a copy that only can be read
    try:
        wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        blocking = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
        return "" if blocking[0] == fcntl.F_UNLCK else _holder(descriptor)
    finally:
        os.close(descriptor)


def _lock_file(database: Path, label: str) -> Callable[[], None]:
    """A record lock on the file `PATH.lock`, which is emptied when it is given up."""
    path = database.with_name(database.name + ".lock")
    if (os.getpid(), path) in _held_here:
        raise StoreError(_refusal(label, f"this process ({os.getpid()})"))
    try:
        descriptor = os.open(own_file(path, mode_of(database)), os.O_RDWR)
    except OSError as error:
        raise StoreError(_unlockable(label, path, error)) from error
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        held = isinstance(error, BlockingIOError | PermissionError)
        message = _refusal(label, _holder(descriptor)) if held else _unlockable(label, path, error)
        os.close(descriptor)
        raise StoreError(message) from error
    _held_here.add((os.getpid(), path))
    name = {"pid": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(name).encode(), 0)

    def release() -> None:
        os.ftruncate(descriptor, 0)
        os.close(descriptor)
        _held_here.discard((os.getpid(), path))

    return release


def _lock_server(engine: Engine, label: str) -> Callable[[], None]:
    """An advisory lock of the server, held by a connection of its own."""
    with explained(label):
        connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        if connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _ADVISORY_KEY}):

            def release() -> None:
                connection.invalidate()  # and the lock goes with it
                connection.close()

            return release
        holder = _server_holder(connection)
        connection.close()
    raise StoreError(_refusal(label, holder or "another process"))


def _server_holder(connection: Connection) -> str | None:
    holder = connection.execute(
        text(
            "SELECT application_name, client_addr, backend_start"
            " FROM pg_stat_activity JOIN pg_locks USING (pid)"
            " WHERE locktype = 'advisory' AND granted AND (classid::bigint << 32) | objid::bigint = :key"
        ),
        {"key": _ADVISORY_KEY},
    ).first()
    return None if holder is None else f"{holder[0]} from {holder[1] or 'the server'}, since {holder[2]}"


def _holder(descriptor: int) -> str:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"  # it has not written its name yet


def _unlockable(label: str, path: Path, error: OSError) -> str:
    return f"{label}: cannot lock {path}: {error.strerror}. Make it writable, or use another --db"


def _refusal(label: str, holder: str) -> str:
    return (
        f"{label}: {holder} is writing to it, and only one process may. "
        "Wait for it, end it (nothing stored is lost), or use another --db. Reading is possible meanwhile"
    )
