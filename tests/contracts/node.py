"""What every Node promises, near or far. Subclasses give a `node` fixture."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from partitune.errors import NodeLost
from partitune.execution.processes.launch import ProcessCommand
from partitune.execution.processes.ledger import MARKER
from partitune.execution.processes.node import Node, PortState
from tests.execution.test_process_supervisor import FAMILY, wait_until

LISTEN = (
    "import socket, sys, time; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1);"
    "s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(); time.sleep(60)"
)


def plan(*argv: str, unset: tuple[str, ...] = (), **env: str) -> ProcessCommand:
    return ProcessCommand(0, "127.0.0.1", argv, env, unset)


def python(text: str, *words: str) -> ProcessCommand:
    return plan(sys.executable, "-S", "-E", "-c", text, *words)


class NodeContract:
    @pytest.fixture
    def node(self, tmp_path: Path) -> Iterator[Node]:
        raise NotImplementedError

    def test_output_status_and_end_of_a_process_are_seen(self, node: Node) -> None:
        node.start("engine", "t", plan("sh", "-c", "echo out; echo err >&2; exit 3"), None)
        wait_until(lambda: not node.state("engine").running)
        assert node.state("engine").exit_code == 3
        assert node.log("engine") == "out\nerr\n"
        assert node.stop("engine", 1.0) == ()

    def test_a_process_ended_by_a_signal_has_its_number(self, node: Node) -> None:
        node.start("engine", "t", plan("sh", "-c", "kill -9 $$"), None)
        wait_until(lambda: not node.state("engine").running)
        assert node.state("engine").exit_code == -signal.SIGKILL

    def test_the_environment_has_ours_over_the_nodes_own(self, node: Node) -> None:
        asked = plan("env", unset=("HOME",), PATH="/usr/bin:/bin", OURS="a b")
        node.start("engine", "t-1", asked, None)
        wait_until(lambda: not node.state("engine").running)
        found = dict(line.split("=", 1) for line in node.log("engine").splitlines() if "=" in line)
        assert "HOME" not in found
        assert (found["PATH"], found["OURS"], found[MARKER]) == ("/usr/bin:/bin", "a b", "t-1/engine")

    def test_a_stop_ends_the_whole_family(self, node: Node) -> None:
        node.start("engine", "t", python(FAMILY), None)
        wait_until(lambda: node.log("engine").count("\n") == 3)
        assert node.stop("engine", 1.0) == ()  # though the orphan ignores SIGTERM

    def test_a_port_is_free_ours_or_foreign(self, node: Node) -> None:
        port = node.free_port()
        assert node.port_state(port, None) is PortState.FREE
        node.start("engine", "t", python(LISTEN, str(port)), port)
        wait_until(lambda: node.port_state(port, "engine") is PortState.OURS)
        assert node.port_state(port, None) is PortState.FOREIGN
        with pytest.raises(NodeLost, match=f"port {port} of \\S+ is already in use by pid \\d+ \\(.*python"):
            node.start("engine-2", "t", plan("sleep", "60"), port)
        node.stop("engine", 1.0)
        assert node.port_state(port, None) is PortState.FREE

    def test_what_a_process_writes_for_us_is_read(self, node: Node) -> None:
        path = node.scratch_file("t", "result.json")
        assert node.read_file(path) == ""
        node.start("load", "t", plan("sh", "-c", 'printf "{}" > "$0"', path), None)
        wait_until(lambda: not node.state("load").running)
        assert node.read_file(path) == "{}"

    def test_a_clean_machine_has_nothing_to_clean(self, node: Node) -> None:
        assert node.clean() == ()
