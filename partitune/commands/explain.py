"""`partitune explain`: one candidate, stage by stage."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from partitune.commands.command import Commands, add_command
from partitune.commands.space_arguments import add_space_arguments, space_of
from partitune.errors import SpecError

if TYPE_CHECKING:  # for annotations only: it costs a good part of a second
    from partitune.planning.problem import Problem


def add_explain(commands: Commands) -> None:
    """Add `explain` to the command line."""
    command = add_command(commands, "explain", _explain, "one candidate stage by stage, beside the engine's default")
    add_space_arguments(command)
    command.add_argument("--partition", metavar="V", help="layers per stage, such as 11,11,12 (default: the engine's)")
    command.add_argument("--part", metavar="NAME", help="of a mix, under this load alone (needed for --trace)")
    command.add_argument("--trace", metavar="FILE", help="write the simulated pipeline as a Chrome trace, for Perfetto")
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _explain(arguments: argparse.Namespace) -> int:
    from partitune.analysis.explanation import candidate_of, explain, trace
    from partitune.planning.resolve import resolve
    from partitune.report.explained import print_explained
    from partitune.report.output import stdout

    problem = _problem(resolve(space_of(arguments)), arguments.part, wants_trace=arguments.trace is not None)
    default = candidate_of(problem, None, {})
    wanted = candidate_of(problem, arguments.partition, arguments.flags)
    one = explain(problem, wanted, limits=True)
    other = explain(problem, default) if wanted != default else None
    if arguments.trace is not None and one.result.measurement is not None:
        _write_trace(arguments.trace, trace(problem, wanted))
    if arguments.json:
        print(json.dumps({**one.to_json(), "default": other and other.to_json()}))
    else:
        print_explained(stdout(), one, other)
    return 0 if one.result.measurement is not None else 1


def _problem(problem: Problem, part: str | None, *, wants_trace: bool) -> Problem:
    """Under the load asked for."""
    try:
        if part is not None:
            return problem.part(part)
    except SpecError as error:
        raise SpecError(f"--part: {error}") from error
    if wants_trace and len(problem.parts) > 1:
        names = ", ".join(load.name for load in problem.mix.loads)
        raise SpecError(f"--trace: found a mix, whose loads run one after the other; allowed: with --part ({names})")
    return problem


def _write_trace(name: str, trace: dict[str, object]) -> None:
    from pathlib import Path

    from partitune.report.trace_file import write_trace

    write_trace(Path(name), trace)
    print(f"partitune: wrote {name}; it opens at https://ui.perfetto.dev", file=sys.stderr)
