"""`partitune search`: try candidates and record them."""

from __future__ import annotations

import argparse

from partitune.commands.command import Command, add_json_argument, add_mode_argument, answer
from partitune.commands.space_arguments import add_ray_address_argument, add_space_arguments, space_with_flags
from partitune.commands.study_arguments import add_database_argument


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_space_arguments(parser)
    parser.add_argument("--study", help="name of the study (default: that of the search space)")
    parser.add_argument("--resume", metavar="STUDY", help="go on with a study of the database, in place of SPACE")
    parser.add_argument("--extend", action="store_true", help="go on though its knobs, seeds or objectives changed")
    parser.add_argument(
        "--accept-changes", action="store_true",
        help="go on whatever changed; trials measured under another spec are kept, and set aside",
    )  # fmt: skip
    parser.add_argument("--runner", help="how candidates are measured (default: simulator, or as the study was begun)")
    parser.add_argument(
        "--pool", choices=("ray", "local"), default="ray", help="where they run: Ray workers, or this process"
    )
    add_ray_address_argument(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    add_database_argument(parser)
    add_mode_argument(parser, "the database and its logs")
    add_json_argument(parser, "end with one JSON object on stdout")


def _search(arguments: argparse.Namespace) -> int:
    from partitune.report.progress import TerminalWatcher
    from partitune.report.study import print_summary
    from partitune.search.stored_study import Aim, explained_summary_of
    from partitune.search.study import StudyOrder, run, stored_search
    from partitune.spec.runner import Runner

    stored, runner = (None, "simulator") if arguments.resume is None else stored_search(arguments.db, arguments.resume)
    spec = space_with_flags(arguments, stored)
    study = arguments.resume or (spec.name if arguments.study is None else arguments.study)
    where = (arguments.db, study, arguments.pool, arguments.ray_address)
    asked = {"extend": arguments.extend, "accept_changes": arguments.accept_changes}
    order = StudyOrder(spec, Runner.load(arguments.runner or runner), *where, arguments.mode, **asked)
    with (
        TerminalWatcher(Aim.of(spec.resolved()).objectives, spec.budget.trials, quiet=arguments.quiet) as watcher,
        run(order, watcher) as (store, progress),
    ):
        summary = explained_summary_of(store, study)
        watcher.close()  # before the answer, which may go to the same terminal
        answer(
            arguments,
            lambda: {**summary.to_json(), "stopped": progress.stopped},
            lambda console: print_summary(console, summary, progress.stopped),
        )
    return 0 if summary.best is not None else 1


COMMAND = Command(
    "search",
    "try candidates and record them; resumes a study of the same name",
    _search,
    _add_arguments,
    "Try candidates and record them; resumes a study of the same name. A runner that launches an engine gets what a "
    "screen in the simulator ranks best; in the end the best trials and the engine's default run again in a final, "
    "which alone decides. Keys of the search space: budget.screen, budget.finalists (0: no final), budget.pairs, "
    "indifference_zone.",
    interrupted="; every finished trial is stored, the same command goes on",
)
