"""`partitune studies`, `show` and `pareto`: what a database holds."""

from __future__ import annotations

import argparse
import json
import sys

from partitune.commands.command import Commands, add_command
from partitune.commands.study_arguments import add_output_arguments, add_study_arguments, reading


def add_studies(commands: Commands) -> None:
    """Add `pareto`, `studies` and `show` to the command line."""
    command = add_command(commands, "pareto", _pareto, "the Pareto front of a study")
    add_study_arguments(command)
    command.add_argument("--csv", action="store_true", help="all trials as CSV")

    command = add_command(commands, "studies", _studies, "the studies of a database")
    add_output_arguments(command, "JSON on stdout")

    command = add_command(commands, "show", _show, "a study, or one trial of it")
    add_study_arguments(command)
    command.add_argument("--trial", type=int, metavar="N", help="only this trial, with its stages")


def _pareto(arguments: argparse.Namespace) -> int:
    from partitune.report.output import stdout
    from partitune.report.study import print_pareto
    from partitune.search.stored_study import study_name, summary_of

    with reading(arguments) as store:
        summary = summary_of(store, study_name(store, arguments.study))
    if arguments.json:
        print(json.dumps(summary.pareto_json()))
    elif arguments.csv:
        sys.stdout.write(summary.to_csv())
    else:
        print_pareto(stdout(), summary)
    return 0


def _studies(arguments: argparse.Namespace) -> int:
    from partitune.report.output import stdout
    from partitune.report.study import studies_table

    with reading(arguments) as store:
        studies = [(study, store.counts(study.name)) for study in store.studies()]
    if arguments.json:
        print(json.dumps([{"study": s.name, "state": s.state, "trials": c, "engine": s.engine} for s, c in studies]))
    else:
        stdout().draw(studies_table(studies))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from partitune.analysis.summary import trial_detail
    from partitune.report.output import stdout
    from partitune.report.study import print_summary, print_trial
    from partitune.search.stored_study import explained_summary_of, study_name, summary_of

    with reading(arguments) as store:
        number = arguments.trial
        looked_up = explained_summary_of if number is None else summary_of
        summary = looked_up(store, study_name(store, arguments.study))
        aside = number in summary.set_aside
        if number is not None and not aside:
            summary.trial(number)  # says which there are
        trial = None if number is None else store.trial(summary.study, number)
    if trial is None:
        print(json.dumps(summary.to_json())) if arguments.json else print_summary(stdout(), summary, every=True)
        return 0
    print(json.dumps(trial_detail(trial, aside))) if arguments.json else print_trial(stdout(), trial, aside)
    return 0
