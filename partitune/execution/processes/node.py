"""One machine on which processes of a trial run: started, watched and stopped with proof.

Decision: the arguments and results are plain values, so that the machine is this one or, with an actor in between, any
other; no callback and no handle crosses. A start is recorded before it happens (`ledger`) and lives under a supervisor
(`process_supervisor`). A stop ends with proof: no process of the family lives, the port is free, the GPUs have their
memory back. Without it the machine is quarantined: the next start there would fail for a reason that is not its own, so
it is refused until the janitor finds the machine clean.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import psutil

from partitune.errors import LaunchFailed, NodeLost
from partitune.execution.processes import cgroup, process_supervisor
from partitune.execution.processes.gpu_memory import held_mib, used_mib
from partitune.execution.processes.launch import ProcessCommand
from partitune.execution.processes.ledger import MARKER, Ledger, RecordedStart, state_folder, within
from partitune.execution.processes.masking import blot_out, keep_secret, mask
from partitune.execution.processes.trial_files import cut_log, read_log
from partitune.spec.own_file import own_file, own_folder

#: Seconds between two looks at a process.
LOOK_S = 0.1
#: Seconds that a family gets to end in order when whoever measures it died.
ABANDONED_S = 10.0
#: Seconds that a port and the memory of a GPU may stay taken after the last process went (seen: 15 s to minutes).
RELEASE_S = 60.0
_LONGEST_COMMAND = 120
_MAYBE = "which may be of it: its supervisors were killed before they saw its end"


class PortState(StrEnum):
    """Who listens on a port."""

    FREE = "free"
    OURS = "ours"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Whether a family runs, and how it ended."""

    running: bool
    exit_code: int | None = None  # of its first process; negative: the signal that ended it; None: unknown or running


@dataclass(slots=True)
class _Family:
    """One started family and its outer supervisor."""

    start: RecordedStart
    supervisor: subprocess.Popen[bytes]
    log: Path
    heard_so_far: bytearray = field(default_factory=bytearray)
    over: bool = False  # both supervisors are gone

    def listen(self, timeout_s: float = 0.0) -> None:
        """Take in what the supervisors say, waiting for the end at most `timeout_s`."""
        assert self.supervisor.stdout is not None  # noqa: S101 - piped
        deadline = time.monotonic() + timeout_s
        while not self.over:
            if not select.select([self.supervisor.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return
            heard = os.read(self.supervisor.stdout.fileno(), 4096)
            self.heard_so_far += heard
            self.over = not heard

    @property
    def ended(self) -> dict[str, Any] | None:
        """The last word of the supervisors; None before it, or when they were killed."""
        events = [json.loads(line) for line in self.heard_so_far.split(b"\n")[:-1]]
        return next((event for event in events if event["event"] == "ended"), None)

    def tell(self, words: str) -> None:
        """Say something to the outer supervisor, or nothing more (empty)."""
        assert self.supervisor.stdin is not None  # noqa: S101 - piped
        with suppress(OSError):
            self.supervisor.stdin.write(words.encode())
            self.supervisor.stdin.flush()


class Node:
    """One machine: where this process runs, or where an actor stands (`ray.actors`); there all may raise NodeLost."""

    def __init__(self, host: str, folder: Path | None = None, release_s: float = RELEASE_S) -> None:
        self._release_s = release_s
        self._folder = state_folder() if folder is None else folder
        self._ledger = Ledger(self._folder / "started")
        self._families: dict[str, _Family] = {}
        self.host = host

    def start(self, name: str, trial: str, process: ProcessCommand, port: int | None) -> None:
        """Start a family of processes, recorded before it runs; it ends with whoever measures, whatever happens.

        Linux only, as elsewhere nothing can prove that a process has ended.

        Args:
            name: of the family within this object's life, by which everything else here is asked.
            trial: whose marker, folder and log it gets.
            process: what is started.
            port: that it will listen on, of which nobody may be left afterwards; None: of none.

        Raises:
            LaunchFailed: the machine cannot start a process.
            NodeLost: the machine is quarantined, or another program has the port.
        """
        if sys.platform != "linux":
            raise LaunchFailed("engines are started on Linux only: elsewhere nothing can prove that one has ended")
        if self._ledger.quarantine():
            self.clean()
        if why := self._ledger.quarantine():
            raise NodeLost(f"{self.host} is quarantined, as an earlier engine is not gone: {why}")
        if port is not None and self.port_state(port, None) is not PortState.FREE:
            raise NodeLost(f"{self.port_taken(port)}; end it, or let the runner's port be `auto`")
        keep_secret(process.secrets.values())
        own = {key: value for key, value in os.environ.items() if key not in process.unset}
        ours = {MARKER: f"{trial}/{name}", "SPT_NOENV": "1"}  # else setproctitle wipes the marker
        env = {**own, **process.env, **process.secrets, **ours}
        try:
            log = own_file(Path(self.scratch_file(trial, f"{name}.log")))
            start = self._ledger.open(trial, name, port, used_mib(env) if process.uses_gpus else {})
        except OSError as error:
            raise LaunchFailed(f"{self.host} cannot record a start in {self._folder}: {error.strerror}") from error
        parent = cgroup.own_cgroup()
        order = {
            "argv": process.argv, "env": env, "log": str(log), "folder": str(log.parent), "record": str(start.file),
            "grace_s": ABANDONED_S, "cgroup": "" if parent is None else str(parent / f"partitune-{start.file.stem}"),
        }  # fmt: skip
        command = [sys.executable, "-I", "-S", process_supervisor.__file__]
        pipe = subprocess.PIPE
        try:
            with log.open("ab") as errors:  # not the parent's: who waits for its end must not wait for those
                supervisor = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, start_new_session=True)
        except OSError as error:
            self._ledger.close(start)
            raise LaunchFailed(f"{self.host} cannot start a process: {error.strerror}") from error
        family = self._families[name] = _Family(start, supervisor, log)
        family.tell(json.dumps(order) + "\n")

    def state(self, name: str) -> ProcessState:
        """Whether that family lives, and how its first process ended, by the word of its supervisors."""
        family = self._families[name]
        family.listen()
        ended = family.ended
        if not family.over and ended is None:
            return ProcessState(running=True)
        return ProcessState(running=False, exit_code=ended["exit"] if ended else None)

    def log(self, name: str) -> str:
        """What it printed so far; of a log of many megabytes, its head and its tail."""
        return mask(read_log(self._families[name].log))

    def stop(self, name: str, grace_s: float) -> tuple[str, ...]:
        """End that family: it gets `grace_s` seconds to do it itself, then it is killed.

        Through its supervisors, and past them where they are stuck.

        Returns:
            what is left of it (a process, the port, memory of a GPU), for which the machine is quarantined now; nothing
            is the proof that it is gone.
        """
        family = self._families.pop(name, None)
        if family is None:
            return ()
        family.tell(f"stop {grace_s}\n")
        family.listen(grace_s + process_supervisor.LONGEST_END_S)
        start = self._ledger.again(family.start)
        if not family.over:  # its supervisors are stuck
            start.end(0.0)
        with suppress(OSError):
            family.supervisor.communicate()  # closes both pipes and waits for the outer one
        start.end(0.0)  # of supervisors that were killed
        return self._prove(start)

    def port_state(self, port: int, name: str | None) -> PortState:
        """Who listens: nobody, only family `name`, or somebody else (also beside it).

        Every listener counts: engines let others share their port.
        """
        listening = _listening(port)
        if not listening:
            return PortState.FREE
        ours = set(self._ledger.again(self._families[name].start).survivors()) if name else set()
        return PortState.OURS if listening <= ours else PortState.FOREIGN

    def port_taken(self, port: int) -> str:
        """Who listens there, for a message."""
        listeners = ", ".join(f"pid {pid} ({_command(pid)})" for pid in _listening(port) if pid is not None)
        return (
            f"port {port} of {self.host} is already in use by {listeners or 'a process that cannot be seen from here'}"
        )

    def free_port(self) -> int:
        """A port nobody listens on now; it is not held, so another program may take it."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    def scratch_file(self, trial: str, name: str) -> str:
        """Absolute path of a file for a process of that trial to write; its folder is made if it is not there."""
        return str(own_folder(self._folder / "trials" / trial) / name)

    def read_file(self, path: str) -> str:
        """Its text; empty when there is no such file. Bytes that are no UTF-8 are replaced."""
        try:
            return mask(Path(path).read_text(errors="replace"))
        except FileNotFoundError:
            return ""

    def clean(self) -> tuple[str, ...]:
        """The janitor: end every family whose owner is gone, or that was left unclean, one sentence each.

        The quarantine is lifted if that succeeds.
        """
        sentences = []
        for start in self._ledger.starts():
            if start.is_leftover and start.file not in {family.start.file for family in self._families.values()}:
                killed = start.end(ABANDONED_S + process_supervisor.LONGEST_END_S)
                left = self._prove(start)
                state = f"left: {', '.join(left)}" if left else "nothing is left"
                sentences.append(
                    f"{self.host}: trial {start.trial}, {start.name}: {len(killed)} processes ended, {state}"
                )
        return tuple(sentences)

    def close(self) -> None:
        """End every family that was started through this object and still runs."""
        for name in list(self._families):
            self.stop(name, ABANDONED_S)

    def _prove(self, start: RecordedStart) -> tuple[str, ...]:
        """Look until nothing is left; close the record, or mark it."""
        start, left = self._ledger.again(start), list[str]()

        def is_clean() -> bool:
            left[:] = [f"process {pid} ({_command(pid)})" for pid in start.survivors()]
            left.extend(f"process {pid} ({_command(pid)}), {_MAYBE}" for pid in start.suspects())
            if start.port is not None and self.port_state(start.port, None) is not PortState.FREE:
                left.append(f"a listener on port {start.port}")
            left.extend(f"{mib} MiB of {gpu}" for gpu, mib in held_mib(start.gpu_mib).items())
            return not left

        if within(self._release_s, is_clean):
            log = self._folder / "trials" / start.trial / f"{start.name}.log"
            cut_log(log)
            for file in log.parent.glob("*"):
                if file == log or file.suffix != ".log":  # others are still written to
                    with suppress(OSError):  # gone, or not ours: no reason to fail a trial
                        blot_out(file)
            self._ledger.close(start)
        else:
            self._ledger.mark_unclean(start, f"trial {start.trial} left {', '.join(left)}")
        return tuple(left)


def run_to_end(
    node: Node, name: str, trial: str, process: ProcessCommand, grace_s: float, look: Callable[[], None]
) -> tuple[int | None, str]:
    """Run a program that ends by itself; whatever happens, it is gone afterwards.

    Args:
        node: where.
        name: of its family there.
        trial: that it belongs to.
        process: what is started.
        grace_s: seconds to end when it has to.
        look: called again and again meanwhile; what it raises ends the program.

    Returns:
        its exit code, None where that is unknown, and what it printed.
    """
    node.start(name, trial, process, None)
    try:
        while (state := node.state(name)).running:
            look()
            time.sleep(LOOK_S)
        return state.exit_code, node.log(name)
    finally:
        node.stop(name, grace_s)


class NodeSource(Protocol):
    """Where the machines of a trial come from. Picklable."""

    def nodes(self, count: int) -> AbstractContextManager[Sequence[Node]]:
        """Hold `count` machines; leaving ends whatever still runs on them."""


@dataclass(frozen=True, slots=True)
class LocalNodes:
    """This machine; several nodes of a start all stand on it."""

    folder: Path = field(default_factory=state_folder)

    @contextmanager
    def nodes(self, count: int) -> Iterator[Sequence[Node]]:
        """This machine `count` times; whatever still runs on it ends when the block is left."""
        node = Node("127.0.0.1", self.folder)
        try:
            yield (node,) * count
        finally:
            node.close()


def _listening(port: int) -> set[int | None]:
    """Processes that listen on `port`; None is another user's."""
    return {
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
    }


def _command(pid: int) -> str:
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return mask(" ".join(process.cmdline()))[:_LONGEST_COMMAND] or process.name()
    return "gone"
