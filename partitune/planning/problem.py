"""What is fixed while candidates vary: the model's layers, the stages' places, the engine, the load.

Decision: a candidate is judged against one frozen value that can be pickled to any worker. A candidate may name a
layout other than the file's; `on` then makes the same problem on that layout (`resolved_candidate` is where it is
asked for), and of several loads `parts` makes a problem each, so that what lies below is written for one of each.
Simulated and measured runs end here alike, in `run_figures` and `missed_limits`, so that a limit means the same for
both. Only the GPUs that serve are paid for, at the price and the power the search space gives; what is not given is not
guessed, so that no figure of this kind ever rests on an assumption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from partitune.candidate import FlagValue, Objective
from partitune.costs.cost_model import CostModel
from partitune.costs.host_reads import Offloaded
from partitune.costs.roofline import RooflineCosts
from partitune.engines.deployment import Deployment
from partitune.engines.engine import Engine
from partitune.errors import SpecError, did_you_mean
from partitune.hardware.parallelism import Layout, layout_named
from partitune.hardware.placement import Machines, Placement, place
from partitune.models.architecture import Architecture
from partitune.partition import Partition
from partitune.planning.workload_mix import Load, Mix
from partitune.spec.metrics import COST, ENERGY, METRICS


@dataclass(frozen=True, slots=True)
class Problem:
    """What is fixed while candidates of one layout vary."""

    name: str
    model: str  # as the engine is told: a catalog name or a path
    architecture: Architecture  # as the checkpoint has it; of `served`, as a start keeps it
    placement: Placement
    engine: Engine
    version: str
    runner: str  # vLLM's model runner: auto, v1, v2
    split_rule: str | None
    baseline: Mapping[str, FlagValue]  # flags and UPPER-CASE environment variables the space fixes or starts from
    mix: Mix  # the load, or the loads that are judged together
    goodput: Mapping[str, float]  # limits that a good request keeps; empty: goodput is not asked for
    gpu_hour_price_usd: float | None  # of one GPU; None where the search space says nothing, as below
    gpu_power_w: float | None
    limits: Mapping[str, float]  # service-level objectives: metric -> worst value accepted
    objectives: tuple[Objective, ...]  # what is to become better, the first one above all
    zone: float  # relative difference below which two figures count as equal
    costs: CostModel
    cluster: Machines
    #: What engine starts are asked with where `architecture` is as one of them keeps it; None: `architecture` itself.
    checkpoint: Architecture | None = None
    stored_by: tuple[FlagValue | None, ...] | None = None  # the flags that `architecture` is kept by
    kernels_of: Engine | None = None  # whose kernel times `costs` has; None: those of `engine`
    #: The same as other flags keep it, by those flags.
    _as_stored: dict[tuple[FlagValue | None, ...], Problem] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    #: The same on other layouts, as far as they were asked for.
    _on_layout: dict[str, Problem] = field(default_factory=dict, init=False, compare=False, repr=False)

    def on(self, name: str | None) -> Problem:
        """The same problem on the layout of that name; this one for None.

        Raises:
            SpecError: not the name of a layout, or the cluster cannot hold it.
        """
        if name is None or name == self.layout.name:
            return self
        if name not in self._on_layout:
            placement = self.placed(layout_named(name, self.layout))
            costs = roofline_costs(self.architecture, placement, self.kernels_of or self.engine)
            self._on_layout[name] = replace(self, placement=placement, costs=costs)
        return self._on_layout[name]

    def served(self, flags: Mapping[str, FlagValue]) -> Problem:
        """The same problem with the model as a start with these flags keeps it, and what its kernels then take.

        Itself where the engine takes none of its flags to store anything otherwise, or refuses what they say: then the
        start is refused where its rules are checked, or its KV is planned.
        """
        start = self.start(flags)
        key = tuple(start.flags.get(name) for name in (*self.engine.storing_flags, self.engine.expert_flag))
        if key == self.stored_by:
            return self
        if key not in self._as_stored:
            self._as_stored[key] = self._stored(start, key)
        return self._as_stored[key]

    def _stored(self, start: Deployment, key: tuple[FlagValue | None, ...]) -> Problem:
        try:
            stored, offloaded = self.engine.stored(start), self.engine.offloaded(start)
        except SpecError:
            return self
        kernels_of = self.kernels_of or self.engine
        kernels = {kernels_of.expert_kernel(stored, start.gpu, flags) for flags in ({}, start.flags)}
        if stored is self.architecture and offloaded is None and len(kernels) == 1:
            return self
        costs = roofline_costs(stored, self.placement, kernels_of, offloaded, start.flags)
        return replace(self, architecture=stored, checkpoint=start.architecture, stored_by=key, costs=costs)

    def under(self, version: str, runner: str) -> Problem:
        """The same problem served by another release of the engine, and another model runner."""
        return replace(self, version=version, runner=runner)

    def with_kernels_of(self, other: Engine) -> Problem:
        """The same problem, scheduled by its own engine, with the kernel times of another one."""
        return replace(self, kernels_of=other, costs=roofline_costs(self.architecture, self.placement, other))

    def placed(self, layout: Layout) -> Placement:
        """Where `layout` puts the stages on the cluster.

        Raises:
            SpecError: the cluster cannot hold it.
        """
        resolved = self.engine.resolved_layout(layout, self.architecture, self.version)
        return place(self.cluster, resolved, self.engine.rank_order(self.architecture))

    @property
    def layout(self) -> Layout:
        """How the deployment is spread over GPUs."""
        return self.placement.layout

    @property
    def parts(self) -> tuple[Problem, ...]:
        """This problem under each of its loads alone, in the order of the file."""
        if len(self.mix.loads) == 1:
            return (self,)
        return tuple(replace(self, mix=Mix((load,))) for load in self.mix.loads)

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
    def rank_load(self) -> Load:
        """What the first data rank gets of the only load."""
        return self.load.of_rank(self.layout.dp)

    @property
    def stages(self) -> int:
        """How many stages the pipeline has."""
        return self.layout.pp

    @property
    def layers(self) -> int:
        """How many layers the engine divides among the stages."""
        return len(self.architecture.layers)

    @property
    def default_partition(self) -> Partition:
        """What this engine version does by itself (or the split rule the space names)."""
        return Partition(self.engine.default_partition(self.layers, self.stages, self.version, self.split_rule))

    def start(self, flags: Mapping[str, FlagValue], partition: tuple[int, ...] | None = None) -> Deployment:
        """The engine start of these flags; without a partition the engine splits by itself."""
        return Deployment(
            version=self.version,
            architecture=self.checkpoint or self.architecture,
            layout=self.layout,
            gpu=self.placement.gpus[0],
            flags={**self.baseline, **flags},
            partition=partition,
            runner=self.runner,
            nodes=self.placement.node_count,
        )

    def run_figures(self, served: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Metrics of a run on this layout.

        Args:
            served: what the clients saw, by metric; one for every load, in the order of the mix.

        Returns:
            The whole with its bill, which is that of its throughput and not the mean of the parts' bills; then those of
            every part of a mix under `part/metric`.
        """
        whole, parts = self._with_bill(self.mix.combined(served)), list(map(self._with_bill, served))
        return {**whole, **self.mix.by_part(parts)}

    def missed_limits(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """How far each limit is missed, as a share of the limit; <= 0 is kept."""
        return {
            name: (metrics[name] - limit if METRICS[name] == "minimize" else limit - metrics[name]) / limit
            for name, limit in self.limits.items()
            if name in metrics  # a run of one output token a request has no time per output token
        }

    def _with_bill(self, figures: Mapping[str, float]) -> dict[str, float]:
        """`figures`, and dollars and kilowatt-hours a million generated tokens as far as they can be known."""
        billed, throughput = dict(figures), figures.get("output_throughput_tok_s", 0.0)
        if throughput > 0:
            gpu_hours = self.layout.gpus * 1e6 / throughput / 3600
            if self.gpu_hour_price_usd is not None:
                billed[COST] = gpu_hours * self.gpu_hour_price_usd
            if self.gpu_power_w is not None:
                billed[ENERGY] = gpu_hours * self.gpu_power_w / 1000
        return billed


def roofline_costs(
    architecture: Architecture,
    placement: Placement,
    chosen: Engine,
    offloaded: Offloaded | None = None,
    flags: Mapping[str, FlagValue] = MappingProxyType({}),
) -> CostModel:
    """What layers cost on these GPUs, by the roofline and by what was measured under this engine."""
    kernel = chosen.expert_kernel(architecture, placement.gpus[0], flags)
    return RooflineCosts(
        architecture, placement, expert_kernel=kernel, measured_engine=chosen.measured, offloaded=offloaded
    )
