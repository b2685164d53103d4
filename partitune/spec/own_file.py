"""Files that partitune writes where a person says: whole or not at all, and never over one that is somebody else's.

Decision: what is new is its owner's alone, whatever the umask, as an engine may have said anything into it; a file that
was there keeps its mode, and sharing is asked for.

Decision: all files of one order are written in full beside their places and read back there; only when everything is
right do they take the places of older ones, each in one step.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from partitune.errors import SpecError

#: Mode of a new file, unless a person asks for another: for its owner alone.
PRIVATE = 0o600


def mode_of(path: Path, otherwise: int = PRIVATE) -> int:
    """The permissions of `path`, as `chmod` takes them; `otherwise` where nothing is there."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return otherwise


def own_folder(path: Path, mode: int = PRIVATE) -> Path:
    """Make `path`, and what is missing above it, enterable by whoever may read a file of `mode`; return it."""
    for folder in reversed((path, *path.parents)):
        with suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(mode | (mode & 0o444) >> 2)
    return path


def own_file(path: Path, mode: int = PRIVATE) -> Path:
    """Make `path` an empty file of `mode`, unless it is there; return it."""
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        os.fchmod(descriptor, mode)
        os.close(descriptor)
    return path


def check_free(path: Path, asked_by: str, is_ours: Callable[[Path], bool], foreign: str) -> None:
    """Raise SpecError unless `path` is free, or a file of ours, in a folder that is there.

    Args:
        path: what would be written.
        asked_by: the command or option that names it, for messages.
        is_ours: whether the file that is there may be replaced.
        foreign: what one is that may not, behind "exists and".
    """
    try:
        if not path.parent.is_dir() or (path.exists() and not path.is_file()):
            raise SpecError(f"{asked_by}: {path}: allowed: the path of a file in an existing folder")
        if path.exists() and not is_ours(path):
            raise SpecError(f"{asked_by}: {path}: exists and {foreign}; allowed: another name")
    except OSError as error:
        raise SpecError(f"{asked_by}: {path}: cannot be read: {error.strerror}") from error


def write_whole(
    contents: Mapping[Path, bytes],
    asked_by: str,
    check: Callable[[Mapping[Path, bytes]], None] = lambda _: None,
    mode: int = PRIVATE,
) -> None:
    """Write every file, replacing older ones.

    Args:
        contents: what each file will hold.
        asked_by: the command or option that names them, for messages.
        check: is given what a reader of each file would get; what it raises leaves the older files in place.
        mode: of files that are new; an older one keeps its own.

    Raises:
        SpecError: one cannot be written. Nothing stays beside the files, whatever happens.
    """
    drafts = {path: path.with_name(f"{path.name}.{os.getpid()}.part") for path in contents}
    path = Path()
    try:
        for path, content in contents.items():
            with own_file(drafts[path], mode_of(path, mode)).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        check({path: draft.read_bytes() for path, draft in drafts.items()})
        for path, draft in drafts.items():
            draft.replace(path)
    except OSError as error:
        raise SpecError(f"{asked_by}: {path}: cannot be written: {error.strerror}") from error
    finally:
        for draft in drafts.values():
            with suppress(OSError):  # put in place, or never there
                draft.unlink()
