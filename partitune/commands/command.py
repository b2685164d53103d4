"""What every command is: a value with its name, one line about it, its arguments and the function that runs it.

Decision: a file a command, each with one `COMMAND`; `cli.py` lists them and knows nothing else. Whatever costs time is
imported by the function that runs, so that `partitune --help` is instant.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partitune.errors import printable
from partitune.spec.own_file import PRIVATE

if TYPE_CHECKING:  # rich costs a good part of a second
    from partitune.report.output import Output


@dataclass(frozen=True, slots=True)
class Command:
    """One word after `partitune`.

    Attributes:
        name: the word.
        text: what it does, as the list of commands shows it: without a capital letter or a full stop.
        run: takes the arguments, returns the exit code.
        add_arguments: adds them to the parser of the command.
        description: opens its own help; `text` where it is left out.
        interrupted: said after "interrupted" when Ctrl-C ends it.
    """

    name: str
    text: str
    run: Callable[[argparse.Namespace], int]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    description: str = ""
    interrupted: str = ""


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """A word after `partitune` that another has to follow: `name`, `text` and `description` as those of a command."""

    name: str
    text: str
    description: str
    commands: tuple[Command, ...]


def add_commands(parser: argparse.ArgumentParser, commands: Sequence[Command | CommandGroup]) -> None:
    """Let one of `commands` follow on the command line; `arguments.command` is the one that was given."""
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in commands:
        description = command.description or f"{command.text[0].upper()}{command.text[1:]}."
        subparser = subparsers.add_parser(command.name, help=command.text, description=description)
        if isinstance(command, CommandGroup):
            add_commands(subparser, command.commands)
        else:
            subparser.set_defaults(command=command)
            command.add_arguments(subparser)


def add_json_argument(parser: argparse.ArgumentParser, text: str = "one JSON object on stdout") -> None:
    """`--json`, which `answer` obeys; `text` is its line of help."""
    parser.add_argument("--json", action="store_true", help=text)


def add_mode_argument(parser: argparse.ArgumentParser, what: str) -> None:
    """`--mode`, by which `what` is shared."""
    parser.add_argument(
        "--mode", type=_mode, default=PRIVATE, metavar="OCTAL",
        help=f"permissions of {what} where new, such as 640 for a group to read (default: 600, its owner alone)",
    )  # fmt: skip


def _mode(text: str) -> int:
    if not re.fullmatch("0?6[0246]{2}", text):
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: 600 to 666 with digits 0, 2, 4 and 6, such as 640")
    return int(text, 8)


def answer(arguments: argparse.Namespace, to_json: Callable[[], object], print_to: Callable[[Output], object]) -> None:
    """Put the answer of a command on stdout: as JSON where `--json` asks for it, else as people read it."""
    if arguments.json:
        say(json.dumps(to_json()))
        return
    from partitune.report.output import Output

    print_to(Output())


def say(*lines: str) -> None:
    """Put lines of the answer on stdout at once, as they stand in a pipe or a window."""
    for line in lines:
        print(printable(line, lines=True), flush=True)


def tell(*lines: str) -> None:
    """Tell a person on stderr what is no part of the answer."""
    for line in lines:
        print(printable(line, lines=True), file=sys.stderr)
