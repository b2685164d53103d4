"""Write a trial as an env-file and an engine config beside it, and say done only after both were read back.

Decision: what the engine takes only from the environment (the partition) stands in the env-file, all flags in the YAML
that the engine's `--config` reads, so that each is in the one place where every tool reads it alike. Both files are
written beside their places, read back there, and only then put in place of older ones; a file that is not ours is
never overwritten. The partition is written out even where it is the engine's own, so that another release of the
engine, or the other side of a KV transfer, cannot split differently.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from partitune.candidate import Candidate, FlagValue
from partitune.engines.deployment import Deployment, command_flags
from partitune.errors import SpecError
from partitune.export.env_file import code_warnings, comment_line, parse, render
from partitune.export.placement_notes import placement_notes, stages_differ_on_a_node, start_warnings
from partitune.partition import parse_partition
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.spec.own_file import PRIVATE, check_free, write_whole
from partitune.version import __version__

HEADER = "written by partitune"


@dataclass(frozen=True, slots=True)
class Exported:
    """The two files, how to start with them, what was found about the trial, and what may keep it from starting."""

    env_file: Path
    config: Path
    commands: tuple[str, ...]
    remarks: tuple[str, ...]
    warnings: tuple[str, ...]


def export(
    problem: Problem, candidate: Candidate, env_file: Path, remarks: tuple[str, ...], mode: int = PRIVATE
) -> Exported:
    """Write `candidate` to `env_file` and a YAML of the same name, and check both.

    Args:
        problem: what is served; a candidate may name a layout of its own.
        candidate: partition, layout and flags.
        env_file: where the environment goes; the YAML is put beside it.
        remarks: what was found about the trial; written down as comments.
        mode: of files that are new.

    Raises:
        SpecError: a value that cannot be exported, a file that is not ours, or a check that failed; older files stay.
    """
    config, resolved = _config_beside(env_file), ResolvedCandidate(problem, candidate)
    problem, deployment = resolved.problem, resolved.deployment
    model, warnings = served_model(problem)
    variables = start_variables(problem, deployment)
    warnings += start_warnings(resolved) + code_warnings(variables)
    title = f"{HEADER} {__version__} for {problem.engine.name} {problem.version}"
    notes = [title, *remarks, *placement_notes(resolved), *(f"warning: {text}" for text in warnings)]
    text = render(variables, notes)
    entries = {problem.engine.launch.model_key: model, **problem.engine.launch.config_yaml(deployment)}
    config_text = comment_line(f"{title}; the partition stands in {env_file.name}") + "\n"
    config_text += yaml.safe_dump(entries, sort_keys=False, allow_unicode=True, width=2**16)
    for path in (env_file, config):
        check_free(path, "export", _is_ours, "was not written by partitune")

    def check(written: Mapping[Path, bytes]) -> None:
        _check_partition(resolved, written[env_file].decode(), str(env_file))
        _check_flags(resolved, entries, written[config].decode(), str(config))

    write_whole({env_file: text.encode(), config: config_text.encode()}, "export", check, mode)
    nodes = problem.placement.node_count
    source = shlex.quote(str(env_file) if "/" in str(env_file) else f"./{env_file}")  # `. name` looks in PATH only
    commands = problem.engine.launch.config_commands(str(config), deployment, nodes)
    sourced = tuple(f"set -a; . {source}; set +a; {command}" for command in commands)
    return Exported(env_file, config, sourced, remarks, warnings)


def start_variables(problem: Problem, deployment: Deployment) -> dict[str, str]:
    """What the environment carries. CUDA numbers unlike GPUs by speed unless it is told otherwise."""
    fixed_order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if stages_differ_on_a_node(problem.placement) else {}
    return {**fixed_order, **problem.engine.launch.environment(deployment)}


def served_model(problem: Problem) -> tuple[str, tuple[str, ...]]:
    """What the engine is told to serve: a hub id, or the folder the config.json lies in; and what is odd about it."""
    if problem.architecture.repository is not None:
        return problem.architecture.repository, ()
    path, key = Path(problem.model), problem.engine.launch.model_key
    if path.is_dir():
        return str(path), ()
    odd = f"{path.name} is not a checkpoint folder's config.json; write the model to serve under {key}"
    return str(path.parent), () if path.name == "config.json" else (odd,)


def _config_beside(env_file: Path) -> Path:
    """Name of the YAML that goes with an env-file.

    Raises:
        SpecError: a name that some reader cannot take.
    """
    if not env_file.name or env_file.suffix.lower() in (".yaml", ".yml"):
        raise SpecError(
            f"export: {env_file}: allowed: the name of the env-file, such as deploy.env; the YAML is put beside it"
        )
    if not str(env_file).isprintable():
        raise SpecError(f"export: {str(env_file)!r}: allowed: a path of printable characters")
    return env_file.with_suffix(".yaml") if env_file.suffix == ".env" else env_file.with_name(env_file.name + ".yaml")


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(HEADER) + 2) == f"# {HEADER}".encode()


def _check_partition(resolved: ResolvedCandidate, text: str, source: str) -> None:
    problem = resolved.problem
    name = problem.engine.launch.partition_env
    written = parse(text, source).get(name, "")
    partition = parse_partition(written, stages=problem.stages, layers=problem.layers, source=f"{source}: {name}")
    if partition != resolved.partition:
        raise SpecError(
            f"export: {source}: read back as partition {partition.text}, which is not what was written; "
            f"is {name} set in engine.env?"
        )


def _check_flags(resolved: ResolvedCandidate, entries: Mapping[str, FlagValue], text: str, source: str) -> None:
    """Hold what the engine would take from the file against every flag of the deployment.

    A flag that can only be switched on and is off has no entry, and needs none.
    """
    read_config = resolved.problem.engine.launch.read_config
    taken = read_config(yaml.safe_load(text))
    named = {key.replace("-", "_").removeprefix("no_") for key in entries}
    flags = command_flags(resolved.deployment.flags).items()
    needed = {name: value for name, value in flags if value is not False or name in named}
    lost = sorted(name for name, value in needed.items() if taken.get(name) != value)
    if lost or taken != read_config(entries):
        raise SpecError(f"export: {source}: read back, the engine would take other values; lost: {', '.join(lost)}")
