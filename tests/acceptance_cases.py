"""Published pipeline-parallel set-ups, written as users write theirs: a search space, the engine's rules, the driver.

Decision: nothing here knows the answer. A case names a catalog model, a cluster, an engine start and a load, and goes
through `resolve` and the simulator's driver; a tensor-parallel baseline is the same with one stage. Two things that
were measured and partitune does not offer are composed from its public parts: a checkpoint in another number format,
and a tensor-parallel group that crosses nodes (the tool refuses to place one).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from partitune.candidate import Candidate, FlagValue, Measurement
from partitune.costs.cost_model import StageCosts
from partitune.engines.vllm.scheduler.engine_core import simulate
from partitune.engines.vllm.scheduler.settings import VLLM_OVERHEADS, SchedulerSettings, vllm_settings
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.models.published import find_model
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.simulation.run import Overheads, Run
from partitune.spec.search_space import SearchSpace

#: What each format writes into `quantization_config`; the block FP8 one is Qwen's own.
FP8 = {"quant_method": "fp8", "activation_scheme": "static"}
BLOCK_FP8 = {
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head", "model.layers.*.mlp.gate"],
}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head", "*self_attn*"]}

#: vLLM as it was while the V1 runner could run a pipeline asynchronously (regime async-v1; sync-v1 without).
V1_RUNNER = {"version": "0.30.0", "runner": "v1"}


def closed(requests: int, prompt: int, output: int, concurrency: int, spread: float = 0.0) -> dict[str, Any]:
    """A closed load: `concurrency` requests outstanding, lengths within `spread` of the mean."""
    return {
        "kind": "random",
        "requests": requests,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "concurrency": concurrency,
        "range_ratio": spread,
    }


def problem(
    model: str | Path,
    gpu: str,
    load: Mapping[str, Any],
    *,
    tp: int,
    pp: int,
    nodes: int = 1,
    gpus_per_node: int = 8,
    flags: Mapping[str, FlagValue] | None = None,
    links: Mapping[str, str] | None = None,
    engine: Mapping[str, str] | None = None,
) -> Problem:
    """The search space of one set-up, looked up. `engine` may name version, runner and split_rule."""
    return resolve(
        SearchSpace.from_mapping(
            {
                "kind": "search_space",
                "name": "acceptance",
                "model": str(model),
                "cluster": {"nodes": nodes, "gpus_per_node": gpus_per_node, "gpu": gpu, "links": dict(links or {})},
                "engine": {"name": "vllm", "version": "0.33.0", "flags": dict(flags or {}), **(engine or {})},
                "parallel": {"tp": tp, "pp": pp},
                "workload": dict(load),
            }
        )
    )


def measured(posed: Problem, partition: Sequence[int] | None = None, **flags: FlagValue) -> Measurement:
    """What the simulator's driver reports; without a partition, of the engine's default split."""
    return SimulatorDriver(posed).measure(_candidate(posed, partition, flags))


def metric(name: str, posed: Problem, partition: Sequence[int] | None = None, **flags: FlagValue) -> float:
    """One figure of `measured`."""
    return measured(posed, partition, **flags).metrics[name]


def settings_of(posed: Problem, partition: Sequence[int] | None = None, **flags: FlagValue) -> SchedulerSettings:
    """The scheduler and KV cache of a start, as the driver hands them to the simulator."""
    resolved = ResolvedCandidate(posed, _candidate(posed, partition, flags))
    return vllm_settings(resolved.deployment, resolved.kv_cache)


def simulated(
    posed: Problem,
    settings: SchedulerSettings,
    *,
    partition: Sequence[int] | None = None,
    costs: StageCosts | None = None,
    overheads: Overheads = VLLM_OVERHEADS,
) -> Run:
    """The load of a problem under changed settings, costs or overheads."""
    bound = costs or posed.costs.stage_costs(partition or posed.default_partition)
    return simulate(posed.load.requests, settings, bound, overheads, posed.load.concurrency)


def output_tok_s(run: Run) -> float:
    """Output tokens a second."""
    return sum(request.output_tokens for request in run.requests) / run.duration_s


def config_of(folder: Path, model: str, **changes: object) -> Path:
    """The catalog's config.json of `model` with some fields changed, as a file of its own."""
    known = find_model(model)
    assert known is not None
    config = json.loads(files("partitune.models").joinpath("configs", known.file).read_text("utf-8"))
    path = folder / "config.json"
    path.write_text(json.dumps(config | changes), encoding="utf-8")
    return path


def _candidate(posed: Problem, partition: Sequence[int] | None, flags: Mapping[str, FlagValue]) -> Candidate:
    return Candidate(tuple(partition or posed.default_partition), dict(flags))
