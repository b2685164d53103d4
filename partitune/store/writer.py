"""One writing process per database, which names itself to the others.

Decision: the lock is the operating system's, or the server's, never a row or a file's existence: it ends with its
holder however that dies, so there is no stale lock to judge. For SQLite there are two, as one file may have several
names (hard links, mounts): record locks on `FILE.lock`, whose content names the holder, and a lock on the database
itself. The latter is flock(), because closing any other descriptor of the file would drop a record lock; what a fork
inherits of it is closed there, or a worker would keep it after the search is gone. Where flock() and the record locks
of SQLite exclude each other, which may be anywhere but on Linux, a file of several names is not written to.
`FILE.lock` stays behind empty, as removing a lock file is a race.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, Engine, text

from partitune.errors import StoreError
from partitune.spec.own_file import mode_of, own_file
from partitune.store.connection import explained
from partitune.store.location import Location

#: Any fixed number will do; PostgreSQL keeps advisory locks per database.
_ADVISORY_KEY = 7_274_788_431
#: Bytes of `FILE.lock`. Who holds the first is the writer. He holds the second too, and readers, to see whether there
#: is one, share that for a moment: so looking never keeps a writer out, and needs no `struct flock`, which differs.
_WRITER, _LOOK = 0, 1

#: Device and inode: the same for every name of a file.
FileKey = tuple[int, int]
#: Seconds in which a fork gives up the lock that it inherited.
_FORK_S = 1.0
#: Files that this process writes to, and the descriptors that hold their locks. Record locks do not exclude their own
#: process, and closing any descriptor of the file would drop them.
_held_here: dict[FileKey, tuple[int, int]] = {}


@dataclass(frozen=True, slots=True)
class WriterLock:
    """The right to write, until `release` is called. `file` is what is locked, None on a server."""

    release: Callable[[], None]
    file: FileKey | None = None


def _leave_to_parent() -> None:
    """In a fork: it has no record locks, and may not keep the other lock."""
    for descriptors in _held_here.values():
        for descriptor in descriptors:
            os.close(descriptor)
    _held_here.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def file_key(path: Path) -> FileKey | None:
    """Which file stands at `path` now; None where none does, or none that can be seen."""
    with suppress(OSError):
        return _key(path.stat())
    return None


def lock_for_writing(location: Location, engine: Engine) -> WriterLock:
    """Become the one writer of `location`, which is there.

    Raises:
        StoreError: names who is the writer.
    """
    return _lock_server(engine, location.label) if location.path is None else _lock_file(location.path, location.label)


def holder_of(location: Location, engine: Engine) -> str:
    """Who is the writer of `location` now, in words; empty when nobody is. Keeps nobody from becoming it."""
    if location.path is None:
        with explained(location.label), engine.connect() as connection:
            return _server_holder(connection) or ""
    if file_key(location.path) in _held_here:
        return _this_process()
    try:
        descriptor = os.open(_lock_path(location.path), os.O_RDONLY)
    except OSError:
        return ""  # no writer was ever there
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, _LOOK)
    except (BlockingIOError, PermissionError):
        return _holder(descriptor)
    finally:
        os.close(descriptor)
    return ""


def _lock_file(database: Path, label: str) -> WriterLock:
    """Both locks; `FILE.lock` is emptied when they are given up."""
    if file_key(database) in _held_here:
        raise StoreError(refusal(label, _this_process()))
    path = _lock_path(database)
    file = lock = -1
    try:
        lock = os.open(own_file(path, mode_of(database)), os.O_RDWR)
        file = os.open(database, os.O_RDWR)
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _WRITER)
        os.ftruncate(lock, 0)  # the name that a killed one left
        if sys.platform == "linux":
            _lock_whole(file)
        elif (names := os.fstat(file).st_nlink) > 1:
            raise StoreError(f"{label}: has {names} names (hard links), and SQLite loses data so. Keep one of them")
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, _LOOK)
    except (OSError, StoreError) as error:
        holder = _holder(lock) if isinstance(error, BlockingIOError | PermissionError) and file >= 0 else ""
        for descriptor in {lock, file} - {-1}:
            os.close(descriptor)
        if isinstance(error, StoreError):
            raise
        raise StoreError(refusal(label, holder) if holder else _unlockable(label, path, error)) from error
    key = _key(os.fstat(file))
    _held_here[key] = lock, file
    name = {"pid": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"}
    with suppress(OSError):  # a full disk; others are told of another process, then
        os.pwrite(lock, json.dumps(name).encode(), 0)

    def release() -> None:
        if _held_here.pop(key, None) is not None:  # else a fork, which holds nothing
            os.ftruncate(lock, 0)
            os.close(lock)
            os.close(file)

    return WriterLock(release, key)


def _lock_whole(file: int) -> None:
    """The lock that all names of a file share. A fork of a killed writer may hold it until it has run at all."""
    until_s = time.monotonic() + _FORK_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)


def _lock_server(engine: Engine, label: str) -> WriterLock:
    """An advisory lock of the server, held by a connection of its own."""
    with explained(label):
        connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        if connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _ADVISORY_KEY}):

            def release() -> None:
                connection.invalidate()  # and the lock goes with it
                connection.close()

            return WriterLock(release)
        holder = _server_holder(connection)
        connection.close()
    raise StoreError(refusal(label, holder or "another process"))


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
        return "another process (by this or another name of the file)"  # or it has not written its own yet


def _key(status: os.stat_result) -> FileKey:
    return status.st_dev, status.st_ino


def _lock_path(database: Path) -> Path:
    return database.with_name(database.name + ".lock")


def _this_process() -> str:
    return f"this process ({os.getpid()})"


def _unlockable(label: str, path: Path, error: OSError) -> str:
    return f"{label}: cannot lock {path}: {error.strerror}. Make it writable, or use another --db"


def refusal(label: str, holder: str) -> str:
    """What a second writer is told of the first, `holder`."""
    return (
        f"{label}: {holder} is writing to it, and only one process may. "
        "Wait for it, end it (nothing stored is lost), or use another --db. Reading is possible meanwhile"
    )
