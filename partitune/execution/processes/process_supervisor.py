"""Keeps one family of processes: starts it, watches it, and ends all of it when its parent is gone.

Decision: this runs as a script of its own, twice, one supervisor inside the other, between whoever measures and the
engine. Both are child subreapers: a process of the family that loses its parent, however it was forked and whatever
session it made, becomes a child of the inner supervisor, and of the outer one once the inner is gone. So `wait`
answering "no child" is the kernel's own proof that nothing is left, and a SIGKILL of any one process (who measures, a
supervisor, the engine) still leaves one that ends the rest. The parent holds a pipe to the outer supervisor; its end is
how a supervisor learns of a death.

It knows nothing of engines and imports only the standard library, so that it starts in some hundredths of a second.
`python -I -S process_supervisor.py` reads one line of JSON: argv, env, log (a path), folder (to run in), record (the
ledger's file), cgroup (to make for the family; empty: none) and grace_s; and later a line `stop SECONDS`, or nothing
more. Standard output carries lines of JSON: an event `started` with pid, and last `ended` with exit (null: unknown),
killed (pids that did not end by themselves) and left.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36  # both prctl(2)
#: Seconds that a process may take to die of SIGKILL; one that waits in a driver of the kernel never does.
KILL_S = 15.0
#: Seconds that the rest of a family gets to end by itself when its first process ended.
ORPHANS_S = 2.0
#: Seconds that the outer supervisor waits for the inner one beyond what that may take.
_PATIENCE_S = 5.0
#: Seconds from the end of the grace until a supervisor has given up at the latest.
LONGEST_END_S = 2 * (ORPHANS_S + KILL_S) + _PATIENCE_S
_ANYBODY = -1


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, which no other process of that pid has; None: it is gone.

    A zombie counts as gone: it holds nothing. Field 22 of /proc/PID/stat, proc(5).
    """
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def descendants(root: int) -> list[int]:
    """Living children of `root`, their children and so on."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - thousands of names, many times a second
        if name.isdigit() and (fields := _stat(int(name))) is not None and fields[0] not in "ZX":
            parents.setdefault(int(fields[1]), []).append(int(name))
    family, waiting = [], [root]
    while waiting:
        children = parents.get(waiting.pop(), [])
        family += children
        waiting += children
    return family


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on: the command before them may hold any character."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


class _Supervisor:
    """One of the two: a child, the pipe that says the parent lives, and where to tell what happens."""

    def __init__(
        self, child: int, lifeline: int, ask_child: Callable[[bytes], None], grace_s: float, beyond_s: float = 0.0
    ) -> None:
        self._child = child
        self._lifeline = lifeline
        self._wake = _wake_up()
        self._ask_child = ask_child  # to end, with what the parent said (empty: it is gone)
        self._grace_s = grace_s  # how long the engine may then take, unless the parent says
        self._beyond_s = beyond_s  # and the child beyond that
        self._exit: int | None = None
        self.childless = False
        self.killed: list[int] = []

    def supervise(self) -> int | None:
        """Return when no process of the family lives, or those that do cannot be killed; the child's exit status."""
        asked = self._wait(None)
        if asked is not None:
            self._ask_child(asked)
            words = asked.split()
            grace_s = (float(words[1]) if len(words) == 2 else self._grace_s) + self._beyond_s
            self._wait(grace_s / 2)
            if self._exit is None:
                self._signal_all(signal.SIGTERM)  # a shell does not pass the signal on
                self._wait(grace_s / 2)
        self._reap()
        if self._exit is not None and not self.childless:
            self._signal_all(signal.SIGTERM)
            self._wait(ORPHANS_S, for_all=True)
        end = time.monotonic() + KILL_S
        while not self.childless and time.monotonic() < end:
            self.killed += [pid for pid in self._signal_all(signal.SIGKILL) if pid not in self.killed]
            self._wait(0.1, for_all=True)
        return self._exit

    def _wait(self, seconds: float | None, *, for_all: bool = False) -> bytes | None:
        """Until the child ended (or all of them), or so long, or (for None) until the parent spoke or died.

        Returns:
            what the parent said, empty where it died or we shall end; None when it had nothing to do with it.
        """
        watched = [self._wake, self._lifeline] if seconds is None else [self._wake]
        end = float("inf") if seconds is None else time.monotonic() + seconds
        while True:
            self._reap()
            left_s = end - time.monotonic()
            if self.childless or left_s <= 0 or (self._exit is not None and not for_all):
                return None
            ready, _, _ = select.select(watched, [], [], None if seconds is None else left_s)
            if self._wake in ready and signal.SIGTERM in os.read(self._wake, 512) and seconds is None:
                return b""
            if self._lifeline in ready:
                return os.read(self._lifeline, 512)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(_ANYBODY, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            if pid == self._child:
                self._exit = os.waitstatus_to_exitcode(status)

    @staticmethod
    def _signal_all(number: int) -> list[int]:
        family = descendants(os.getpid())
        for pid in family:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        return family


def main() -> None:
    """Both supervisors: fork the inner one, which starts the family."""
    line = io.FileIO(0, closefd=False).readline()  # and not a byte more
    if not line.endswith(b"\n"):
        sys.exit(0)  # the parent died while it asked
    order = json.loads(line)
    _control(_PR_SET_CHILD_SUBREAPER, 1)
    _record(order, "supervisor", os.getpid())
    inner_lifeline, to_inner = os.pipe()
    inner = os.fork()
    if inner == 0:
        os.close(to_inner)
        os.close(0)
        _supervise_inside(order, inner_lifeline)
        os._exit(0)
    os.close(inner_lifeline)

    def ask_inner(words: bytes) -> None:
        with suppress(OSError):
            os.write(to_inner, words)
        os.close(to_inner)

    supervisor = _Supervisor(inner, 0, ask_inner, order["grace_s"], ORPHANS_S + KILL_S + _PATIENCE_S)
    status = supervisor.supervise()
    _record_end(order, supervisor)
    if status != 0:
        _tell(event="ended", exit=None, killed=supervisor.killed, left=descendants(os.getpid()))


def _supervise_inside(order: dict[str, Any], lifeline: int) -> None:
    """The inner supervisor: start the engine once it is recorded, and see it end."""
    _control(_PR_SET_CHILD_SUBREAPER, 1)
    _record(order, "supervisor", os.getpid())
    ready, go = os.pipe()
    parent = os.getpid()
    engine_pid = os.fork()
    if engine_pid == 0:
        os.close(go)
        _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent and os.read(ready, 1):  # else the supervisor died before it was recorded
            _become(order)
        os._exit(127)
    os.close(ready)

    def ask_engine(_: bytes) -> None:
        with suppress(ProcessLookupError):
            os.kill(engine_pid, signal.SIGTERM)  # the first process ends its own workers in order

    supervisor = _Supervisor(engine_pid, lifeline, ask_engine, order["grace_s"])
    _record(order, "engine", engine_pid, cgroup=_joined(order["cgroup"], engine_pid))
    os.write(go, b"g")
    os.close(go)
    _tell(event="started", pid=engine_pid)
    status = supervisor.supervise()
    _record_end(order, supervisor)
    _tell(event="ended", exit=status, killed=supervisor.killed, left=descendants(os.getpid()))


def _become(order: dict[str, Any]) -> None:
    """Turn this process into the engine, in a session of its own, with the signals of a fresh login."""
    argv, env = order["argv"], order["env"]
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(source, target)
    try:
        os.chdir(order["folder"])
        os.execvpe(argv[0], argv, env)  # noqa: S606 - an argument vector, no shell
    except OSError as error:
        os.write(2, f"cannot start {argv[0]}: {error.strerror}\n".encode())


def _wake_up() -> int:
    """A pipe that gets a byte for every SIGCHLD and SIGTERM; SIGINT and SIGHUP are for the parent to answer."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return reading


def _joined(cgroup: str, pid: int) -> str:
    """Make `cgroup` and put that process into it; empty where that cannot be."""
    if not cgroup:
        return ""
    try:
        Path(cgroup).mkdir()
        Path(cgroup, "cgroup.procs").write_text(str(pid))
    except OSError:
        with suppress(OSError):
            Path(cgroup).rmdir()
        return ""
    return cgroup


def _record_end(order: dict[str, Any], supervisor: _Supervisor) -> None:
    """Leave a word that nobody else can: that the kernel knows no further process of the family."""
    if supervisor.childless:
        with suppress(FileNotFoundError):
            _record(order, "ended", os.getpid())


def _record(order: dict[str, Any], role: str, pid: int, **further: str) -> None:
    """Append who that is to the durable record."""
    line = json.dumps({"role": role, "pid": pid, "start_ticks": start_ticks(pid), **further}) + "\n"
    record = os.open(order["record"], os.O_WRONLY | os.O_APPEND)
    os.write(record, line.encode())
    os.fsync(record)
    os.close(record)


def _tell(**event: object) -> None:
    with suppress(OSError):  # nobody listens any more
        os.write(1, (json.dumps(event) + "\n").encode())


def _control(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    main()
