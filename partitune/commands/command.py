"""One subcommand: its name, what it does in a line, and the function that does it.

Decision: handlers import what they need when they run, so that `partitune --help` is instant.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(
    commands: Commands,
    name: str,
    handler: Callable[[argparse.Namespace], int],
    text: str,
    *,
    more: str = "",
    interrupted: str = "",
) -> argparse.ArgumentParser:
    """Add a subcommand. `more` follows `text` in its own help, `interrupted` is said after Ctrl-C.

    `handler` returns the exit code.
    """
    command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}. {more}".rstrip())
    command.set_defaults(handler=handler, interrupted=interrupted)
    return command
