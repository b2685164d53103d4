"""What a start consists of, as a person reads it and can paste it, and as JSON.

Decision: a dry run prints commands that a shell would run as they stand, node by node, a variable or flag a line; what
is only known at the start (addresses, a free port) is stood in for and said. Instead of a secret stands its name, so
that the shell takes it from where partitune would.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from partitune.partition import Partition

if TYPE_CHECKING:  # values to draw: what works them out is not imported
    from partitune.execution.processes.launch import LaunchCommands, ProcessCommand
    from partitune.search.launching import DryRun


def dry_run_lines(shown: DryRun) -> Iterator[str]:
    """The lines of a dry run; a command with its continuation lines is one."""
    commands = shown.commands
    yield f"# partition {Partition(commands.partition).text}, served as {commands.served_name} at {commands.url}"
    for note in commands.notes:
        yield f"# {note}"
    for name, text in shown.files.items():
        yield f"# file {name}"
        yield from (f"#   {line}" for line in text.splitlines())
    for process in commands.processes:
        yield ""
        yield f"# node {process.node} ({process.host}){_stages(commands, process.node)}"
        yield _command(process)
    for load in shown.loads:
        yield ""
        yield f"# load generator, on node {load.node}"
        yield _command(load)


#: Fields of the commands that a dry run's object begins with.
_SAID_FIRST = ("trial", "engine", "partition", "served_name", "url", "stage_nodes")


def dry_run_json(shown: DryRun) -> dict[str, Any]:
    """A dry run as `launch --dry-run --json` prints it. Keys may be added, never changed."""
    commands, loads = shown.commands, [_process_json(load) for load in shown.loads]
    return {
        **{name: getattr(commands, name) for name in _SAID_FIRST},
        "processes": [_process_json(process) for process in commands.processes],
        "load": loads[0] if len(loads) == 1 else None,
        "loads": loads,
        "files": dict(shown.files),
        "notes": list(commands.notes),
    }


def _process_json(process: ProcessCommand) -> dict[str, Any]:
    return {
        "node": process.node,
        "host": process.host,
        "argv": list(process.argv),
        "env": {**process.env, **dict.fromkeys(process.secrets, "***")},
        "unset": list(process.unset),
    }


def _stages(commands: LaunchCommands, node: int) -> str:
    if commands.stage_nodes is None:
        return ""
    here = [stage for stage, where in enumerate(commands.stage_nodes) if where == node]
    return f", stages {here[0]} to {here[-1]}" if len(here) > 1 else "".join(f", stage {stage}" for stage in here)


def _command(process: ProcessCommand) -> str:
    lines = [f"env {' '.join(f'-u {name}' for name in process.unset)}".rstrip()]
    lines += [f"{name}={shlex.quote(value)}" for name, value in process.env.items()]
    lines += [f'{name}="${name}"' for name in process.secrets]
    groups: list[list[str]] = [[]]  # the program, then each flag with its values
    for word in process.argv:
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(word)
    return " \\\n  ".join([*lines, *map(shlex.join, groups)])
