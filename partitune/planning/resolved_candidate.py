"""A candidate on the problem of its own layout: how the engine is started, and what every stage then holds.

Decision: a candidate names a layout and a problem stands on one; a problem asked about a candidate of another layout
would answer with wrong figures and no word. So nothing about a candidate can be asked of a problem: whoever is handed
both (a driver, `explain`, `export`) puts them together once, here, and what lies below takes the pair.

What a flag gives to KV counts for every stage alike, and only where the stage fits at all: the engine then measures
nothing, and a stage that is too full still does not start. The planner is told the same of every run of layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from partitune.candidate import Candidate
from partitune.costs.cost_model import Floats
from partitune.costs.memory import MemoryModel, StageMemory
from partitune.engines.deployment import Deployment
from partitune.engines.memory import KvCache
from partitune.engines.rules import Violation
from partitune.engines.scheduling import Flow
from partitune.partition import Partition
from partitune.planning.problem import Problem


class ResolvedCandidate:
    """One candidate, with everything that follows from it and from the layout it names."""

    def __init__(self, problem: Problem, candidate: Candidate) -> None:
        """Take `problem`, on the search space's own layout or the candidate's, to that of `candidate`.

        Raises:
            SpecError: not the name of a layout, or the cluster cannot hold it.
        """
        self.problem = problem.on(candidate.layout).served(candidate.flags)
        self.candidate = candidate
        self.partition = Partition(candidate.partition)
        #: The engine start: the search space's flags overlaid with the candidate's.
        self.deployment = self.problem.start(candidate.flags, self.partition)

    @property
    def flow(self) -> Flow:
        """How the engine cuts a load into batches. Raises SpecError where it refuses the combination of flags."""
        return self.problem.engine.flow(self.deployment)

    @property
    def violations(self) -> Sequence[Violation]:
        """Every rule of the engine that this start breaks."""
        return self.problem.engine.check(self.deployment)

    @property
    def kinds(self) -> tuple[Mapping[str, int], ...]:
        """Per stage: kind of layer -> how many of it."""
        layers = self.problem.architecture.layers
        return tuple(dict(Counter(layer.kind for layer in layers[first:end])) for first, end in self.partition.ranges)

    @cached_property
    def memory(self) -> tuple[StageMemory, ...]:
        """Memory of every stage, term by term."""
        return _memory_model(self.problem, self.deployment).partition(self.partition)

    @property
    def kv_bytes(self) -> tuple[int, ...]:
        """Bytes per GPU that every stage gives to KV: what is left, or what the flag says."""
        given = _fixed_kv_bytes(self.problem, self.deployment)
        return tuple(int(stage.kv_bytes) if given is None else given for stage in self.memory)

    @property
    def kv_cache(self) -> KvCache:
        """The engine's KV cache.

        Raises:
            InfeasibleSpace: a stage keeps nothing that it could be measured in.
            OutOfMemory: it holds too little to start.
        """
        return self.problem.engine.kv_cache(self.deployment, self.partition, self.kv_bytes)


def kv_bytes_tensor(problem: Problem, deployment: Deployment) -> Floats:
    """Bytes per GPU for KV, by [stage, first layer, end layer]; -inf where the stage does not fit."""
    problem = problem.served(deployment.flags)
    free, given = _memory_model(problem, deployment).kv_tensor(), _fixed_kv_bytes(problem, deployment)
    return free if given is None else np.where(np.isfinite(free), float(given), free)


def _memory_model(problem: Problem, deployment: Deployment) -> MemoryModel:
    return MemoryModel(problem.architecture, problem.placement, problem.engine.memory_settings(deployment))


def _fixed_kv_bytes(problem: Problem, deployment: Deployment) -> int | None:
    """Bytes per GPU that `kv_cache_memory_bytes` gives to KV on every stage; None: the engine measures what is left."""
    given = problem.engine.effective_flags(deployment).get("kv_cache_memory_bytes")
    return given if isinstance(given, int) else None
