"""`partitune pareto`: the trials of a study that no other beats."""

from __future__ import annotations

import argparse
import sys

from partitune.commands.command import Command, answer
from partitune.commands.study_arguments import add_stored_study_arguments, reading


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stored_study_arguments(parser)
    parser.add_argument("--csv", action="store_true", help="all trials as CSV")


def _pareto(arguments: argparse.Namespace) -> int:
    from partitune.report.study import print_pareto
    from partitune.search.stored_study import study_name, summary_of

    with reading(arguments) as store:
        summary = summary_of(store, study_name(store, arguments.study))
    if arguments.csv and not arguments.json:
        sys.stdout.write(summary.to_csv())
    else:
        answer(arguments, summary.pareto_json, lambda console: print_pareto(console, summary))
    return 0


COMMAND = Command("pareto", "the Pareto front of a study", _pareto, _add_arguments)
