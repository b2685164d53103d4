"""What a stage's memory leaves for KV, of one start of an engine and of every run of layers a stage could own.

Decision: what a flag gives to KV counts for every stage alike, and only where the stage fits at all: the engine then
measures nothing, and a stage that is too full still does not start.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partitune.candidate import FlagValue
from partitune.costs.cost_model import Floats
from partitune.costs.memory import MemoryModel
from partitune.engines.deployment import Deployment
from partitune.planning.problem import Problem


def memory_model(problem: Problem, deployment: Deployment) -> MemoryModel:
    """Memory of every stage of a start on the GPUs of `problem`."""
    return MemoryModel(problem.architecture, problem.placement, problem.engine.memory_settings(deployment))


def fixed_kv_bytes(problem: Problem, deployment: Deployment) -> int | None:
    """Bytes per GPU that `kv_cache_memory_bytes` gives to KV on every stage; None: the engine measures what is left."""
    given = problem.engine.effective_flags(deployment).get("kv_cache_memory_bytes")
    return given if isinstance(given, int) else None


def kv_bytes_tensor(problem: Problem, flags: Mapping[str, FlagValue]) -> Floats:
    """Bytes per GPU for KV, by [stage, first layer, end layer]; -inf where the stage does not fit."""
    deployment = problem.start(flags)
    free, given = memory_model(problem, deployment).kv_tensor(), fixed_kv_bytes(problem, deployment)
    return free if given is None else np.where(np.isfinite(free), float(given), free)
