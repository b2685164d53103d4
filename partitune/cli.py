"""The command line: parse, call one command, turn errors into one message and an exit code.

Decision: argparse, and every heavy import inside the handler that needs it, so that `--help` is instant. Data goes to
stdout, everything else to stderr. Exit codes: 0 done, 1 the answer is no (a candidate cannot run, nothing can be
deployed), 2 the input is wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from partitune.commands import (
    explain,
    export,
    gc,
    jobs,
    launch,
    layouts,
    pareto,
    schema,
    search,
    show,
    solve,
    status,
    studies,
    submit,
    validate,
    verify,
)
from partitune.commands import list as list_files
from partitune.commands.command import Command, CommandGroup, add_commands, tell
from partitune.commands.standard_streams import end_by_signals, open_standard_streams
from partitune.errors import PartituneError
from partitune.version import __version__

#: In the order of `partitune --help`.
COMMANDS: tuple[Command | CommandGroup, ...] = (
    *(search.COMMAND, explain.COMMAND, solve.COMMAND, layouts.COMMAND),
    *(pareto.COMMAND, studies.COMMAND, show.COMMAND),
    *(export.COMMAND, launch.COMMAND),
    *(list_files.COMMAND, schema.COMMAND, verify.COMMAND, validate.COMMAND),
    *(status.COMMAND, gc.COMMAND),
    *(submit.COMMAND, jobs.COMMAND),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    open_standard_streams()
    arguments = _parser().parse_args(argv)
    end_by_signals()
    try:
        code: int = arguments.command.run(arguments)
        sys.stdout.flush()
    except PartituneError as error:
        tell(f"partitune: {error}")
        return 2
    except KeyboardInterrupt:
        tell(f"partitune: interrupted{arguments.command.interrupted}")
        return 130
    except OSError as error:
        # Nothing may be written at exit either. A pipe whose reader left (`| head`) is no fault.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            return 0
        tell(f"partitune: {error.strerror}{f': {error.filename}' if error.filename else ''}")
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="partitune",
        description="Finds the pipeline partition and scheduler flags of an LLM server, and shows why.",
        epilog="Start with: partitune search tiny",
    )
    parser.add_argument("--version", action="version", version=f"partitune {__version__}")
    add_commands(parser, COMMANDS)
    return parser
