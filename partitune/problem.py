"""A search space with every name looked up: the model's layers, the stages' places, the engine, the load.

Decision: this is the last place that sees the file. Whatever a name turns out to mean, or not to mean, is said here
with the file's own line; from here on a candidate is judged against one frozen value that can be pickled to any
worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from partitune.bill import Tariff
from partitune.catalog import at_hand
from partitune.cluster.gpus import gpu
from partitune.cluster.hardware import Placement
from partitune.cluster.links import link
from partitune.cluster.placement import build_placement
from partitune.costs.interface import Floats
from partitune.costs.memory import MemoryModel, StageMemory
from partitune.costs.roofline import RooflineCosts
from partitune.engines import engine
from partitune.engines.interface import Deployment, Engine
from partitune.errors import SpecError
from partitune.model.architecture import Architecture
from partitune.model.reader import load_architecture
from partitune.result import Candidate, Knob
from partitune.sim.inputs import Request
from partitune.sim.workload import RandomWorkload, read_trace
from partitune.spec.objectives import METRICS, Direction
from partitune.spec.search_space import SearchSpace
from partitune.spec.workload import TraceWorkload


@dataclass(frozen=True, slots=True)
class Problem:
    """What is fixed while candidates vary."""

    name: str
    model: str  # as the engine is told: a catalog name or a path
    architecture: Architecture
    placement: Placement
    engine: Engine
    version: str
    runner: str  # vLLM's model runner: auto, v1, v2
    split_rule: str | None
    baseline: Mapping[str, Knob]  # flags and UPPER-CASE environment variables the space fixes or starts from
    requests: tuple[Request, ...]
    concurrency: int | None  # closed load; None: requests come at their arrival times
    goodput: Mapping[str, float]  # limits that a good request keeps; empty: goodput is not asked for
    tariff: Tariff
    limits: Mapping[str, float]  # service-level objectives: metric -> worst value accepted
    costs: RooflineCosts

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.placement.stages

    @property
    def layers(self) -> int:
        """Layers the engine cuts."""
        return len(self.architecture.layers)

    @property
    def default_partition(self) -> tuple[int, ...]:
        """What this engine version does by itself (or the split rule the space names)."""
        return self.engine.default_partition(self.layers, self.stages, self.version, self.split_rule)

    def deployment(self, candidate: Candidate) -> Deployment:
        """The engine start of `candidate`: the baseline overlaid with its knobs."""
        return self.start(candidate.knobs, candidate.partition)

    def start(self, knobs: Mapping[str, Knob], partition: tuple[int, ...] | None = None) -> Deployment:
        """The engine start of these knobs; without a partition the engine splits by itself."""
        return Deployment(
            version=self.version,
            architecture=self.architecture,
            stages=self.stages,
            tp=self.placement.tp,
            gpu=self.placement.gpus[0],
            knobs={**self.baseline, **knobs},
            partition=partition,
            runner=self.runner,
        )

    def stage_memory(self, candidate: Candidate) -> tuple[StageMemory, ...]:
        """Memory of every stage of `candidate`, term by term."""
        return self._memory(self.deployment(candidate)).partition(candidate.partition)

    def kv_bytes(self, candidate: Candidate, known: Sequence[StageMemory] | None = None) -> tuple[int, ...]:
        """Bytes per GPU that every stage of `candidate` gives to KV: what is left, or what the flag says.

        `known` is its `stage_memory`, where that was asked for before.
        """
        given = fixed_kv_bytes(self.engine.effective_knobs(self.deployment(candidate)))
        if given is not None:
            return (given,) * self.stages
        return tuple(int(memory.kv_bytes) for memory in known or self.stage_memory(candidate))

    def kv_bytes_tensor(self, knobs: Mapping[str, Knob]) -> Floats:
        """The same for every (stage, first layer, end layer); -inf where the stage does not fit."""
        deployment = self.start(knobs)
        free = self._memory(deployment).kv_tensor()
        given = fixed_kv_bytes(self.engine.effective_knobs(deployment))
        return free if given is None else np.where(np.isfinite(free), float(given), free)

    def _memory(self, deployment: Deployment) -> MemoryModel:
        return MemoryModel(self.architecture, self.placement, self.engine.memory_settings(deployment))

    def missed_limits(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """How far each limit is missed, as a share of the limit; <= 0 is kept."""
        return {
            name: (metrics[name] - limit if METRICS[name] is Direction.MINIMIZE else limit - metrics[name]) / limit
            for name, limit in self.limits.items()
            if name in metrics  # a run of one output token a request has no time per output token
        }


def fixed_kv_bytes(settings: Mapping[str, Knob]) -> int | None:
    """Bytes per GPU that `kv_cache_memory_bytes` gives to KV on every stage; None: the engine measures what is left."""
    given = settings.get("kv_cache_memory_bytes")
    return given if isinstance(given, int) else None


def pose(space: SearchSpace) -> Problem:
    """Look up every name of `space`.

    Raises:
        SpecError: a name, size or value that means nothing; names the file, the line and what is allowed.
    """
    stages = space.parallel.pp
    with _said_of(space, "model"):
        architecture = load_architecture(at_hand(space.model_path) if space.model_path else space.model)
    with _said_of(space, "engine", "name"):
        chosen = engine(space.engine.name)
    with _said_of(space, "engine", "version"):
        chosen.notes(space.engine.version)
    placement = _place(space)
    _refuse_names_said_elsewhere(space, chosen)
    with _said_of(space, "engine", "split_rule"):
        chosen.default_partition(len(architecture.layers), stages, space.engine.version, space.engine.split_rule)
    requests, concurrency = _requests(space)
    return Problem(
        name=space.name,
        model=str(space.model_path or space.model),
        architecture=architecture,
        placement=placement,
        engine=chosen,
        version=space.engine.version,
        runner=space.engine.runner,
        split_rule=space.engine.split_rule,
        baseline={**space.engine.flags, **space.engine.env},
        requests=requests,
        concurrency=concurrency,
        goodput=space.goodput.limits,
        tariff=Tariff(space.cluster.gpu_hour_price_usd, space.cluster.gpu_power_w),
        limits=dict(space.slo),
        costs=RooflineCosts(
            architecture, placement, expert_kernel=chosen.expert_kernel(architecture, placement.gpus[0])
        ),
    )


def _place(space: SearchSpace) -> Placement:
    cluster, stages = space.cluster, space.parallel.pp
    with _said_of(space, "cluster", "gpu"):
        gpus = [gpu(name) for name in cluster.gpu_of_stages(stages)]
    links = {}
    for key, name in (("in_node", cluster.links.in_node), ("between_nodes", cluster.links.between_nodes)):
        if name is not None:
            with _said_of(space, "cluster", "links", key):
                links[key] = link(name)
    with _said_of(space, "cluster"):
        return build_placement(
            gpus,
            nodes=cluster.nodes,
            gpus_per_node=cluster.gpus_per_node,
            tp=space.parallel.tp,
            pp=stages,
            reserved_gib=cluster.reserved_gib_of_stages(stages),
            in_node=links.get("in_node"),
            between_nodes=links.get("between_nodes"),
        )


def _requests(space: SearchSpace) -> tuple[tuple[Request, ...], int | None]:
    load = space.workload
    if isinstance(load, TraceWorkload):
        with _said_of(space, "workload", "file"):
            return tuple(read_trace(at_hand(space.absolute(load.file))))[: load.requests], None
    drawn = RandomWorkload(
        count=load.requests,
        prompt_tokens=load.prompt_tokens,
        output_tokens=load.output_tokens,
        range_ratio=load.range_ratio,
        rate_req_s=load.request_rate_req_s or math.inf,
        burstiness=load.burstiness,
        seed=space.random_seed,
    )
    return tuple(drawn.requests()), load.concurrency


def _refuse_names_said_elsewhere(space: SearchSpace, chosen: Engine) -> None:
    """What follows from another key may not be given a second time, where it would be ignored or contradict."""
    sections: dict[tuple[str, ...], Iterable[str]] = {
        ("engine", "flags"): space.engine.flags,
        ("engine", "env"): space.engine.env,
        ("knobs",): space.knobs.flags,
        ("knobs", "env"): space.knobs.env,
    }
    for path, names in sections.items():
        for name in names:
            if name in chosen.said_elsewhere:
                raise space.refuse(*path, name, text=f"partitune writes it; allowed: {chosen.said_elsewhere[name]}")


@contextmanager
def _said_of(space: SearchSpace, *path: str) -> Iterator[None]:
    """Give what a room says about a value the line it was written on."""
    try:
        yield
    except SpecError as error:
        key = path[-1]
        raise space.refuse(
            *path, text=str(error).removeprefix(f"{'.'.join(path)}: ").removeprefix(f"{key}: ")
        ) from error
