"""A family of processes is gone when any one of those that keep it is killed, and the record knew it before it ran."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partitune.execution.processes import ledger, process_supervisor
from partitune.execution.processes.ledger import Ledger, ProcessName, RecordedStart
from partitune.execution.processes.process_supervisor import descendants, start_ticks

pytestmark = pytest.mark.machine  # families of one name are looked for everywhere

#: A family as an engine's: a worker, and a grandchild in a session of its own that ignores SIGTERM.
FAMILY = """
import os, signal, sys, time
def hold(name, deaf):
    signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else signal.SIG_DFL)
    os.write(1, f"{name} {os.getpid()}\\n".encode())
    while True:
        time.sleep(60)
if os.fork() == 0:
    hold("worker", False)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        hold("orphan", True)
    os._exit(0)
os.wait()
hold("main", False)
"""


def wait_until(is_so: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Kept:
    """A family under supervisors, and a parent that a test can kill."""

    def __init__(self, folder: Path, grace_s: float = 2.0, program: str = FAMILY) -> None:
        self.log, self.said = folder / "log", folder / "said"
        self.ledger = Ledger(folder / "started")
        self.start: RecordedStart = self.ledger.open("t", "engine", None, {})
        order = {
            "argv": [sys.executable, "-S", "-E", "-c", program], "env": {ledger.MARKER: "t/engine"},
            "log": str(self.log), "folder": str(folder), "record": str(self.start.file), "cgroup": "",
            "grace_s": grace_s,
        }  # fmt: skip
        # A parent in between: it writes the order and then only holds the pipe, as whoever measures does.
        parent = "import os, sys, time; os.write(int(sys.argv[1]), sys.argv[2].encode()); time.sleep(600)"
        reading, writing = os.pipe()
        with self.said.open("wb") as said:
            self.outer = subprocess.Popen(
                [sys.executable, "-I", "-S", process_supervisor.__file__],
                stdin=reading,
                stdout=said,
                start_new_session=True,
            )
        os.close(reading)
        command = [sys.executable, "-S", "-E", "-c", parent, str(writing), json.dumps(order) + "\n"]
        self.parent = subprocess.Popen(command, pass_fds=[writing])
        os.close(writing)

    def members(self) -> dict[str, int]:
        lines = [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return {name: int(pid) for name, pid in lines}

    def await_family(self) -> dict[str, int]:
        wait_until(lambda: len(self.members()) == 3)
        return self.members()

    def record(self) -> RecordedStart:
        return self.ledger.again(self.start)

    def event(self) -> dict[str, object]:
        wait_until(lambda: b'"ended"' in self.said.read_bytes())
        found: dict[str, object] = json.loads(self.said.read_text().splitlines()[-1])
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for start in Ledger(tmp_path / "started").starts():
        start.end(0.0)


@pytest.fixture
def family(folder: Path) -> Iterator[Kept]:
    made = Kept(folder)
    yield made
    made.parent.kill()
    made.parent.wait()
    made.outer.wait()


def victim(family: Kept, who: str) -> int:
    record = family.record()
    assert record.engine is not None
    return {
        "parent": family.parent.pid,
        "outer supervisor": record.supervisors[0].pid,
        "inner supervisor": record.supervisors[1].pid,
        "engine": record.engine.pid,
        "worker": family.members()["worker"],
    }[who]


@pytest.mark.parametrize("who", ["parent", "outer supervisor", "inner supervisor", "engine"])
def test_a_kill_of_any_one_leaves_nothing(family: Kept, who: str) -> None:
    members = family.await_family()
    os.kill(victim(family, who), signal.SIGKILL)
    if who == "outer supervisor":
        family.outer.wait()
    wait_until(lambda: not any(start_ticks(pid) for pid in members.values()))
    wait_until(lambda: not any(name.lives for name in family.record().supervisors))
    assert family.record().survivors() == []


@pytest.mark.parametrize("who", ["parent", "outer supervisor", "inner supervisor"])
@pytest.mark.parametrize("pause_s", [0.0, 0.02])
def test_a_kill_before_the_family_is_complete_leaves_nothing(folder: Path, who: str, pause_s: float) -> None:
    """At moments from the first process on; a start that is not recorded does not happen."""
    roles = {"parent": 0, "outer supervisor": 1, "inner supervisor": 2}
    family = Kept(folder)
    wait_until(lambda: len(family.record().supervisors) >= roles[who])
    time.sleep(pause_s)
    pid = family.parent.pid if who == "parent" else family.record().supervisors[roles[who] - 1].pid
    os.kill(pid, signal.SIGKILL)
    if who != "parent":
        family.parent.kill()
    family.parent.wait()
    family.outer.wait()
    wait_until(lambda: family.record().survivors() == [])


def test_a_worker_that_dies_is_the_engines_affair(family: Kept) -> None:
    members = family.await_family()
    os.kill(members["worker"], signal.SIGKILL)
    time.sleep(0.2)
    assert start_ticks(members["main"])


def test_the_end_is_reported_with_status_and_who_had_to_be_killed(family: Kept) -> None:
    members = family.await_family()
    os.kill(members["main"], signal.SIGTERM)
    event = family.event()
    assert (event["exit"], event["left"]) == (-signal.SIGTERM, [])
    assert event["killed"] == [members["orphan"]]


def test_the_engine_is_recorded_before_it_runs(folder: Path) -> None:
    program = "import pathlib, sys, os, time; print('main', os.getpid(), flush=True); time.sleep(60)"
    family = Kept(folder, program=program)
    wait_until(lambda: bool(family.members()))
    record = family.record()
    assert record.engine == ProcessName.of(family.members()["main"])
    assert [name.pid for name in record.supervisors] == [family.outer.pid, *descendants(family.outer.pid)[:1]]
    family.parent.kill()
    family.parent.wait()
    family.outer.wait()


def test_what_cannot_be_started_says_so_in_the_log(folder: Path) -> None:
    ledger_ = Ledger(folder / "started")
    start = ledger_.open("t", "engine", None, {})
    order = {
        "argv": ["no-such-program"], "env": {}, "log": str(folder / "log"), "folder": str(folder),
        "record": str(start.file), "cgroup": "", "grace_s": 1.0,
    }  # fmt: skip
    command = [sys.executable, "-I", "-S", process_supervisor.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as outer:
        assert outer.stdin
        assert outer.stdout
        outer.stdin.write(json.dumps(order).encode() + b"\n")
        outer.stdin.flush()
        assert json.loads(outer.stdout.read().splitlines()[-1])["exit"] == 127
    assert (folder / "log").read_text() == "cannot start no-such-program: No such file or directory\n"


class TestLeftovers:
    """What the janitor goes by, when everything that kept a family was killed at once."""

    def kill_all_but_the_family(self, family: Kept) -> dict[str, int]:
        members = family.await_family()
        for name in family.record().supervisors:
            os.kill(name.pid, signal.SIGSTOP)  # together: neither sees the other die
        family.parent.kill()
        for name in family.record().supervisors:
            os.kill(name.pid, signal.SIGKILL)
        family.parent.wait()
        family.outer.wait()
        return members

    def test_they_are_found_and_ended_and_nobody_else_is(self, family: Kept) -> None:
        stranger = subprocess.Popen([sys.executable, "-S", "-E", "-c", FAMILY], stdout=subprocess.DEVNULL)
        other = {**os.environ, ledger.MARKER: "t/engine-2"}
        neighbour = subprocess.Popen(["sleep", "60"], env=other)
        members = self.kill_all_but_the_family(family)
        record = family.record()
        assert members["orphan"] in record.survivors()
        assert stranger.pid not in record.survivors()
        killed = record.end(0.0)
        assert members["orphan"] in killed
        assert record.survivors() == []
        assert stranger.poll() is None
        assert neighbour.poll() is None
        for process in (stranger, neighbour):
            for pid in (*descendants(process.pid), process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait()

    def test_a_pid_that_was_given_to_another_process_is_not_touched(self, tmp_path: Path) -> None:
        innocent = subprocess.Popen(["sleep", "60"])
        made = Ledger(tmp_path).open("t", "engine", None, {})
        born = {"role": "engine", "pid": innocent.pid, "start_ticks": (start_ticks(innocent.pid) or 0) - 100}
        with made.file.open("a") as record:
            record.write(json.dumps(born) + "\n")
        again = Ledger(tmp_path).again(made)
        assert again.engine is not None
        assert again.engine.pid == innocent.pid
        assert again.survivors() == []
        assert again.end(0.0) == set()
        assert innocent.poll() is None
        innocent.kill()
        innocent.wait()


def test_a_torn_line_is_not_read_and_a_torn_start_never_ran(tmp_path: Path) -> None:
    ledger_ = Ledger(tmp_path)
    made = ledger_.open("t", "engine", 8000, {"GPU-1": 20})
    with made.file.open("a") as record:
        record.write('{"role": "supervisor", "pid": 12')
    assert ledger_.starts() == [made]
    (tmp_path / "torn.jsonl").write_text('{"role": "start", "tri')
    assert ledger_.starts() == [made]


def test_a_record_of_an_earlier_release_names_its_supervisors_by_another_word(tmp_path: Path) -> None:
    start = Ledger(tmp_path).open("t", "engine", None, {})
    with start.file.open("a") as record:
        record.write(
            '{"role": "keeper", "pid": 12, "start_ticks": 3}\n{"role": "engine", "pid": 13, "start_ticks": 4}\n'
        )
    (again,) = Ledger(tmp_path).starts()
    assert [name.pid for name in again.supervisors] == [12]
    assert again.engine is not None
    assert again.engine.pid == 13


def test_a_start_is_a_leftover_only_when_its_owner_is_gone(tmp_path: Path) -> None:
    ledger_ = Ledger(tmp_path)
    made = ledger_.open("t", "engine", None, {})
    assert not made.is_leftover
    text = "import os, sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path\n"
    text += "from partitune.execution.processes.ledger import Ledger\n"
    text += "Ledger(Path(sys.argv[1])).open('u', 'engine', None, {})"
    subprocess.run([sys.executable, "-c", text, str(tmp_path), str(Path(__file__).parent.parent.parent)], check=True)
    assert {start.trial: start.is_leftover for start in ledger_.starts()} == {"t": False, "u": True}
    ledger_.mark_unclean(made, "process 7 (x)")
    assert ledger_.again(made).is_leftover
    assert ledger_.quarantine() == f"process 7 (x) (if that is somebody else's, remove {made.file})"
    ledger_.close(made)
    assert ledger_.quarantine() == ""
