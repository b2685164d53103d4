"""Real Ray nodes as child processes, in an environment that has everything but partitune; ended by their own pids."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from sysconfig import get_paths

START_S = 90.0
#: Starts of a head before it is given up.
ATTEMPTS = 3


def environment_without_partitune(folder: Path) -> Path:
    """The Python of a new environment with every installed package but partitune."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for entry in Path(get_paths()["purelib"]).iterdir():
        if "partitune" not in entry.name:
            (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [int(one.getsockname()[1]) for one in sockets]


@contextmanager
def head(
    python: Path, cpus: int, env: Mapping[str, str], port: int | None = None, gpus: int = 0
) -> Iterator[tuple[str, int]]:
    """A head: the address of its job server, and the port that nodes join (any free one, or `port`).

    Ray believes in its `gpus`. On a busy machine it ends a node whose agents take more than 15 s to start (ray 2.60,
    `WaitForDashboardAgentPorts`): such a head is started again.
    """
    for attempt in range(ATTEMPTS):
        with ExitStack() as stack:
            try:
                started = stack.enter_context(_head(python, cpus, env, port, gpus))
            except OSError:
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            yield started
            return


@contextmanager
def _head(python: Path, cpus: int, env: Mapping[str, str], port: int | None, gpus: int) -> Iterator[tuple[str, int]]:
    free, dashboard, client = free_ports(3)
    port = free if port is None else port
    folder = tempfile.mkdtemp(prefix="pt")  # short: socket paths are limited to 107 bytes
    own = ["--head", f"--num-gpus={gpus}", f"--port={port}", f"--dashboard-port={dashboard}"]
    own += [f"--ray-client-server-port={client}"]
    try:
        with _node(python, [*own, f"--temp-dir={folder}"], cpus, env) as process:
            address = f"http://127.0.0.1:{dashboard}"
            _wait_for(address, process, Path(folder))
            yield address, port
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def worker_node(python: Path, port: int, cpus: int, env: Mapping[str, str]) -> Iterator[None]:
    """One more node of the head at `port`; it joins while the caller goes on."""
    with _node(python, [f"--address=127.0.0.1:{port}"], cpus, env):
        yield


@contextmanager
def _node(python: Path, own: list[str], cpus: int, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    agent, agent_grpc, runtime_env = free_ports(3)
    command = [str(python), "-m", "ray.scripts.scripts", "start", "--block", *own, f"--num-cpus={cpus}"]
    command += [f"--dashboard-agent-listen-port={agent}", f"--dashboard-agent-grpc-port={agent_grpc}"]
    command += [f"--runtime-env-agent-port={runtime_env}", "--object-store-memory=100000000"]
    command += ["--min-worker-port=0", "--max-worker-port=0"]
    outside = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "RAY_ADDRESS")}
    process = subprocess.Popen(
        command, env={**outside, **env}, cwd=tempfile.gettempdir(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)  # ends its children as well
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(address: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_S
    while not (_answers(address) and list(folder.glob("session_latest/metrics_export_port_*"))):  # the last to be there
        if process.poll() is not None or time.monotonic() > deadline:
            raise ChildProcessError(f"Ray did not come up at {address}")
        time.sleep(0.3)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/api/version", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True  # it wants a token
    except OSError:
        return False


def processes_with(text: str) -> list[int]:
    """Processes of this machine that carry `text` in their command or environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # gone, or another user's
    return found


def run_partitune(*arguments: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """One command in a process of its own, from `cwd`."""
    root = str(Path(__file__).parent.parent)
    whole = {**os.environ, "PYTHONPATH": root, **env}
    command = [sys.executable, "-m", "partitune", *arguments]
    return subprocess.run(command, cwd=cwd, env=whole, capture_output=True, text=True, timeout=180, check=False)
