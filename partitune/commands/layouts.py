"""`partitune layouts`: tensor, pipeline, data and expert parallelism side by side."""

from __future__ import annotations

import argparse

from partitune.commands.command import Command, add_json_argument, answer, tell
from partitune.commands.space_arguments import add_space_arguments, space_of


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_space_arguments(parser)
    add_json_argument(parser)


def _layouts(arguments: argparse.Namespace) -> int:
    from partitune.report.alternatives import print_compared
    from partitune.search.layout_comparison import compare_layouts

    compared = compare_layouts(space_of(arguments, for_layouts=True), arguments.flags, tell)
    answer(arguments, compared.to_json, lambda console: print_compared(console, compared))
    return 0 if compared.running else 1


COMMAND = Command(
    "layouts",
    "every layout (tensor, pipeline, data, expert parallel) the GPUs admit, simulated side by side",
    _layouts,
    _add_arguments,
)
