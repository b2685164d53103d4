"""One machine: what is started is recorded, watched, stopped with proof; what is left keeps others from starting."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from partitune.errors import NodeLost
from partitune.execution.processes import trial_files
from partitune.execution.processes.cgroup import own_cgroup
from partitune.execution.processes.ledger import Ledger
from partitune.execution.processes.node import Node, PortState
from partitune.execution.processes.process_supervisor import start_ticks
from tests.contracts.node import LISTEN, NodeContract, plan, python
from tests.execution.test_process_supervisor import FAMILY, wait_until

pytestmark = pytest.mark.machine  # families of one name are looked for everywhere
ROOT = Path(__file__).parent.parent.parent
SLEEP = ("sleep", "60")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node("127.0.0.1", tmp_path, release_s=0.3)
    yield made
    made.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(("127.0.0.1", 0))
        yield made


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


class TestLocalNode(NodeContract):
    @pytest.fixture
    def node(self, tmp_path: Path) -> Iterator[Node]:
        made = Node("127.0.0.1", tmp_path)
        yield made
        made.close()


def test_a_partition_in_the_nodes_own_environment_does_not_reach_the_engine(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "12,12")
    monkeypatch.setenv("KEPT", "here")
    node.start("engine", "t", plan("env", unset=("VLLM_PP_LAYER_PARTITION",)), None)
    wait_until(lambda: not node.state("engine").running)
    assert "VLLM_PP_LAYER_PARTITION" not in node.log("engine")
    assert "KEPT=here" in node.log("engine").splitlines()


def test_a_start_is_recorded_until_it_is_proved_to_be_gone(node: Node, tmp_path: Path) -> None:
    node.start("engine", "t", python(FAMILY), None)
    wait_until(lambda: node.log("engine").count("\n") == 3)
    started = Ledger(tmp_path / "started").starts()
    assert [(start.trial, start.name) for start in started] == [("t", "engine")]
    node.stop("engine", 1.0)
    assert started[0].survivors() == []
    assert Ledger(tmp_path / "started").starts() == []


def test_one_that_ignores_sigterm_gets_its_grace_and_no_more(node: Node) -> None:
    text = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    node.start("engine", "t", python(text), None)
    wait_until(lambda: node.log("engine") == "1\n")
    begin = time.monotonic()
    assert node.stop("engine", 1.0) == ()
    assert 1.0 <= time.monotonic() - begin < 6.0


def test_supervisors_that_were_both_killed_are_made_up_for(node: Node, tmp_path: Path) -> None:
    node.start("engine", "t", python(FAMILY), None)
    wait_until(lambda: node.log("engine").count("\n") == 3)
    start = Ledger(tmp_path / "started").starts()[0]
    for supervisor in start.supervisors:
        os.kill(supervisor.pid, signal.SIGSTOP)
    for supervisor in start.supervisors:
        os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: not node.state("engine").running)
    assert node.state("engine").exit_code is None
    assert node.stop("engine", 1.0) == ()
    assert start.survivors() == []


class TestPorts:
    def test_a_port_that_is_shared_is_not_ours(self, node: Node, listener: socket.socket) -> None:
        """vLLM opens its port with SO_REUSEPORT: two servers get the requests by chance."""
        node.start("engine", "t", python(LISTEN, str(port_of(listener))), port_of(listener))
        wait_until(lambda: node.port_state(port_of(listener), "engine") is PortState.OURS)
        listener.listen()
        assert node.port_state(port_of(listener), "engine") is PortState.FOREIGN
        listener.close()

    def test_nothing_is_started_on_a_taken_port(self, node: Node, listener: socket.socket, tmp_path: Path) -> None:
        listener.listen()
        with pytest.raises(
            NodeLost, match=f"port {port_of(listener)} of 127.0.0.1 is already in use by pid {os.getpid()} "
        ):
            node.start("engine", "t", plan(*SLEEP), port_of(listener))
        assert Ledger(tmp_path / "started").starts() == []


class TestQuarantine:
    def test_what_is_left_keeps_others_from_starting_until_it_is_gone(
        self, node: Node, listener: socket.socket
    ) -> None:
        """As a container that outlives its `docker run` and holds the port."""
        port = port_of(listener)
        node.start("engine", "t-1", plan(*SLEEP), port)
        listener.listen()
        assert node.stop("engine", 1.0) == (f"a listener on port {port}",)
        with pytest.raises(NodeLost, match=f"quarantined.*trial t-1 left a listener on port {port}"):
            node.start("engine", "t-2", plan(*SLEEP), None)
        listener.close()
        node.start("engine", "t-3", plan(*SLEEP), None)
        assert node.stop("engine", 1.0) == ()

    def test_memory_that_a_gpu_does_not_give_back_is_left(
        self, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        used = tmp_path / "used"
        used.write_text("GPU-a, 0, 500\nGPU-b, 1, 400\n")
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\ncase "$1" in --query-gpu*) cat {used};; esac\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        node.start("engine", "t", plan(*SLEEP, CUDA_VISIBLE_DEVICES="1"), None)
        used.write_text("GPU-a, 0, 90000\nGPU-b, 1, 90400\n")  # of GPU-a another trial may have the memory
        assert node.stop("engine", 1.0) == ("90000 MiB of GPU-b",)
        with pytest.raises(NodeLost, match="90000 MiB of GPU-b"):
            node.start("engine", "t", plan(*SLEEP), None)
        used.write_text("GPU-a, 0, 90000\nGPU-b, 1, 1300\n")
        node.start("engine", "t", plan(*SLEEP), None)


ABANDON = """
import os, sys
from pathlib import Path
from partitune.execution.processes.launch import ProcessCommand
from partitune.execution.processes.ledger import Ledger
from partitune.execution.processes.node import Node
folder = Path(sys.argv[1])
plan = ProcessCommand(0, "h", (sys.executable, "-c", sys.argv[2]), {})
Node("127.0.0.1", folder).start("engine", "left", plan, None)
log = folder / "trials" / "left" / "engine.log"
while not log.exists() or log.read_text().count("\\n") < 3:
    pass
(start,) = [start for start in Ledger(folder / "started").starts() if start.trial == "left"]
for number in (19, 9):
    for supervisor in start.supervisors:
        os.kill(supervisor.pid, number)
os._exit(0)
"""


def test_the_janitor_ends_what_an_earlier_run_left_and_nothing_that_runs(node: Node, tmp_path: Path) -> None:
    node.start("engine", "mine", plan(*SLEEP), None)
    with LocalNodeElsewhere(tmp_path) as theirs:
        subprocess.run([sys.executable, "-c", ABANDON, str(tmp_path), FAMILY], check=True, cwd=ROOT)
        said = node.clean()
        assert len(said) == 1
        assert said[0].startswith("127.0.0.1: trial left, engine: ")
        assert said[0].endswith("processes ended, nothing is left")
        assert node.state("engine").running
        assert theirs.poll() is None
        assert {start.trial for start in Ledger(tmp_path / "started").starts()} == {"mine", "theirs"}
    assert node.clean() == ()


class LocalNodeElsewhere:
    """Another study on this machine, alive."""

    TEXT = """
import sys, time
from pathlib import Path
from partitune.execution.processes.launch import ProcessCommand
from partitune.execution.processes.node import Node
node = Node("127.0.0.1", Path(sys.argv[1]))
node.start("engine", "theirs", ProcessCommand(0, "h", ("sleep", "60"), {}), None)
print("started", flush=True)
sys.stdin.read()
node.close()
"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.TEXT, str(self.folder)], cwd=ROOT, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout
        assert self.process.stdout.readline() == "started\n"
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def test_the_log_of_a_talkative_process_keeps_its_head_and_tail(node: Node) -> None:
    text = "print('first'); [print('x' * 1000) for _ in range(8000)]; print('last')"
    node.start("engine", "t", python(text), None)
    wait_until(lambda: not node.state("engine").running)
    log = node.log("engine")
    assert log.startswith("first\n")
    assert log.endswith("last\n")
    assert 5 << 20 <= len(log) < 6 << 20


def test_of_a_runaway_log_head_and_tail_are_kept_once_nobody_writes_to_it(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_files, "LARGEST", 6 << 20)
    sizes = {}
    for lines in (5000, 8000):  # of a thousand bytes: below the cap, and above it
        text = f"print('first'); [print('x' * 999) for _ in range({lines})]; print('last')"
        node.start("engine", f"t{lines}", python(text), None)
        wait_until(lambda: not node.state("engine").running)
        log = tmp_path / "trials" / f"t{lines}" / "engine.log"
        assert log.stat().st_size == 11 + 1000 * lines
        assert node.stop("engine", 1.0) == ()
        sizes[lines] = log.stat().st_size
    kept = (tmp_path / "trials" / "t8000" / "engine.log").read_text()
    assert kept.startswith("first\nxxx")
    assert kept.endswith("xxx\nlast\n")
    gone = 8_000_011 - (5 << 20)
    assert f"\n[partitune cut {gone} bytes of 8000011 here]\n" in kept
    assert sizes == {5000: 5_000_011, 8000: (5 << 20) + len(f"\n[partitune cut {gone} bytes of 8000011 here]\n")}


def test_the_janitor_cuts_what_a_dead_owner_left(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_files, "LARGEST", 6 << 20)
    subprocess.run([sys.executable, "-c", ABANDON, str(tmp_path), FAMILY], check=True, cwd=ROOT)
    log = tmp_path / "trials" / "left" / "engine.log"
    with log.open("ab") as file:
        file.write(b"y" * (8 << 20))
    assert len(node.clean()) == 1
    assert 5 << 20 <= log.stat().st_size < 6 << 20
    assert b"\n[partitune cut " in log.read_bytes()


#: A daemon that leaves nothing to know it by: no environment, a session of its own, no parent of the family.
DAEMON = """
import os, time
print("a\\nb", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("c", flush=True)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
time.sleep(60)
"""


def daemons() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cmdline() == ["sleep", "600"] and not process.environ():
                found.append(process)
    return found


class TestWhoeverIsKilled:
    """The owner and both supervisors at one moment: nothing but the kernel knows what is left of the family."""

    @pytest.fixture
    def daemon(self, tmp_path: Path) -> Iterator[psutil.Process]:
        without = "from partitune.execution.processes import cgroup; cgroup.own_cgroup = lambda: None\n"
        code, earlier = (without if self.without_cgroup else "") + ABANDON, daemons()
        subprocess.run([sys.executable, "-c", code, str(tmp_path), DAEMON], check=True, cwd=ROOT)
        wait_until(lambda: daemons() != earlier)
        (made,) = (process for process in daemons() if process not in earlier)
        yield made
        with suppress(psutil.NoSuchProcess):
            made.kill()

    without_cgroup = True

    def test_what_cannot_be_proved_is_said_and_keeps_the_record_open(
        self, node: Node, daemon: psutil.Process, tmp_path: Path
    ) -> None:
        left = (
            f"process {daemon.pid} (sleep 600), which may be of it: its supervisors were killed before they saw its end"
        )
        for _ in range(2):
            (said,) = node.clean()
            assert said.endswith(f"processes ended, left: {left}")
        with pytest.raises(NodeLost, match=re.escape(f"trial left left {left} (if that is somebody else's, remove ")):
            node.start("engine", "t", plan(*SLEEP), None)
        assert daemon.is_running()  # it may be somebody else's
        assert [start.trial for start in Ledger(tmp_path / "started").starts()] == ["left"]
        daemon.kill()
        wait_until(lambda: start_ticks(daemon.pid) is None)
        (said,) = node.clean()
        assert said.endswith("0 processes ended, nothing is left")
        assert Ledger(tmp_path / "started").starts() == []

    def test_where_the_record_says_how_it_ended_nobody_is_suspected(self, node: Node, tmp_path: Path) -> None:
        node.start("engine", "t", python(FAMILY), None)
        wait_until(lambda: node.log("engine").count("\n") == 3)
        (start,) = Ledger(tmp_path / "started").starts()
        assert not start.ended
        assert start.engine is not None
        os.kill(start.engine.pid, signal.SIGKILL)
        wait_until(lambda: not node.state("engine").running)
        assert Ledger(tmp_path / "started").again(start).ended
        assert node.stop("engine", 1.0) == ()


@pytest.mark.skipif(own_cgroup() is None, reason="no cgroup of version 2 can be made here")
class TestCgroup(TestWhoeverIsKilled):
    without_cgroup = False

    def test_what_cannot_be_proved_is_said_and_keeps_the_record_open(
        self, node: Node, daemon: psutil.Process, tmp_path: Path
    ) -> None:
        """Here it can be."""
        (start,) = Ledger(tmp_path / "started").starts()
        assert Path(start.cgroup).is_dir()
        (said,) = node.clean()
        assert said.endswith("processes ended, nothing is left")
        assert start_ticks(daemon.pid) is None
        assert not Path(start.cgroup).exists()
        assert Ledger(tmp_path / "started").starts() == []
