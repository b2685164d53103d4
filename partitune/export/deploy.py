"""Write a trial as an env-file and an engine config beside it, and say done only after both were read back.

Decision: what the engine takes only from the environment (the partition) stands in the env-file, all flags in the YAML
that `serve --config` reads, so that each is in the one place where every tool reads it alike. The files are replaced
whole or not at all, and a file that is not ours is never overwritten.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import yaml

from partitune import __version__
from partitune.engines.interface import Deployment
from partitune.errors import SpecError
from partitune.export.env_file import parse, render
from partitune.partition.vector import format_partition, parse_partition
from partitune.problem import Problem
from partitune.result import Candidate

HEADER = "written by partitune"


@dataclass(frozen=True, slots=True)
class Exported:
    """The two files and how to start with them."""

    env_file: Path
    config: Path
    commands: tuple[str, ...]


def export(problem: Problem, candidate: Candidate, env_file: Path, remarks: tuple[str, ...]) -> Exported:
    """Write `candidate` to `env_file` and a YAML of the same name, and check both.

    Raises:
        SpecError: a value that cannot be exported, a file that is not ours, or a check that failed.
    """
    config = env_file.with_suffix(".yaml") if env_file.suffix == ".env" else env_file.with_name(env_file.name + ".yaml")
    deployment = problem.deployment(candidate)
    variables = dict(problem.engine.environment(deployment))
    comments = [f"{HEADER} {__version__}", *remarks, *_stage_lines(problem, candidate)]
    entries = {"model": problem.architecture.name, **problem.engine.config_yaml(deployment)}
    text = render(variables, comments)
    yaml_text = f"# {HEADER} {__version__}; environment in {env_file.name}\n" + yaml.safe_dump(entries, sort_keys=False)
    for path in (env_file, config):
        _check_ours(path)
    _replace(env_file, text)
    _replace(config, yaml_text)
    _read_back(problem, deployment, candidate, env_file, config)
    return Exported(env_file, config, _commands(problem, env_file, config))


def _stage_lines(problem: Problem, candidate: Candidate) -> list[str]:
    """Which stage stands where: a partition is only right for this order of GPUs."""
    lines, first, placement = [], 0, problem.placement
    for stage, count in enumerate(candidate.partition):
        gpu, node = placement.gpus[stage].name, placement.nodes[stage]
        lines.append(f"stage {stage}: layers {first} to {first + count - 1} on node {node}, {placement.tp} x {gpu}")
        first += count
    return lines


def _commands(problem: Problem, env_file: Path, config: Path) -> tuple[str, ...]:
    nodes = 1 + max(problem.placement.nodes)
    if problem.engine.name != "vllm":
        return (f"set -a; . {env_file}; set +a",)
    start = f"set -a; . {env_file}; set +a; vllm serve --config {config}"
    if nodes == 1:
        return (start,)
    tail = [f"--nnodes {nodes} --node-rank {rank} --master-addr ADDRESS_OF_NODE_0" for rank in range(nodes)]
    return tuple(f"{start} {text}{'' if rank == 0 else ' --headless'}" for rank, text in enumerate(tail))


def _check_ours(path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise SpecError(f"export: {path}: allowed: the path of a file in an existing folder")
    try:
        ours = not path.exists() or HEADER in path.read_text(encoding="utf-8", errors="replace")[:200]
    except OSError as error:
        raise SpecError(f"export: {path}: cannot be read: {error.strerror}") from error
    if not ours:
        raise SpecError(f"export: {path}: exists and was not written by partitune; allowed: another name, with -o")


def _replace(path: Path, text: str) -> None:
    """Write whole or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise SpecError(f"export: {path}: cannot be written: {error.strerror}") from error


def _read_back(problem: Problem, deployment: Deployment, candidate: Candidate, env_file: Path, config: Path) -> None:
    variables = parse(env_file.read_text(encoding="utf-8"), str(env_file))
    name = problem.engine.partition_env
    partition = parse_partition(
        variables.get(name, ""), stages=problem.stages, layers=problem.layers, source=f"{env_file}: {name}"
    )
    taken = problem.engine.read_config(yaml.safe_load(config.read_text(encoding="utf-8")))
    wanted = problem.engine.read_config({"model": problem.architecture.name, **problem.engine.config_yaml(deployment)})
    flags = {key: value for key, value in deployment.knobs.items() if not key.isupper()}
    lost = {key: value for key, value in flags.items() if taken.get(key) != value}
    if partition != candidate.partition or taken != wanted or lost:
        raise SpecError(
            f"export: what was read back from {env_file} and {config} is not what was written: partition "
            f"{format_partition(partition)}, flags lost {sorted(lost)}"
        )
