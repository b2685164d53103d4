"""`partitune layouts`: what else the GPUs could be used for than the layout of the file."""

from __future__ import annotations

import argparse
import json

from partitune.commands.command import Commands, add_command
from partitune.commands.space_arguments import add_space_arguments, space_of


def add_layouts(commands: Commands) -> None:
    """Add `layouts` to the command line."""
    text = "every layout (tensor, pipeline, data, expert parallel) the GPUs admit, simulated side by side"
    command = add_command(commands, "layouts", _layouts, text)
    add_space_arguments(command)
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _layouts(arguments: argparse.Namespace) -> int:
    from partitune.report.layout_table import print_compared
    from partitune.report.output import stdout
    from partitune.search.layout_comparison import compare_layouts

    if arguments.space is None:  # where the comparison starts from makes no difference to it
        arguments.tp, arguments.pp = arguments.tp or 1, arguments.pp or 1
    compared = compare_layouts(space_of(arguments), arguments.flags)
    if arguments.json:
        print(json.dumps(compared.to_json()))
    else:
        print_compared(stdout(), compared)
    return 0 if compared.running else 1
