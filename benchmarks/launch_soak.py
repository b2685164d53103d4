"""A hundred starts of the fake engine while somebody kills at random: does anything stay behind, is anything lost?

    python -m benchmarks.launch_soak [--launches 100] [--seed N] [--only "nodes of Ray"]

Half of the starts come from `partitune search` on this machine, half from one whose nodes are Ray's. Victims are the
search, a Ray worker, the engine's first process, one of its ranks, either supervisor, and the load generator. After a
kill of the search the same command is started again. Every finished trial has to stay as it was; at the end no process
with a trial's marker may live, and the janitor has to leave an empty ledger. Prints one line a half and exits with 1
when a promise is broken.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml

from partitune.candidate import Result
from partitune.errors import StoreError
from partitune.execution.processes.ledger import Ledger, RecordedStart
from partitune.execution.processes.node import Node
from partitune.execution.processes.process_supervisor import descendants, start_ticks
from partitune.store import Store
from tests.fake_engine import PROGRAM
from tests.fake_setup import LIMITS, SPACE, marker_of
from tests.ray_nodes import head

ROOT = Path(__file__).parent.parent
KNOBS = {"max_num_seqs": [8, 12, 16, 24, 32], "max_num_batched_tokens": [64, 128, 256, 512, 1024]}
VICTIMS = ("search", "search", "engine", "engine", "rank", "outer supervisor", "inner supervisor", "load generator")
HALVES = ("this machine", "nodes of Ray")
#: Commands of Ray's workers that run something of ours; the others are Ray's own, and its node ends with them.
ACTORS = ("ray::NodeAgent", "ray::_Worker", "ray::Worker")
#: Seconds between two kills.
PAUSE_S = (0.2, 5.0)
#: Seconds after which a process whose search is gone counts as left behind.
GONE_S = 60.0


@dataclass
class Half:
    """One search that is disturbed until it has started the engine often enough."""

    folder: Path
    address: str | None  # of a Ray cluster
    kills: Counter[str] = field(default_factory=Counter)
    process: subprocess.Popen[bytes] | None = None
    broken: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        """Write search space and runner."""
        space = {**SPACE, "knobs": KNOBS, "budget": {"trials": 100_000, "screen": 8, "finalists": 0}}
        runner: dict[str, object] = {
            "kind": "runner", "name": "fake", "driver": "vllm", "engine_command": list(PROGRAM),
            "benchmark": {"warmup_requests": 2}, "limits_s": {**LIMITS, "probe": 20.0},
        }  # fmt: skip
        if self.address:
            runner["nodes"] = {"start": "ray"}
            space["cluster"] = {"nodes": 1, "gpus_per_node": 2, "gpu": "L40S"}
        (self.folder / "fake.yaml").write_text(yaml.safe_dump(space))
        (self.folder / "runner.yaml").write_text(yaml.safe_dump(runner))

    @property
    def environment(self) -> Mapping[str, str]:
        """Of the search: a state folder of its own."""
        return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(self.folder / "state")}

    @property
    def state(self) -> Path:
        """The machine's ledger and logs."""
        found = list((self.folder / "state" / "partitune").glob("*"))
        return found[0] if found else self.folder / "state"

    def start(self) -> None:
        """Start the search, or go on with it."""
        command = [sys.executable, "-m", "partitune", "search", "fake.yaml", "--runner", "runner.yaml"]
        command += ["--db", "results.db", "--quiet"]
        command += ["--ray-address", self.address] if self.address else []
        with (self.folder / "said").open("ab") as said:
            self.process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=said, stderr=said)

    def launches(self) -> int:
        """Engine starts so far."""
        return len(list((self.state / "trials").glob("*/node0.log")))

    def stored(self) -> list[Result]:
        """Finished trials, in order."""
        if not (self.folder / "results.db").exists():
            return []
        try:
            with Store.open(self.folder / "results.db", read_only=True) as store:
                return [trial.result for trial in store.trials("fake")] if store.studies() else []
        except StoreError:
            return []  # killed, or about to go on, before it has tables

    def starts(self) -> list[RecordedStart]:
        """Recorded starts whose engine lives."""
        return [one for one in Ledger(self.state / "started").starts() if one.engine is not None and one.engine.lives]

    def living(self) -> list[int]:
        """Processes of a trial."""
        trials = {path.name for path in (self.state / "trials").glob("*")}
        marked = ((pid, marker_of(pid)) for pid in psutil.pids())
        return [pid for pid, marker in marked if marker is not None and marker.partition("/")[0] in trials]

    def victims(self, kind: str) -> list[int]:
        """Processes of that kind that live now."""
        assert self.process is not None
        if kind == "search":
            return [self.process.pid]
        if kind == "Ray worker":
            actors = [pid for pid in psutil.pids() if name_of(pid).startswith(ACTORS)]
            return [pid for pid in actors if f"XDG_STATE_HOME={self.folder / 'state'}".encode() in environ(pid)]
        engines = [one for one in self.starts() if one.name == "node0"]
        if kind == "load generator":
            return [one.engine.pid for one in self.starts() if one.name == "load" and one.engine is not None]
        if kind == "rank":
            return [pid for one in engines if one.engine is not None for pid in descendants(one.engine.pid)]
        if kind == "engine":
            return [one.engine.pid for one in engines if one.engine is not None]
        return [
            one.supervisors[0 if kind == "outer supervisor" else 1].pid for one in engines if len(one.supervisors) == 2
        ]

    def disturb(self, wanted: int, chance: random.Random) -> None:
        """Kill until the engine was started `wanted` times."""
        kinds = VICTIMS + (("Ray worker",) * 3 if self.address else ())
        before: list[Result] = []
        ended, ended_at, killed_at = 0, -1, -1  # searches that ended by themselves; starts when one did, was killed
        self.start()
        while self.launches() < wanted:
            time.sleep(chance.uniform(*PAUSE_S))
            now = self.stored()
            if now[: len(before)] != before:
                self.broken.append("a finished trial changed or went")
            before = now
            assert self.process is not None
            if self.process.poll() is not None:
                ended = ended + 1 if self.launches() == ended_at else 1
                ended_at = self.launches()
                # A machine that goes while it is looked over ends a search with a message; without a kill none ends.
                if ended > 2 or not self.kills:
                    self.broken.append(f"the search ended by itself: {self.said()}")
                    break
                self.start()
                continue
            kind = chance.choice(kinds)
            slow = kind in ("search", "Ray worker")  # to come back from; seldom before anything was started again
            if slow and self.launches() == killed_at and chance.random() > 0.1:
                continue
            found = self.victims(kind)
            for pid in chance.sample(found, min(1, len(found))):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.kills[kind] += 1
                    killed_at = self.launches() if slow else killed_at
            if kind == "search":
                self.process.wait()
                self.start()
        self.finish(before)

    def finish(self, before: list[Result]) -> None:
        """End the search with Ctrl-C and look for what is left."""
        assert self.process is not None
        for _ in range(4):  # as a person would: one that hits it while it imports can be lost
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GONE_S / 4)
        if self.process.poll() is None:
            self.broken.append("the search does not end by Ctrl-C")
            self.process.kill()
            self.process.wait()
        if self.stored()[: len(before)] != before:
            self.broken.append("a finished trial went at the end")
        deadline = time.monotonic() + GONE_S
        while (left := self.living()) and time.monotonic() < deadline:
            time.sleep(0.5)
        self.broken += [f"left behind: process {pid} ({name_of(pid)})" for pid in left]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        ledger = Ledger(self.state / "started")
        while ledger.starts() and time.monotonic() < deadline + GONE_S:  # a Ray worker may still be looking itself
            Node("127.0.0.1", self.state).clean()
            time.sleep(0.5)
        for one in ledger.starts():
            self.broken.append(
                f"the ledger keeps {one.trial}: {one.unclean or f'owner {name_of(one.owner.pid)} lives'}"
            )

    def said(self) -> str:
        """Its last words."""
        return (self.folder / "said").read_text()[-2000:]

    def report(self, name: str) -> None:
        """One line."""
        outcomes = Counter(result.outcome.value for result in self.stored())
        killed = ", ".join(f"{count} × {kind}" for kind, count in sorted(self.kills.items()))
        found = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        state = "; ".join(self.broken) or "0 processes left, 0 finished trials lost"
        print(f"{name}: {self.launches()} starts; killed {killed}; trials: {found}; {state}", flush=True)


def start_ray(stack: ExitStack, environment: Mapping[str, str]) -> str:
    """The address of a Ray of two imagined GPUs. On a machine under load its node can miss its own time limits."""
    for _ in range(5):
        attempt = ExitStack()
        _, port = attempt.enter_context(head(Path(sys.executable), 2, environment, gpus=2))
        address = f"127.0.0.1:{port}"
        text = f"import ray, time; ray.init(address='{address}', log_to_driver=False); time.sleep(30); ray.nodes()"
        if subprocess.run([sys.executable, "-c", text], check=False, capture_output=True).returncode == 0:
            stack.enter_context(attempt)
            return address
        attempt.close()
    raise SystemExit("Ray does not start on this machine")


def environ(pid: int) -> bytes:
    """The environment of a process; empty when it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def name_of(pid: int) -> str:
    """Its command."""
    with suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())[:200]
    return "gone" if start_ticks(pid) is None else "?"


def main() -> int:
    """Both halves."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--launches", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", choices=HALVES)
    words = parser.parse_args()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a run in the background, and so would be every search
        signal.signal(signal.SIGINT, signal.default_int_handler)
    print(f"--seed {words.seed}", flush=True)
    chance = random.Random(words.seed)
    halves: dict[str, Half] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak")))
        for name in [words.only] if words.only else HALVES:
            half = halves[name] = Half(folder / name.replace(" ", "-"), None)
            half.folder.mkdir()
            with ExitStack() as cluster:
                if name == "nodes of Ray":
                    half.address = start_ray(cluster, half.environment)
                half.prepare()
                half.disturb(words.launches // (1 if words.only else 2), chance)
                half.report(name)
    return 1 if any(half.broken for half in halves.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
