"""Plans: names that become layers per stage once the flags are known.

Decision: the sampler never sees a partition vector (a flat space of vectors starves the flags). It names a plan, and
for every flag setting the plan is solved exactly: `front-0` is the least slowest stage, `front-4` the most KV blocks,
the others lie between them on the exact front of the two. `default` is the engine's own split, `seed-1` the first
vector a person wrote. Memory, KV staircase, illegal cuts, bounds and unequal GPUs are all inside the solver's
tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from partitune.costs.interface import Floats
from partitune.errors import InfeasibleSpace
from partitune.load import typical_batches
from partitune.partition.legality import Bounds, allowed_windows
from partitune.partition.solver import Solution, pareto_front, stage_tensor
from partitune.problem import Problem
from partitune.result import Knob

DEFAULT_PLAN = "default"
#: Points of the front the sampler may choose from.
FRONT_PLANS = tuple(f"front-{index}" for index in range(5))
EXACT_PLAN = FRONT_PLANS[0]


class Planner:
    """Turns plan names into partitions of one problem. Fronts are remembered by the flags they depend on."""

    def __init__(self, problem: Problem, bounds: Bounds, seeds: Sequence[tuple[int, ...]]) -> None:
        self._problem = problem
        self._windows = allowed_windows(problem.architecture, bounds)
        self._seeds = {f"seed-{index}": seed for index, seed in enumerate(seeds, start=1)}
        self._fronts: dict[tuple[tuple[str, Knob], ...], tuple[Solution, ...] | InfeasibleSpace] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Every plan, the engine's default first."""
        return (DEFAULT_PLAN, *FRONT_PLANS, *self._seeds)

    def partition(self, plan: str, knobs: Mapping[str, Knob]) -> tuple[int, ...]:
        """Layers per stage of `plan` under `knobs`.

        Raises:
            InfeasibleSpace: no partition fits these flags at all.
        """
        if plan == DEFAULT_PLAN:
            return self._problem.default_partition
        if plan in self._seeds:
            return self._seeds[plan]
        front = self.front(knobs)
        index = FRONT_PLANS.index(plan)
        last = len(front) - 1
        # A short front gives every point a name; a long one is sampled evenly, both ends included.
        return front[
            min(index, last) if last < len(FRONT_PLANS) else round(index * last / (len(FRONT_PLANS) - 1))
        ].partition

    def front(self, knobs: Mapping[str, Knob]) -> tuple[Solution, ...]:
        """The exact front of slowest stage and KV blocks under `knobs`, fastest first.

        Raises:
            InfeasibleSpace: no partition fits.
        """
        key = tuple(sorted(knobs.items()))
        if key not in self._fronts:
            try:
                self._fronts[key] = self._solve(knobs)
            except InfeasibleSpace as error:
                self._fronts[key] = error
        found = self._fronts[key]
        if isinstance(found, InfeasibleSpace):
            raise found
        return found

    def stage_seconds(self, partition: Sequence[int], knobs: Mapping[str, Knob]) -> Floats:
        """Seconds each stage of `partition` works on the whole load: shape [stages]."""
        times = self.stage_times(knobs)
        ends = np.cumsum(partition)
        return np.asarray(times[np.arange(len(partition)), ends - np.asarray(partition), ends], dtype=np.float64)

    def stage_times(self, knobs: Mapping[str, Knob]) -> Floats:
        """Seconds of the whole load per (stage, first layer, end layer)."""
        problem = self._problem
        deployment = problem.start(knobs)
        flow = problem.engine.flow(deployment)
        total = np.zeros((problem.stages, problem.layers + 1, problem.layers + 1))
        for batch, count in typical_batches(problem.requests, problem.concurrency, flow):
            stages = range(problem.stages)
            edge_s = np.array([problem.costs.edge_s(stage, batch) for stage in stages])
            gpu_s = stage_tensor(np.stack([problem.costs.layer_s(stage, batch) for stage in stages]), edge_s)
            host_s = stage_tensor(np.stack([problem.costs.host_layer_s(batch)] * problem.stages), 0 * edge_s)
            total += count * np.maximum(gpu_s, host_s)
        return total

    def _solve(self, knobs: Mapping[str, Knob]) -> tuple[Solution, ...]:
        problem = self._problem
        deployment = problem.start(knobs)
        blocks = problem.engine.kv_blocks(deployment, problem.kv_bytes_tensor(knobs))
        fits = blocks >= problem.engine.fewest_kv_blocks(deployment)
        times = np.where(self._windows & fits, self.stage_times(knobs), np.inf)
        return pareto_front(times, blocks)
