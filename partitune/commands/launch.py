"""`partitune launch`: one candidate on a real engine, or every command that this would take."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from partitune.commands.command import Command, add_json_argument, answer, say, tell
from partitune.commands.space_arguments import (
    add_partition_argument,
    add_ray_address_argument,
    add_space_arguments,
    space_of,
)
from partitune.errors import Refused
from partitune.search.events import Unwatched

if TYPE_CHECKING:  # for annotations only: it costs most of a second
    from partitune.candidate import Result


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_space_arguments(parser)
    parser.add_argument("--runner", required=True, help="how it is started here, by name or path")
    add_partition_argument(parser)
    parser.add_argument("--dry-run", action="store_true", help="print every command, variable and node; start nothing")
    add_ray_address_argument(parser)
    add_json_argument(parser)


def _launch(arguments: argparse.Namespace) -> int:
    from partitune.analysis.explanation import candidate_of
    from partitune.candidate import Outcome
    from partitune.planning.resolve import resolve
    from partitune.report.explained import print_result
    from partitune.report.launched import dry_run_json, dry_run_lines
    from partitune.search.launching import dry_run, launch, starting_driver
    from partitune.spec.runner import Runner

    space = space_of(arguments)
    problem, runner = resolve(space), Runner.load(arguments.runner)
    candidate = candidate_of(problem, arguments.partition, arguments.flags)
    driver = starting_driver(problem.on(candidate.layout), space, runner)
    if arguments.dry_run:
        try:
            shown = dry_run(driver, runner, candidate)
        except Refused as error:
            _Said().said(str(error))
            return 1
        answer(arguments, lambda: dry_run_json(shown), lambda _: say("\n".join(dry_run_lines(shown))))
        return 0
    result = launch(driver, runner, candidate, arguments.ray_address, _Said())
    answer(arguments, lambda: _to_json(result), lambda console: print_result(console, result))
    if result.detail:
        tell(result.detail)
    return 0 if result.outcome is Outcome.OK else 1


class _Said(Unwatched):
    """A launch is watched for what is said alone."""

    def said(self, text: str) -> None:
        """On stderr, as the engine's own words do not come there."""
        tell(f"partitune: {text}")


def _to_json(result: Result) -> dict[str, object]:
    return {
        **result.candidate.to_json(),
        "outcome": result.outcome,
        "reason": result.reason,
        "duration_s": result.duration_s,
        "measurement": None if result.measurement is None else result.measurement.to_json(),
    }


COMMAND = Command("launch", "measure one candidate with a runner, or show how it is started", _launch, _add_arguments)
