"""What really runs and what it says, held against what was asked: to measure a wrong partition is worse than nothing.

Decision: the strongest witness decides. Workers say which layers they hold; where nobody can be asked the weights in
the logs must not look like those of the engine's own split, which is what runs when the variable did not arrive.
Placement, scheduling and KV blocks are compared where they were asked for, never where they were only predicted: a
prediction that fails is ours, not the engine's.

Moving layers between stages must not change what the model says, which catches silent corruption. The default partition
runs first in every study, and its text is kept on the machine that measures; a candidate that says something else is
invalid however fast it is. Only scheduling and memory flags may differ from those of the reference: what changes the
arithmetic (types, kernels, parallel sizes) has a reference of its own, or none.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from partitune.candidate import Candidate, FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.readout import Counters, LogReading
from partitune.errors import BenchmarkFailed, LaunchFailed, Unhealthy
from partitune.execution.processes.launch import LaunchCommands
from partitune.execution.readout.engine_readout import read_logs
from partitune.execution.server.http_probe import WorkerLayers, server_config, worker_layers
from partitune.execution.server.running_server import RunningServer
from partitune.partition import Partition
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.spec.own_file import own_folder


@dataclass(frozen=True, slots=True)
class Running:
    """What is known of a running engine."""

    reading: LogReading
    layers: tuple[WorkerLayers, ...]  # empty: nobody could be asked
    is_async: bool | None

    @property
    def stages(self) -> dict[int, WorkerLayers]:
        """One worker of every stage, the one with the most weights."""
        return {row.stage: row for row in sorted(self.layers, key=lambda row: row.weight_bytes)}


def look(server: RunningServer) -> Running:
    """Read logs and ask the workers. Raises Unhealthy where a question that must be answered is not."""
    launch = server.launch
    reading = read_logs(server.logs(), server.readout)
    if launch.layer_report is None:
        return Running(reading, (), reading.is_async)
    layers = worker_layers(launch.url, launch.layer_report, server.limits.probe, launch.key)
    try:
        is_async = server.readout.schedules_ahead(server_config(launch.url, launch.layer_report, launch.key))
    except Unhealthy:
        is_async = None  # a version without that page, or another page
    return Running(reading, layers, reading.is_async if is_async is None else is_async)


def check(
    problem: Problem, deployment: Deployment, launch: LaunchCommands, running: Running, counters: Counters
) -> None:
    """Raise LaunchFailed with every difference."""
    differences = [
        *_partition(problem, launch, running),
        *_placement(launch, running.reading),
        *problem.engine.readout.differences(deployment, running.reading, running.is_async, counters.kv_blocks),
    ]
    if differences:
        raise LaunchFailed(f"the engine does not run what was asked: {'; '.join(differences)}")


def flow_name(problem: Problem, deployment: Deployment, running: Running) -> str:
    """How it fills its pipeline: as read, and where nothing was read as predicted."""
    predicted = problem.engine.flow(deployment).name
    return problem.engine.readout.flow_name(predicted, running.reading, running.is_async)


def _partition(problem: Problem, launch: LaunchCommands, running: Running) -> Iterator[str]:
    asked, variable = Partition(launch.partition).text, problem.engine.launch.partition_env
    if running.layers:
        rows = sorted({(row.stage, row.first, row.end) for row in running.layers})
        held = Partition(end - first for _, first, end in rows)
        if rows != [(stage, *layers) for stage, layers in enumerate(held.ranges)]:
            told = "; ".join(f"stage {stage} holds layers {first} to {end - 1}" for stage, first, end in rows)
            yield f"its workers do not hold one partition: {told}"
        elif held != launch.partition:
            yield f"the partition is {held.text}, asked for was {asked} ({variable})"
    elif running.reading.own_split is not None and running.reading.own_split != launch.partition:
        own = Partition(running.reading.own_split).text
        yield f"the engine split the layers by itself ({own}) and did not see {variable}={asked}"
    elif _looks_like_the_default(problem, launch.partition, running.reading):
        own = problem.default_partition.text
        yield f"the weights of the stages are those of the engine's own split {own}, asked for was {asked}"


def _looks_like_the_default(problem: Problem, asked: tuple[int, ...], reading: LogReading) -> bool:
    """True when the stages' weights are far nearer to the engine's own split than to what was asked for."""
    stages = range(len(asked))
    weights = [
        max((gib for (at, _), gib in reading.weights_gib.items() if at == stage), default=0.0) for stage in stages
    ]
    if asked == problem.default_partition or not all(weights):
        return False
    distances = []
    for partition in (asked, problem.default_partition):
        expected = [memory.weight_bytes for memory in ResolvedCandidate(problem, Candidate(partition)).memory]
        shares = zip(weights, expected, strict=True)
        distances.append(math.dist(*zip(*((w / sum(weights), e / sum(expected)) for w, e in shares), strict=True)))
    return distances[1] < distances[0] / 2


def _placement(launch: LaunchCommands, reading: LogReading) -> Iterator[str]:
    for stage, node in enumerate(launch.stage_nodes or ()):
        seen = reading.node_of_stage.get(stage)
        if seen is not None and len(launch.processes) > 1 and seen != (node,):
            yield f"stage {stage} runs on node {', '.join(map(str, seen))}, planned was node {node}"


def check_text(
    folder: Path, problem: Problem, candidate: Candidate, arguments: Mapping[str, FlagValue], text: str
) -> None:
    """Keep the text of a default partition; hold that of any other against it, if there is one.

    Args:
        folder: of the texts, one file each.
        problem: that was measured.
        candidate: what ran.
        arguments: flags of the site.
        text: what the server said.

    Raises:
        BenchmarkFailed: they differ.
    """
    file = folder / f"{_reference_key(problem, candidate, arguments)}.txt"
    if candidate.partition == problem.default_partition:
        own_folder(folder)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
        return
    with suppress(FileNotFoundError):
        reference = file.read_text(encoding="utf-8")
        if text != reference:
            raise BenchmarkFailed(
                f"the server says {text!r} where the default partition said {reference!r} to the same greedy request: "
                "the output is corrupt, or not deterministic (then set reference_text: false in the runner)"
            )


def _reference_key(problem: Problem, candidate: Candidate, arguments: Mapping[str, FlagValue]) -> str:
    flags = {**problem.baseline, **candidate.settings, **arguments}
    harmless = problem.engine.launch.scheduling_flags
    kept = sorted((name, value) for name, value in flags.items() if name not in harmless)
    about = [problem.model, problem.engine.name, problem.version, problem.runner, problem.placement.layout.tp, kept]
    return hashlib.sha256(json.dumps([*about, problem.stages]).encode()).hexdigest()[:16]
