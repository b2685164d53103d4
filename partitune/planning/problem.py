"""What is fixed while candidates vary: the model's layers, the stages' places, the engine, the load.

Decision: a candidate is judged against one frozen value that can be pickled to any worker. A candidate may name a
layout other than the file's; `of` then makes the same problem on that layout, and of several loads `parts` makes a
problem each, so that everything below stays written for one layout and one load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

import numpy as np

from partitune.candidate import Candidate, Knob
from partitune.costs.cost_model import CostModel, Floats
from partitune.costs.memory import MemoryModel, StageMemory
from partitune.costs.roofline import RooflineCosts
from partitune.engines.deployment import Deployment
from partitune.engines.engine import Engine
from partitune.errors import SpecError, did_you_mean
from partitune.hardware.gpus import Gpu
from partitune.hardware.links import Link
from partitune.hardware.parallelism import Layout, layout_named
from partitune.hardware.placement import Placement, place
from partitune.models.architecture import Architecture
from partitune.partition import Partition
from partitune.planning.serving_cost import Tariff
from partitune.planning.workload_mix import Load, Mix
from partitune.simulation.request import Request
from partitune.spec.objectives import METRICS, Direction


@dataclass(frozen=True, slots=True)
class Problem:
    """What is fixed while candidates of one layout vary."""

    name: str
    model: str  # as the engine is told: a catalog name or a path
    architecture: Architecture
    placement: Placement
    engine: Engine
    version: str
    runner: str  # vLLM's model runner: auto, v1, v2
    split_rule: str | None
    baseline: Mapping[str, Knob]  # flags and UPPER-CASE environment variables the space fixes or starts from
    mix: Mix  # the load, or the loads that are judged together
    goodput: Mapping[str, float]  # limits that a good request keeps; empty: goodput is not asked for
    tariff: Tariff
    limits: Mapping[str, float]  # service-level objectives: metric -> worst value accepted
    costs: CostModel
    cluster: ClusterGpus
    _on_layout: dict[str, Problem] = field(default_factory=dict, compare=False, repr=False)  # those made so far

    def of(self, candidate: Candidate) -> Problem:
        """The problem on the layout that `candidate` names; this one where it names none.

        Raises:
            SpecError: not the name of a layout, or the cluster cannot hold it.
        """
        return self.on(candidate.layout)

    def on(self, name: str | None) -> Problem:
        """The same problem on the layout of that name; this one for None.

        Raises:
            SpecError: as `of`.
        """
        if name is None or name == self.layout.name:
            return self
        if name not in self._on_layout:
            placement = self.placed(layout_named(name, self.layout))
            costs = roofline_costs(self.architecture, placement, self.engine)
            self._on_layout[name] = replace(self, placement=placement, costs=costs, _on_layout={})
        return self._on_layout[name]

    def placed(self, layout: Layout) -> Placement:
        """Where `layout` puts the stages on the cluster.

        Raises:
            SpecError: the cluster cannot hold it.
        """
        resolved = self.engine.resolved_layout(layout, self.architecture)
        return place(layout=resolved, order=self.engine.rank_order(self.architecture), **self.cluster)

    @property
    def layout(self) -> Layout:
        """How the deployment is spread over GPUs."""
        return self.placement.layout

    @property
    def parts(self) -> tuple[Problem, ...]:
        """This problem under each of its loads alone, in the order of the file."""
        if len(self.mix.loads) == 1:
            return (self,)
        return tuple(replace(self, mix=Mix((load,)), _on_layout={}) for load in self.mix.loads)

    def part(self, name: str) -> Problem:
        """This problem under the load of that name alone.

        Raises:
            SpecError: no load has it.
        """
        named = {part.load.name: part for part in self.parts if part.load.name}
        if name not in named:
            have = ", ".join(named) or "none, as the workload is one load"
            raise SpecError(f"found {name!r}{did_you_mean(name, named)}; allowed: {have}")
        return named[name]

    @property
    def load(self) -> Load:
        """The only load. Raises ValueError for a mix: ask `parts`."""
        if len(self.mix.loads) > 1:
            raise ValueError("a mix is not one load: ask each of Problem.parts for its own")
        return self.mix.loads[0]

    @property
    def requests(self) -> tuple[Request, ...]:
        """The requests of the only load."""
        return self.load.requests

    @property
    def concurrency(self) -> int | None:
        """Most requests outstanding of the only load; None: they come at their arrival times."""
        return self.load.concurrency

    @property
    def rank_requests(self) -> tuple[Request, ...]:
        """The requests of the first data rank under the only load."""
        return self.load.of_rank(self.layout.dp).requests

    @property
    def rank_concurrency(self) -> int | None:
        """Most requests outstanding on the first data rank under the only load."""
        return self.load.of_rank(self.layout.dp).concurrency

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.placement.stages

    @property
    def layers(self) -> int:
        """Layers the engine cuts."""
        return len(self.architecture.layers)

    @property
    def default_partition(self) -> Partition:
        """What this engine version does by itself (or the split rule the space names)."""
        return Partition(self.engine.default_partition(self.layers, self.stages, self.version, self.split_rule))

    def deployment(self, candidate: Candidate) -> Deployment:
        """The engine start of `candidate`: the baseline overlaid with its knobs."""
        return self.start(candidate.knobs, candidate.partition)

    def start(self, knobs: Mapping[str, Knob], partition: tuple[int, ...] | None = None) -> Deployment:
        """The engine start of these knobs; without a partition the engine splits by itself."""
        return Deployment(
            version=self.version,
            architecture=self.architecture,
            layout=self.layout,
            gpu=self.placement.gpus[0],
            knobs={**self.baseline, **knobs},
            partition=partition,
            runner=self.runner,
            nodes=self.placement.node_count,
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

    def figures(self, served: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Metrics of a run from what the clients of every load saw: put together, with the bill, then those of parts.

        The bill of a mix is that of its throughput, not the mean of the parts' bills.
        """
        whole = self.mix.combined(served)
        return {**whole, **self._bill(whole), **self.mix.by_part([{**one, **self._bill(one)} for one in served])}

    def _bill(self, served: Mapping[str, float]) -> dict[str, float]:
        return self.tariff.metrics(served.get("output_throughput_tok_s", 0.0), self.layout.gpus)

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


def roofline_costs(architecture: Architecture, placement: Placement, chosen: Engine) -> CostModel:
    """What layers cost on these GPUs, by the roofline and by what was measured under this engine."""
    kernel = chosen.expert_kernel(architecture, placement.gpus[0])
    return RooflineCosts(architecture, placement, expert_kernel=kernel, measured_engine=chosen.name)


class ClusterGpus(TypedDict):
    """What `place` needs to know of the cluster beside the layout."""

    gpus: Sequence[Gpu]
    nodes: int
    gpus_per_node: int
    reserved_gib: Sequence[float]
    in_node: Link | None
    between_nodes: Link | None
