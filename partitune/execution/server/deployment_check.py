"""What really runs, held against what was asked: a wrong partition that is measured is worse than none.

Decision: the strongest witness decides. vLLM's workers say which layers they hold; where nobody can be asked (SGLang,
a container) the weights in the logs must not look like those of the engine's own split, which is what runs when the
variable did not arrive. Placement, scheduling and KV blocks are compared where they were asked for, never where they
were only predicted: a prediction that fails is ours, not the engine's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from partitune.candidate import Candidate
from partitune.engines.deployment import Deployment
from partitune.engines.vllm.pipelining import Regime
from partitune.errors import LaunchFailed, Unhealthy
from partitune.execution.processes.launch import LaunchPlan
from partitune.execution.readout.engine_readout import Counters, LogReading, asynchronous_in, read_logs
from partitune.execution.server.http_probe import WorkerLayers, server_info, worker_layers
from partitune.execution.server.startup import RunningServer
from partitune.partition import Partition, format_partition
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate


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
    plan = server.plan
    reading = read_logs(server.logs())
    if not plan.stage_report:
        return Running(reading, (), reading.is_async)
    layers = worker_layers(plan.url, server.limits.probe)
    try:
        said = asynchronous_in(server_info(plan.url))
    except Unhealthy:
        said = None  # a version without that page
    return Running(reading, layers, reading.is_async if said is None else said)


def check(problem: Problem, deployment: Deployment, plan: LaunchPlan, found: Running, counters: Counters) -> None:
    """Raise LaunchFailed with every difference."""
    wrong = [
        *_partition(problem, plan, found),
        *_placement(plan, found.reading),
        *_scheduling(deployment, found),
        *_kv(deployment, counters),
    ]
    if wrong:
        raise LaunchFailed(f"the engine does not run what was asked: {'; '.join(wrong)}")


def regime(problem: Problem, deployment: Deployment, found: Running) -> str:
    """How it fills its pipeline: as read, and where nothing was read as predicted."""
    predicted = problem.engine.flow(deployment).name
    if predicted not in {one.value for one in Regime}:
        return predicted
    first = Regime(predicted)
    runner = found.reading.runner or ("v1" if first in (Regime.R1, Regime.R2) else "v2")
    is_async = first.asynchronous if found.is_async is None else found.is_async
    if runner == "v1":
        return (Regime.R1 if is_async else Regime.R2).value
    return (Regime.R3 if is_async else Regime.R4).value


def _partition(problem: Problem, plan: LaunchPlan, found: Running) -> Iterator[str]:
    asked = format_partition(plan.partition)
    if found.layers:
        rows = sorted({(row.stage, row.first, row.end) for row in found.layers})
        held = Partition(end - first for _, first, end in rows)
        if rows != [(stage, *layers) for stage, layers in enumerate(held.ranges)]:
            told = "; ".join(f"stage {stage} holds layers {first} to {end - 1}" for stage, first, end in rows)
            yield f"its workers do not hold one partition: {told}"
        elif held != plan.partition:
            yield f"the partition is {held.text}, asked for was {asked} ({plan.partition_env})"
    elif found.reading.own_split is not None and found.reading.own_split != plan.partition:
        own = format_partition(found.reading.own_split)
        yield f"the engine split the layers by itself ({own}) and did not see {plan.partition_env}={asked}"
    elif _looks_like_the_default(problem, plan.partition, found.reading):
        own = format_partition(problem.default_partition)
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


def _placement(plan: LaunchPlan, reading: LogReading) -> Iterator[str]:
    for stage, node in enumerate(plan.stage_nodes or ()):
        seen = reading.node_of_stage.get(stage)
        if seen is not None and len(plan.processes) > 1 and seen != (node,):
            yield f"stage {stage} runs on node {', '.join(map(str, seen))}, planned was node {node}"


def _scheduling(deployment: Deployment, found: Running) -> Iterator[str]:
    asked = deployment.knobs.get("async_scheduling")
    if asked is not None and found.is_async is not None and asked != found.is_async:
        yield f"async scheduling is {_on(found.is_async)}, asked for was {_on(bool(asked))}"
    runner = found.reading.runner
    if deployment.runner != "auto" and runner is not None and runner != deployment.runner:
        yield f"the model runner is {runner}, asked for was {deployment.runner}"


def _kv(deployment: Deployment, counters: Counters) -> Iterator[str]:
    asked = deployment.knobs.get("num_gpu_blocks_override")
    if asked is not None and counters.kv_blocks is not None and asked != counters.kv_blocks:
        yield f"the KV cache has {counters.kv_blocks} blocks, asked for were {asked}"


def _on(value: bool) -> str:
    return "on" if value else "off"
