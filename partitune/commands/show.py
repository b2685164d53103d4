"""`partitune show`: what a study found, or one trial of it with its stages."""

from __future__ import annotations

import argparse

from partitune.commands.command import Command, answer
from partitune.commands.study_arguments import add_stored_study_arguments, reading


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stored_study_arguments(parser)
    parser.add_argument(
        "--distance", action="store_true", help="also how far the best is from the limit, simulated now"
    )
    parser.add_argument("--trial", type=int, metavar="N", help="only this trial, with its stages")


def _show(arguments: argparse.Namespace) -> int:
    from partitune.analysis.summary import trial_detail
    from partitune.report.study import print_summary, print_trial
    from partitune.search.stored_study import explained_summary_of, study_name, summary_of

    number = arguments.trial
    with reading(arguments) as store:
        study = study_name(store, arguments.study)
        if number is None:
            summary = (explained_summary_of if arguments.distance else summary_of)(store, study)
            answer(arguments, summary.to_json, lambda console: print_summary(console, summary, every=True))
            return 0
        summary = summary_of(store, study)
        if number not in summary.set_aside:
            summary.trial(number)  # says which there are
        trial = store.trial(study, number)
    answer(arguments, lambda: trial_detail(trial, summary), lambda console: print_trial(console, trial, summary))
    return 0


COMMAND = Command("show", "a study, or one trial of it", _show, _add_arguments)
