"""`partitune export`: one trial as files to deploy with."""

from __future__ import annotations

import argparse

from partitune.commands.command import Command, add_mode_argument, say, tell
from partitune.commands.study_arguments import add_database_argument, add_study_argument


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_argument(parser)
    parser.add_argument(
        "--trial", type=int, metavar="N", help="this trial (default: the best, or the engine's default)"
    )
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the env-file, such as deploy.env")
    add_database_argument(parser)
    add_mode_argument(parser, "both files")


def _export(arguments: argparse.Namespace) -> int:
    from partitune.api import export

    study = {"study": arguments.study, "trial": arguments.trial, "database": arguments.db}
    exported = export(arguments.output, **study, mode=arguments.mode)
    for remark in exported.remarks:
        say(remark)
    say(f"wrote {exported.env_file} and {exported.config}; both were read back. Start with:")
    say("\n".join(f"  {command}" for command in exported.commands))
    for warning in exported.warnings:
        tell(f"partitune: warning: {warning}")
    return 0


COMMAND = Command("export", "write a trial as an env-file and an engine config", _export, _add_arguments)
