"""Stand-ins for Slurm and Kubernetes: their commands as small programs, and one controller that holds the jobs.

Decision: jobs are children of the controller, which the test starts, as those of a real cluster are nobody's children
here: whether they end is up to the runner's scripts alone. The controller fails the calls that it is told to fail.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol", "srun", "kubectl")
CLIENT = """#!{python} -SE
import json, os, socket, sys
name = os.path.basename(sys.argv[0])
if name == "srun":
    words = [word for word in sys.argv[1:]]
    while words[0].startswith("--"):
        words.pop(0)
    os.execvp(words[0], words)
with socket.socket(socket.AF_UNIX) as line:
    line.connect({socket!r})
    line.sendall(json.dumps([name, sys.argv[1:], dict(os.environ), os.getcwd()]).encode() + b"\\n")
    code, out, err = json.loads(line.makefile().readline())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""
#: How a call fails: before anything is done, or after.
REFUSED, ACCEPTED = "refused", "accepted"


class Controller:
    """What a cluster knows: its jobs, and what each command answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: Counter[str] = Counter()
        self.jobs: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self.stored: dict[str, str] = {}
        self.lock = threading.Lock()

    def answer(self, program: str, words: list[str], env: dict[str, str], folder: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of one command."""
        name = program
        if program == "kubectl":
            name += f" {next(word for word in words if not word.startswith('-'))}"
        with self.lock:
            self.calls[name] += 1
            (self.folder / "calls").write_text(json.dumps(self.calls))
            fault = self._fault(name)
        if delay := fault.get("delay_s"):
            time.sleep(delay)
        if fault.get("how") == REFUSED:
            return 1, "", f"{name}: Unable to contact the controller (connect failure)\n"
        env = {key: value for key, value in env.items() if not key.startswith("PARTITUNE")}
        code, out = getattr(self, program)(words, env, folder)
        if fault.get("how") == ACCEPTED:
            return 1, "", f"{name}: Socket timed out on send/recv operation\n"
        return code, out, ""

    def _fault(self, name: str) -> dict[str, Any]:
        faults = json.loads((self.folder / "faults.json").read_text())
        for fault in faults:
            if fault["program"] == name and (fault["calls"] == "all" or self.calls[name] in fault["calls"]):
                return dict(fault)
        return {}

    def start(self, name: str, command: list[str], env: dict[str, str], log: Path, folder: str) -> int:
        """Start a job."""
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command, env=env, cwd=folder, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        self.jobs[process.pid] = (name, process)
        return process.pid

    def running(self, name: str | None = None) -> list[int]:
        """The jobs of that name that run."""
        return [number for number, (of, process) in self.jobs.items() if name in (None, of) and process.poll() is None]

    def end(self, numbers: list[int]) -> None:
        """End jobs, and wait for it."""
        for number in numbers:
            process = self.jobs[number][1]
            os.killpg(number, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            with suppress(ProcessLookupError):
                os.killpg(number, signal.SIGKILL)
            process.wait()

    def sbatch(self, words: list[str], env: dict[str, str], folder: str) -> tuple[int, str]:
        options = dict(word.removeprefix("--").partition("=")[::2] for word in words if word.startswith("--"))
        first = next(place for place, word in enumerate(words) if not word.startswith("--"))
        env |= {"SLURM_JOB_NODELIST": "here", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0"}
        number = self.start(options["job-name"], ["bash", *words[first:]], env, Path(options["output"]), folder)
        return 0, f"{number};cluster\n"

    def squeue(self, words: list[str], _: dict[str, str], __: str) -> tuple[int, str]:
        name = next(word.removeprefix("--name=") for word in words if word.startswith("--name="))
        return 0, "".join(f"{number}\n" for number in self.running(name))

    def scancel(self, words: list[str], _: dict[str, str], __: str) -> tuple[int, str]:
        names = [word.removeprefix("--name=") for word in words if word.startswith("--name=")]
        self.end(self.running(names[0]) if names else [int(words[0])])
        return 0, ""

    def scontrol(self, words: list[str], _: dict[str, str], __: str) -> tuple[int, str]:
        if words[:2] == ["show", "hostnames"]:
            return 0, "127.0.0.1\n"
        state = (self.folder / "state").read_text() if (self.folder / "state").exists() else "COMPLETED"
        return 0, f"JobId={words[-1]} JobState={state} Reason=None\n"

    def kubectl(self, words: list[str], env: dict[str, str], folder: str) -> tuple[int, str]:
        verb, *words = [word for word in words if not word.startswith("--request-timeout")]
        if verb == "create":
            files = dict(word.removeprefix("--from-file=").split("=", 1) for word in words if "--from-file=" in word)
            return 0, json.dumps({"kind": "ConfigMap", "name": words[1], "files": files})
        if verb == "apply":
            return self._apply(Path(folder, words[1]).read_text(), env, folder)
        if verb == "delete":
            self.end(self.running(words[1]))
            self.stored.pop(words[1], None)
            return 0, ""
        if verb == "logs":
            return 0, (self.folder / "pod.log").read_text()
        if words[0] == "pods":
            return 0, (self.folder / "disruption").read_text() if (self.folder / "disruption").exists() else ""
        (process,) = (process for name, process in self.jobs.values() if name == words[1])
        code = process.poll()
        return 0, "/" if code is None else "1/" if code == 0 else "/1"

    def _apply(self, text: str, env: dict[str, str], folder: str) -> tuple[int, str]:
        if text.startswith("{"):
            given = json.loads(text)
            self.stored[given["name"]] = given["files"]
            return 0, ""
        (self.folder / "job.yaml").write_text(text)
        name = re.search(r"^  name: (.*)$", text, re.MULTILINE)[1]  # type: ignore[index]
        port = re.search(r'pod.sh, \S+, "(\d+)"', text)[1]  # type: ignore[index]
        if self.running(name):
            return 0, ""  # applied again
        trial = self.folder / "trial"
        trial.mkdir(exist_ok=True)
        for inside, file in self.stored[name].items():  # type: ignore[attr-defined]
            text = Path(file).read_text()
            if inside == "pod.sh":  # the paths of a pod are this folder's
                text = text.replace("/tmp", "/trial").replace("/trial", str(trial))
            (trial / inside).write_text(text)
        self.start(name, ["bash", str(trial / "pod.sh"), name, port], env, self.folder / "pod.log", folder)
        return 0, ""


def serve(socket: str, folder: Path) -> None:
    """Answer until the test ends this."""
    controller = Controller(folder)

    class Line(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(json.dumps(controller.answer(*json.loads(self.rfile.readline()))).encode() + b"\n")

    server = socketserver.ThreadingUnixStreamServer(socket, Line)

    def leave(*_: object) -> None:
        controller.end(controller.running())
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGUSR1, lambda *_: (folder / "running").write_text(json.dumps(controller.running())))
    print("ready", flush=True)
    server.serve_forever()


class Cluster:
    """A running controller, as a test sees it."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self._process = process

    @property
    def calls(self) -> Counter[str]:
        """How often each command was called."""
        file = self.folder / "calls"
        return Counter(json.loads(file.read_text()) if file.exists() else {})

    def running(self) -> list[int]:
        """The jobs that run."""
        (self.folder / "running").unlink(missing_ok=True)
        self._process.send_signal(signal.SIGUSR1)
        while not (self.folder / "running").exists() or not (self.folder / "running").read_text():
            time.sleep(0.01)
        return list(json.loads((self.folder / "running").read_text()))


@contextmanager
def scripted(folder: Path, faults: list[dict[str, Any]] = [], **files: str) -> Iterator[Cluster]:  # noqa: B006 - read
    """A cluster whose commands are in `programs`; `files` are what it answers: `state`, `disruption`."""
    (folder / "bin").mkdir(parents=True)
    (folder / "faults.json").write_text(json.dumps(faults))
    for name, text in files.items():
        (folder / name).write_text(text)
    socket = f"/tmp/partitune-scheduler-{os.getpid()}-{time.monotonic_ns()}"  # a path of a socket has to be short
    for name in PROGRAMS:
        (folder / "bin" / name).write_text(CLIENT.format(python=sys.executable, socket=socket))
        (folder / "bin" / name).chmod(0o755)
    command = [sys.executable, __file__, socket, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Cluster(folder, process)
    finally:
        process.terminate()
        process.communicate()
        Path(socket).unlink(missing_ok=True)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
