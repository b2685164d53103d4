"""A search space and a runner whose engine is the fake one: what the tests of the life cycle share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from partitune.candidate import Candidate, FlagValue
from partitune.execution.processes.ledger import MARKER
from partitune.execution.processes.node import LocalNodes
from partitune.execution.processes.process_supervisor import start_ticks
from partitune.execution.server.server_driver import ServerDriver
from partitune.execution.server.setup import Setup
from partitune.execution.server.setup_checks import setup_for
from partitune.planning.resolve import resolve
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from tests.fake_engine import ACT, PROGRAM

SPACE = {
    "kind": "search_space",
    "name": "fake",
    "model": "qwen3-8b",
    "cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": "L40S"},
    "parallel": {"tp": 1, "pp": 2},
    "engine": {"name": "vllm", "version": "0.32.0"},
    "workload": {"kind": "random", "requests": 24, "prompt_tokens": 16, "output_tokens": 12, "concurrency": 8},
    "knobs": {"max_num_seqs": [8, 16]},
    "budget": {"trials": 4},
}
LIMITS: Mapping[str, float] = {
    "spawn": 20, "rendezvous": 20, "load": 20, "capture": 20, "ready": 20, "probe": 5, "window": 30,
    "stall": 3, "stop": 3,
}  # fmt: skip


def fake_setup(
    limits: Mapping[str, float] = LIMITS,
    benchmark: Mapping[str, object] | None = None,
    cluster: Mapping[str, object] | None = None,
    **runner: object,
) -> Setup:
    space = SearchSpace.from_mapping({**SPACE, "cluster": cluster or SPACE["cluster"]}, source="fake.yaml")
    settings = {
        "kind": "runner", "name": "fake", "driver": "vllm", "engine_command": list(PROGRAM),
        "limits_s": {**LIMITS, **limits},
        "benchmark": {"warmup_requests": 2, **(benchmark or {})}, **runner,
    }  # fmt: skip
    return setup_for(resolve(space), space, Runner.from_mapping(settings, source="runner.yaml"))


@dataclass(frozen=True)
class Bench:
    """A folder with everything a driver keeps."""

    folder: Path

    def driver(self, made: Setup | None = None) -> ServerDriver:
        return ServerDriver(made or fake_setup(), LocalNodes(self.folder), self.folder / "references")

    def records(self) -> list[Path]:
        return sorted((self.folder / "started").glob("*.jsonl"))

    def orphans(self) -> list[str]:
        """Living processes that carry a marker of a trial which is recorded or has logs here."""
        trials = {path.name for path in (self.folder / "trials").glob("*")}
        return [
            f"{process.pid} {process.name()}"
            for process in psutil.process_iter()
            if (marker := marker_of(process.pid)) and marker.partition("/")[0] in trials
        ]


def marker_of(pid: int) -> str | None:
    """The marker in a living process's environment."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    if start_ticks(pid) is None or pid == os.getpid():
        return None
    found = [part for part in environment.split(b"\0") if part.startswith(f"{MARKER}=".encode())]
    return found[0].decode().partition("=")[2] if found else None


def candidate(*acts: str, partition: tuple[int, ...] = (20, 16), **flags: FlagValue) -> Candidate:
    told: dict[str, FlagValue] = {ACT: ",".join(acts)} if acts else {}
    return Candidate(partition, {**told, **flags})
