"""`partitune solve`: the exact front of partitions, without a search."""

from __future__ import annotations

import argparse
import json

from partitune.commands.command import Commands, add_command
from partitune.commands.space_arguments import add_space_arguments, space_of


def add_solve(commands: Commands) -> None:
    """Add `solve` to the command line."""
    command = add_command(commands, "solve", _solve, "the exact front of partitions, without a search")
    add_space_arguments(command)
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _solve(arguments: argparse.Namespace) -> int:
    from partitune.report.output import stdout
    from partitune.report.solve import print_solved
    from partitune.search.exact_front import solve

    solved = solve(space_of(arguments), arguments.flags)
    if arguments.json:
        print(json.dumps(solved.to_json()))
    else:
        print_solved(stdout(), solved)
    return 0 if solved.best is not None else 1
