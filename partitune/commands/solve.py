"""`partitune solve`: the exact front of partitions, without a search."""

from __future__ import annotations

import argparse

from partitune.commands.command import Command, add_json_argument, answer
from partitune.commands.space_arguments import add_space_arguments, space_of


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_space_arguments(parser)
    add_json_argument(parser)


def _solve(arguments: argparse.Namespace) -> int:
    from partitune.report.alternatives import print_solved
    from partitune.search.exact_front import solve

    solved = solve(space_of(arguments), arguments.flags)
    answer(arguments, solved.to_json, lambda console: print_solved(console, solved))
    return 0 if solved.best is not None else 1


COMMAND = Command("solve", "the exact front of partitions, without a search", _solve, _add_arguments)
