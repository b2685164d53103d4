"""A family of processes as the kernel keeps it: a cgroup (version 2) of its own.

Decision: no process leaves it by dropping its environment, its session or its parent, and its members are asked of the
kernel; so where one can be made, a family is ended and proved gone whoever was killed. That takes root or a delegated
slice, and is rare in containers; elsewhere `ledger` says what cannot be proved.

Source: Linux `Documentation/admin-guide/cgroup-v2.rst` (cgroup.procs, cgroup.kill since 5.14).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def own_cgroup() -> Path | None:
    """The cgroup of this process; None where there is none of version 2, or none can be made in it."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text(errors="replace").splitlines()]
        mount = next(fields[1] for fields in mounts if fields[2] == "cgroup2")
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        folder = Path(mount, next(line.removeprefix("0::/") for line in lines if line.startswith("0::/")))
    except (OSError, StopIteration):
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def members(folder: Path) -> set[int]:
    """Living processes in it and below."""
    pids: set[int] = set()
    for file in folder.rglob("cgroup.procs"):
        with suppress(OSError):
            pids.update(map(int, file.read_text().split()))
    return pids


def end_all(folder: Path) -> None:
    """SIGKILL for every member at one moment, as none can fork its way out."""
    with suppress(OSError):
        (folder / "cgroup.kill").write_text("1")


def remove(folder: Path) -> None:
    """Give it back; one that still has members stays."""
    for below in sorted(folder.rglob("*/"), reverse=True):
        with suppress(OSError):
            below.rmdir()
    with suppress(OSError):
        folder.rmdir()
