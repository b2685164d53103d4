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
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine, text

from partitune.errors import StoreError
from partitune.store.faults import explained
from partitune.store.location import Location

#: Any fixed number will do; PostgreSQL keeps advisory locks per database.
_ADVISORY_KEY = 7_274_788_431

#: struct flock of fcntl(2) on Linux: type, whence, start, length, pid.
_FLOCK = "hhqqi"

#: Record locks do not exclude their own process, and closing any descriptor of the file would drop ours.
#: The process is part of the key, as a fork inherits the set and not the locks.
_held_here: set[tuple[int, Path]] = set()


class WriterLock(Protocol):
    """The right to write to a database, held until it is released."""

    def release(self) -> None:
        """Let the next writer in."""
        ...


def lock_for_writing(location: Location, engine: Engine) -> WriterLock:
    """Become the one writer of `location`, or raise a StoreError that names who is."""
    if location.path is not None:
        return FileLock(location.path, location.label)
    return ServerLock(engine, location.label)


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


class FileLock:
    """A record lock on the file `PATH.lock`."""

    def __init__(self, path: Path, label: str) -> None:
        self._path = path.with_name(path.name + ".lock")
        if (os.getpid(), self._path) in _held_here:
            raise StoreError(_refusal(label, f"this process ({os.getpid()})"))
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise StoreError(_unlockable(label, self._path, error)) from error
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            held = isinstance(error, BlockingIOError | PermissionError)
            message = _refusal(label, _holder(self._descriptor)) if held else _unlockable(label, self._path, error)
            os.close(self._descriptor)
            raise StoreError(message) from error
        _held_here.add((os.getpid(), self._path))
        name = {"pid": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(name).encode(), 0)

    def release(self) -> None:
        """Empty the file and give up the lock."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        _held_here.discard((os.getpid(), self._path))


class ServerLock:
    """A PostgreSQL advisory lock, held by one connection that stays open."""

    def __init__(self, engine: Engine, label: str) -> None:
        with explained(label):
            self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            key = {"key": _ADVISORY_KEY}
            if self._connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), key):
                return
            holder = _server_holder(self._connection)
            self._connection.close()
        raise StoreError(_refusal(label, holder or "another process"))

    def release(self) -> None:
        """Close the connection, and the lock with it."""
        self._connection.invalidate()
        self._connection.close()


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
