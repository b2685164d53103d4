"""What was started on this machine and is not yet proved to be gone: one small file a start, durable before the start.

Decision: whoever starts a family of processes can die at any moment, and then only this says what to look for. A file
is written and synced before anything runs, names its owner (the process that started it), and is removed when the
proof stands that nothing is left. What remains while its owner is dead is a leftover; what could not be cleaned up is
marked, and while such a file is there the machine is quarantined. A process is named by boot, pid and start time, or
known by the marker in its environment; never by its command.

A process that drops its environment, its session and its parent is still in the family's `cgroup`, where there is one,
and a child of its supervisors. Where there is none and both were killed before they saw the end, nobody can say whether
one is left: whoever was taken over since by init, or by an ancestor of the owner, in a session of its own, may be. Such
a process is named and not killed, and the record stays open until it is gone.

A file is JSON lines, each appended whole: the start, then who was born of it (by `process_supervisor.py`), then perhaps
a mark.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter

from partitune.execution.processes import cgroup
from partitune.execution.processes.process_supervisor import KILL_S, descendants, start_ticks
from partitune.spec.own_file import own_folder

#: In the environment of every process of a trial, and of their children.
MARKER = "PARTITUNE_TRIAL"


def state_folder() -> Path:
    """Where this machine keeps its ledger and logs: a home may be shared by many machines, so the name is in it."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "partitune" / socket.gethostname()


@dataclass(frozen=True, slots=True)
class ProcessName:
    """One process, for all time."""

    boot: str
    pid: int
    start_ticks: int | None  # None: it was gone before it could be asked

    @property
    def lives(self) -> bool:
        """True while this very process runs."""
        return self.boot == _boot() and self.start_ticks is not None and start_ticks(self.pid) == self.start_ticks

    @classmethod
    def of(cls, pid: int) -> ProcessName:
        """The process that has this pid now."""
        return cls(_boot(), pid, start_ticks(pid))


@dataclass(frozen=True, slots=True)
class RecordedStart:
    """One start as the ledger holds it, and what of it still lives."""

    file: Path
    trial: str
    name: str  # of the process group within the trial
    port: int | None
    gpu_mib: Mapping[str, int]  # used before it, per GPU that it may use
    owner: ProcessName
    supervisors: tuple[ProcessName, ...] = ()
    engine: ProcessName | None = None
    cgroup: str = ""  # of its family, if it has one
    adopters: tuple[int, ...] = (1,)  # who may have taken over children of its family
    ended: bool = False  # its supervisors saw the last of it end
    unclean: str = ""  # why it could not be proved gone

    @property
    def marker(self) -> str:
        """Value of MARKER in its environment."""
        return f"{self.trial}/{self.name}"

    @property
    def is_leftover(self) -> bool:
        """True when nobody looks after it any more."""
        return bool(self.unclean) or not self.owner.lives

    def survivors(self) -> list[int]:
        """Living processes of the family: recorded, born of recorded ones, or with the marker."""
        family = set()
        for process in (*self.supervisors, *((self.engine,) if self.engine else ())):
            if process.lives:
                family |= {process.pid, *descendants(process.pid)}
        wanted = f"{MARKER}={self.marker}\0".encode()
        family |= {pid for pid in psutil.pids() if pid not in family and wanted in _environment(pid)}
        if self.cgroup:
            family |= cgroup.members(Path(self.cgroup))
        return sorted(pid for pid in family if start_ticks(pid) is not None)

    def suspects(self) -> list[int]:
        """Living processes that may be of the family though nothing shows it; none where the proof stands."""
        first = self.engine
        if first is None or first.start_ticks is None or self.ended or self.cgroup or first.boot != _boot():
            return []
        here = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
        here |= {each.pid for start in Ledger(self.file.parent).starts() for each in start.supervisors}
        return [
            process.pid
            for process in psutil.process_iter()
            if process.pid not in here and self._may_be_its(process, first.start_ticks)
        ]

    def _may_be_its(self, process: psutil.Process, begin_ticks: int) -> bool:
        """Younger than the engine, of this user, orphaned, and in a session that began since."""
        with suppress(psutil.Error, OSError):
            ticks, session = start_ticks(process.pid), start_ticks(os.getsid(process.pid))
            if ticks is not None and ticks >= begin_ticks and (session is None or session >= begin_ticks):
                return process.ppid() in self.adopters and process.uids().real == os.getuid()
        return False

    def end(self, grace_s: float) -> set[int]:
        """Wait for the supervisors to do their work, then kill what lives; who had to be killed.

        Supervisors end a family as soon as its owner is gone; killing them first would take that work from them.
        """
        within(grace_s, lambda: not any(supervisor.lives for supervisor in self.supervisors))
        killed: set[int] = set()

        def is_over() -> bool:
            survivors = self.survivors()
            if self.cgroup and survivors:
                cgroup.end_all(Path(self.cgroup))
            for pid in survivors:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            return not survivors

        within(KILL_S, is_over)
        return killed


_STARTS = TypeAdapter(RecordedStart)
#: What its first line says; the rest follows from those behind it.
_AT_START = {"trial", "name", "port", "gpu_mib", "owner", "adopters"}


@dataclass(frozen=True, slots=True)
class Ledger:
    """The files of one machine."""

    folder: Path = field(default_factory=lambda: state_folder() / "started")

    def open(self, trial: str, name: str, port: int | None, gpu_mib: Mapping[str, int]) -> RecordedStart:
        """Record, durably, a start that this process is about to make."""
        own_folder(self.folder)
        start = RecordedStart(
            self.folder / f"{uuid.uuid4().hex}.jsonl", trial, name, port, dict(gpu_mib), ProcessName.of(os.getpid()),
            adopters=(1, os.getpid(), *(parent.pid for parent in psutil.Process().parents())),
        )  # fmt: skip
        _append(start.file, {"role": "start", **_STARTS.dump_python(start, include=_AT_START)})
        descriptor = os.open(self.folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        return start

    def starts(self) -> list[RecordedStart]:
        """Every start that is not proved to be gone. One whose first line is torn never came to run."""
        return [start for file in sorted(self.folder.glob("*.jsonl")) if (start := read_start(file)) is not None]

    def again(self, start: RecordedStart) -> RecordedStart:
        """The record as it stands now: who was born since."""
        return read_start(start.file) or start

    def close(self, start: RecordedStart) -> None:
        """Nothing of it is left."""
        if start.cgroup:
            cgroup.remove(Path(start.cgroup))
        start.file.unlink(missing_ok=True)

    def mark_unclean(self, start: RecordedStart, why: str) -> None:
        """Something is left: nothing is started on this machine until it is clean."""
        _append(start.file, {"role": "unclean", "why": why})

    def quarantine(self) -> str:
        """Why nothing may be started here now, and what to remove if that is wrong; empty when it may."""
        return "; ".join(
            f"{start.unclean} (if that is somebody else's, remove {start.file})"
            for start in self.starts()
            if start.unclean
        )


def read_start(file: Path) -> RecordedStart | None:
    """The record in `file` as it stands; None when it is gone, or its first line was never finished."""
    try:
        lines: list[dict[str, Any]] = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
    except FileNotFoundError:
        return None
    if not lines:
        return None
    born = [{**lines[0]["owner"], **line} for line in lines[1:] if "pid" in line]
    engine = next((process for process in born if process["role"] == "engine"), None)
    later = {
        "supervisors": [process for process in born if process["role"] not in ("engine", "ended")],
        "engine": engine,
        "cgroup": (engine or {}).get("cgroup", ""),
        "ended": any(process["role"] == "ended" for process in born),
        "unclean": next((line["why"] for line in reversed(lines) if line["role"] == "unclean"), ""),
    }
    return _STARTS.validate_python({"file": file, **lines[0], **later})


def _append(file: Path, line: Mapping[str, object]) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as record:
        record.write((json.dumps(line) + "\n").encode())
        os.fsync(descriptor)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    except OSError:
        return b""  # gone, or another user's


def within(seconds: float, is_so: Callable[[], bool]) -> bool:
    """Ask until it is so, in pauses that grow to a second; False when it is still not after `seconds`."""
    deadline, pause_s = time.monotonic() + seconds, 0.02
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 1.0)
    return True
