"""`partitune status`: how far a study is, read from its database while a search writes to it."""

from __future__ import annotations

import argparse
import json
import time

from partitune.commands.command import Command, add_json_argument, say
from partitune.commands.study_arguments import add_database_argument, add_study_argument, reading

#: Seconds between two looks of `--watch`.
WATCH_S = 2.0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_argument(parser)
    parser.add_argument("--watch", action="store_true", help="one line whenever something changed, until it ends")
    add_database_argument(parser)
    add_json_argument(parser, "JSON on stdout, one object a line")


def _status(arguments: argparse.Namespace) -> int:
    from partitune.search.stored_study import aim_of, study_name
    from partitune.store.status import look

    with reading(arguments) as store:
        study = study_name(store, arguments.study)
        aim = aim_of(store, study)
        printed: tuple[int, str] | None = None
        while True:
            status = look(store, study, aim.objectives, aim.trials)
            if (status.finished, status.state) != printed:
                say(json.dumps(status.to_json()) if arguments.json else status.to_text())
            printed = (status.finished, status.state)
            if not arguments.watch or not status.running:
                return 0
            time.sleep(WATCH_S)


COMMAND = Command(
    "status",
    "how far a study is, while it runs",
    _status,
    _add_arguments,
    "How far a study is: read from its database, while a search writes to it or after it ended.",
)
