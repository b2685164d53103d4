"""Whether a runner and a search space fit, asked once and before anything starts.

Decision: every flag and every variable has one author. The search space says what a candidate means, the runner what
holds for the site, the launcher what joins the processes; whoever says what another has said is refused, with his line,
as one of the two would silently win.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from partitune.errors import SpecError
from partitune.execution.server.load_generators import Run, Target, unable, words
from partitune.hardware.gpus import Gpu
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from partitune.spec.workload import TraceWorkload

if TYPE_CHECKING:  # the recipe asks for its own checks
    from partitune.execution.server.launch_recipe import LaunchRecipe

_BACKEND, _PATH = "distributed_executor_backend", "PYTHONPATH"


def check_fit(space: SearchSpace, recipe: LaunchRecipe) -> None:
    """Raise SpecError where the two do not fit."""
    _check_names(space, recipe)
    if recipe.runner.starts_server:
        _check_nodes(recipe)
        if recipe.cannot_start:
            raise space.refuse("parallel", "dp", text=recipe.cannot_start)
    for part in recipe.parts:
        _check_load(part)


def forwarded_variables(runner: Runner) -> dict[str, str]:
    """Values of the variables that a runner takes from here. Raises SpecError for those that are not set."""
    missing = [name for name in runner.forward_env if name not in os.environ]
    if missing:
        raise runner.refuse(
            "forward_env", text=f"found {', '.join(missing)}, not set here; allowed: variables that are"
        )
    return {name: os.environ[name] for name in runner.forward_env}


def _check_names(space: SearchSpace, recipe: LaunchRecipe) -> None:
    """Every flag and variable has one author: the search space, the runner, or the launcher."""
    runner, elsewhere = recipe.runner, recipe.problem.engine.written_by_partitune
    of_space: dict[str, tuple[str, ...]] = dict.fromkeys(space.engine.flags, ("engine", "flags"))
    of_space |= dict.fromkeys(space.knobs.flags, ("knobs",))
    of_space |= dict.fromkeys(space.engine.env, ("engine", "env"))
    of_space |= dict.fromkeys(space.knobs.env, ("knobs", "env"))
    written = recipe.command.own_flags | {*recipe.command.removed}
    written |= {"worker_extension_cls", _PATH} if runner.layer_report else set()
    for name, path in of_space.items():
        if name in written:
            raise space.refuse(
                *path, name, text="partitune writes it when it starts the engine; allowed: to leave it out"
            )
    if _BACKEND in space.knobs.flags:
        raise space.refuse("knobs", _BACKEND, text="decides on which nodes what is started; allowed: in engine.flags")
    sections = (("arguments", runner.arguments), ("env", runner.env), ("forward_env", runner.forward_env))
    for section, names in sections:
        for name in names:
            if name in elsewhere:
                raise runner.refuse(section, name, text=f"partitune writes it; allowed: {elsewhere[name]}")
            if name in written - {_PATH}:
                text = "partitune writes it itself, or removes it everywhere; allowed: to leave it out"
                raise runner.refuse(section, name, text=text)
            if name in of_space:
                where = ".".join(of_space[name])
                raise runner.refuse(
                    section, name, text=f"the search space {space.name} says it under {where}; allowed: once"
                )


def _check_nodes(recipe: LaunchRecipe) -> None:
    runner, problem = recipe.runner, recipe.problem
    if runner.driver != problem.engine.name:
        raise runner.refuse("driver", text=f"found {runner.driver}, and the search space is for {problem.engine.name}")
    hosts, local = runner.nodes.hosts, runner.nodes.start == "local"
    count = recipe.slot_nodes
    if hosts and len(hosts) != count:
        per = "one a node of the cluster, as layouts vary" if recipe.layouts else "one a process group"
        raise runner.refuse("nodes", "hosts", text=f"found {len(hosts)} addresses; allowed: {count}, {per}")
    if local and count > 1 and not hosts:
        text = (
            f"found local, and the search space stands on {count} nodes; allowed: ray (or {count} addresses of this "
            "machine under nodes.hosts)"
        )
        raise runner.refuse("nodes", "start", text=text)
    if not local and recipe.placed_by_ray:
        text = (
            "found ray beside distributed_executor_backend ray, where vLLM has Ray place its workers; allowed: local, "
            "with partitune on a node of the Ray cluster"
        )
        raise runner.refuse("nodes", "start", text=text)
    if not local and not hosts and len(set(_gpus_of_nodes(recipe))) > 1:
        text = "missing; allowed: the addresses of the nodes in the order of the stages, as their GPUs differ"
        raise runner.refuse("nodes", "hosts", text=text)
    if local and isinstance(runner.workers, int) and runner.workers > 1:
        raise runner.refuse("workers", text="found more than one on this machine; allowed: 1, or nodes.start: ray")


def _gpus_of_nodes(recipe: LaunchRecipe) -> list[frozenset[Gpu]]:
    problem, cluster = recipe.problem, recipe.problem.cluster
    pairs = list(zip(problem.placement.nodes, problem.placement.gpus, strict=True))
    if recipe.layouts and len(cluster["gpus"]) == cluster["nodes"] * cluster["gpus_per_node"]:
        pairs = [(index // cluster["gpus_per_node"], gpu) for index, gpu in enumerate(cluster["gpus"])]
    return [frozenset(gpu for at, gpu in pairs if at == node) for node in sorted({at for at, _ in pairs})]


def _check_load(recipe: LaunchRecipe) -> None:
    runner, load = recipe.runner, recipe.load
    if reason := unable(runner.benchmark.tool, load, recipe.problem.goodput):
        of_part = f" (load {recipe.problem.load.name} of the mix)" if recipe.problem.load.name else ""
        raise runner.refuse("benchmark", "tool", text=f"{runner.benchmark.tool} {reason}{of_part}")
    if isinstance(load, TraceWorkload):
        _check_trace(runner, load)
    target = Target("http://", recipe.problem.engine.name, "", "", {})
    own = set(words(runner.benchmark.tool, load, target, Run(1, 1, "")))
    for name in runner.benchmark.arguments:
        if "--" + name.replace("_", "-") in own:
            text = "partitune writes it, from the search space; allowed: further flags of the tool"
            raise runner.refuse("benchmark", "arguments", name, text=text)


def _check_trace(runner: Runner, load: TraceWorkload) -> None:
    """VLLM makes a prompt of `hash_ids` and an empty one where there are none; Mooncake's spelling is its default."""
    with Path(load.file).open(encoding="utf-8") as file:
        row = json.loads(next(line for line in file if line.strip()))
    if missing := [name for name in ("timestamp", "input_length", "output_length", "hash_ids") if name not in row]:
        raise SpecError(f"{load.file}: a request has no {missing[0]}, and `vllm bench serve` makes the prompts from it")
    if "timed_trace_chunk_hash_size" not in runner.benchmark.arguments:
        text = "has no timed_trace_chunk_hash_size; allowed: tokens that one of the trace's hash_ids stands for"
        raise runner.refuse("benchmark", "arguments", text=text)
