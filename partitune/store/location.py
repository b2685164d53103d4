"""From `--db` to a database that may be opened: a path or URL, checked before anything is touched.

Decision: look first, then open. SQLite creates files, journals and locks as a side effect of opening, so every refusal
that can be known from the file itself (missing, a folder, another kind of file, read-only, on a network file system)
comes before SQLite sees it, and nothing is left behind. Network file systems are refused for writing because SQLite's
locks and the shared memory of its write-ahead log do not work across hosts (https://sqlite.org/wal.html; optuna issue
815 is a study lost that way).
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from partitune.errors import StoreError

MOUNTS = Path("/proc/mounts")
NETWORK_FILE_SYSTEMS = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "fuse.sshfs", "fuse.glusterfs")
)
_HEADER = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class Location:
    """Where a database is. `path` is its real file, None for a server; `label` is what messages call it."""

    label: str
    url: URL
    path: Path | None


def locate(where: str | Path) -> Location:
    """Read a path or an SQLAlchemy URL (sqlite, postgresql). Raises StoreError."""
    text = str(where)
    if not text or "\0" in text:
        raise StoreError(f"{text!r} is not a file name. Give the path of an SQLite file or a database URL")
    if "://" not in text:
        return _file(text, text)
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise StoreError(
            f"{text}: not a database URL. Examples: sqlite:///results.db, postgresql://user@host/name"
        ) from error
    label = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "postgresql":
        return Location(label, url, None)
    if url.get_backend_name() != "sqlite":
        raise StoreError(f"{label}: {url.get_backend_name()} is not supported. Allowed: sqlite, postgresql")
    if not url.database or url.database.startswith((":memory:", "file:")) or url.query:
        raise StoreError(f"{label}: only a plain file is allowed, without options, such as sqlite:///results.db")
    return _file(label, url.database)


def _file(label: str, path: str) -> Location:
    # The real path, so that two links to one file share one lock.
    real = Path(os.path.realpath(path))
    return Location(label, URL.create("sqlite", database=str(real)), real)


def check_readable(path: Path, label: str) -> None:
    """Raise StoreError unless `path` is an SQLite file that can be read."""
    if not _exists(path, label):
        raise StoreError(f"{label}: no such file. `partitune search` creates it; give its path with --db")


def check_writable(path: Path, label: str) -> None:
    """Raise StoreError unless `path` is, or can become, an SQLite file that can be written."""
    folder, exists = path.parent, _exists(path, label)
    if not folder.is_dir():
        raise StoreError(f"{label}: the folder {folder} does not exist. Create it, or use another --db")
    mounts = ""
    with suppress(OSError):  # Linux alone has it
        mounts = MOUNTS.read_text(errors="surrogateescape")
    if (kind := file_system(path, mounts)) in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{label}: lies on a network file system ({kind}), where SQLite loses data. "
            "Use a --db on a local disk, or a PostgreSQL URL"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(f"{label}: the folder {folder} is read-only. Make it writable, or use another --db")
    if exists and not os.access(path, os.W_OK):
        raise StoreError(f"{label}: the file is read-only. Make it writable, or use another --db")


def file_system(path: Path, mounts: str) -> str:
    """Type of the file system that holds `path`, from the text of /proc/mounts (proc(5)); empty when unknown."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[1]))  # a space is written \040
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    return kind


def _exists(path: Path, label: str) -> bool:
    """Raise StoreError where something is there and is not an SQLite file that can be read."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise StoreError(f"{label}: is a folder. Give a file, such as {Path(label) / 'results.db'}")
        if not stat.S_ISREG(mode):
            raise StoreError(f"{label}: is not a regular file. Give the path of a results.db")
        with path.open("rb") as file:
            header = file.read(len(_HEADER))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{label}: {error.strerror}. Give the path of a results.db that you may read") from error
    if header not in (b"", _HEADER):
        raise StoreError(f"{label}: not an SQLite database. Give the results.db of a search, or another --db")
    return True
