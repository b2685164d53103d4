"""`partitune export`: one trial as files to deploy with."""

from __future__ import annotations

import argparse
import sys

from partitune.commands.command import Commands, add_command
from partitune.commands.study_arguments import DEFAULT_DATABASE, reading


def add_export(commands: Commands) -> None:
    """Add `export` to the command line."""
    command = add_command(commands, "export", _export, "write a trial as an env-file and an engine config")
    command.add_argument("study", nargs="?", help="study (default: the one created last)")
    command.add_argument(
        "--trial", type=int, metavar="N", help="this trial (default: the best, or the engine's default)"
    )
    command.add_argument("-o", "--output", required=True, metavar="FILE", help="the env-file, such as deploy.env")
    command.add_argument("--db", default=DEFAULT_DATABASE, help=f"results database (default: {DEFAULT_DATABASE})")


def _export(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from partitune.analysis.summary import remarks, trial_to_export
    from partitune.export.deploy import export
    from partitune.planning.resolve import resolve
    from partitune.search.stored_study import spec_of, study_name, summary_of

    with reading(arguments) as store:
        study = study_name(store, arguments.study)
        summary, spec = summary_of(store, study), spec_of(store, study)
    trial = trial_to_export(summary, arguments.trial)
    done = export(resolve(spec), trial.result.candidate, Path(arguments.output), remarks(summary, trial))
    for remark in remarks(summary, trial):
        print(remark)
    print(f"wrote {done.env_file} and {done.config}; both were read back. Start with:")
    print("\n".join(f"  {command}" for command in done.commands))
    for warning in done.warnings:
        print(f"partitune: warning: {warning}", file=sys.stderr)
    return 0
