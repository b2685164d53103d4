"""`partitune launch`: one candidate on a real engine, or every command that this would take."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from partitune.commands.command import Commands, add_command
from partitune.commands.space_arguments import add_space_arguments, space_of
from partitune.errors import Refused
from partitune.search.events import Unwatched

if TYPE_CHECKING:  # for annotations only: these imports cost most of a second
    from partitune.candidate import Result
    from partitune.search.launching import DryRun


def add_launch(commands: Commands) -> None:
    """Add `launch` to the command line."""
    command = add_command(commands, "launch", _launch, "measure one candidate with a runner, or show how it is started")
    add_space_arguments(command)
    command.add_argument("--runner", required=True, help="how it is started here, by name or path")
    command.add_argument("--partition", metavar="V", help="layers per stage, such as 11,11,12 (default: the engine's)")
    command.add_argument("--dry-run", action="store_true", help="print every command, variable and node; start nothing")
    command.add_argument("--ray-address", metavar="HOST:PORT", help="a running Ray cluster, for runners that need one")
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _launch(arguments: argparse.Namespace) -> int:
    from partitune.analysis.explanation import candidate_of
    from partitune.planning.resolve import resolve
    from partitune.search.launching import dry_run, launch, starting_driver
    from partitune.spec.runner import load_runner

    space = space_of(arguments)
    problem, runner = resolve(space), load_runner(arguments.runner)
    candidate = candidate_of(problem, arguments.partition, arguments.flags)
    problem = problem.on(candidate.layout)
    driver = starting_driver(problem, space, runner)
    if not arguments.dry_run:
        return _show(launch(driver, runner, candidate, arguments.ray_address, _Said()), arguments.json)
    try:
        return _show_dry_run(dry_run(driver, runner, candidate), arguments.json)
    except Refused as error:
        _Said().said(str(error))
        return 1


class _Said(Unwatched):
    """A launch is watched for what is said alone."""

    def said(self, text: str) -> None:
        """On stderr, as the engine's own words do not come there."""
        print(f"partitune: {text}", file=sys.stderr)


def _show_dry_run(shown: DryRun, as_json: bool) -> int:
    from partitune.report.launched import dry_run_json, dry_run_lines

    what = (shown.commands, shown.loads, shown.files)
    print(json.dumps(dry_run_json(*what)) if as_json else "\n".join(dry_run_lines(*what)))
    return 0


def _show(result: Result, as_json: bool) -> int:
    from partitune.candidate import Outcome
    from partitune.report.explained import print_result
    from partitune.report.output import stdout

    if as_json:
        measured = None if result.measurement is None else result.measurement.to_json()
        found = {"outcome": result.outcome, "reason": result.reason, "duration_s": result.duration_s}
        print(json.dumps({**result.candidate.to_json(), **found, "measurement": measured}))
    else:
        print_result(stdout(), result)
    if result.detail:
        print(result.detail, file=sys.stderr)
    return 0 if result.outcome is Outcome.OK else 1
