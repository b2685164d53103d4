"""`partitune status` and `partitune gc`: arguments, and the handlers that `cli.py` calls."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import suppress
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
#: Seconds between two looks of `--watch`.
WATCH_S = 2.0


def add_commands(commands: Commands, default_database: str) -> None:
    """Add `status` and `gc` to the command line."""
    command = commands.add_parser("status", help="how far a study is, while it runs", description=_STATUS)
    command.set_defaults(handler=_status)
    command.add_argument("study", nargs="?", help="study (default: the one created last)")
    command.add_argument("--watch", action="store_true", help="one line whenever something changed, until it ends")
    command.add_argument("--db", default=default_database, help=f"results database (default: {default_database})")
    command.add_argument("--json", action="store_true", help="JSON on stdout, one object a line")

    command = commands.add_parser("gc", help="remove logs that nobody needs, compact the database", description=_GC)
    command.set_defaults(handler=_collect)
    command.add_argument("--dry-run", action="store_true", help="say what would go, and stop there")
    command.add_argument("--older-than", type=_days, default=30.0, metavar="DAYS", help="age of files (default: 30)")
    command.add_argument(
        "--delete-study", action="append", default=[], metavar="STUDY", help="also this study, results and all"
    )
    place = command.add_mutually_exclusive_group()
    place.add_argument("--db", default=default_database, help=f"results database (default: {default_database})")
    place.add_argument("--no-db", action="store_true", help="only files of trials: for a machine without a database")


def _days(text: str) -> float:
    try:
        if (days := float(text)) >= 0:
            return days
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"found {text!r}; allowed: a number of days, such as 30, not below 0")


_STATUS = "How far a study is: read from its database, while a search writes to it or after it ended."
_GC = (
    "Removes logs of studies that are gone, logs that are old and the files of starts of engines on this machine that "
    "ended long ago, and gives free space of the database back. Results stay, unless a study is named."
)


def _status(arguments: argparse.Namespace) -> int:
    from partitune.search.stored_study import spec_of, study_name
    from partitune.search.study import objectives_of
    from partitune.store import Store
    from partitune.store.status import look

    with Store.open(arguments.db, read_only=True) as store:
        study = study_name(store, arguments.study)
        spec = spec_of(store, study)
        said: tuple[int, str] | None = None
        while True:
            seen = look(store, study, objectives_of(spec), spec.budget.trials)
            line = json.dumps(seen.to_json()) if arguments.json else seen.to_text()
            if (seen.finished, seen.state) != said:
                print(line, flush=True)
            said = (seen.finished, seen.state)
            if not arguments.watch or not seen.running:
                return 0
            time.sleep(WATCH_S)


def _collect(arguments: argparse.Namespace) -> int:
    from partitune.errors import SpecError
    from partitune.execution.processes.trial_files import find_old_trials, throw_trials_away

    if arguments.no_db and arguments.delete_study:
        raise SpecError("--delete-study: found beside --no-db; allowed: --db, as a study is in a database")
    verb = "would remove" if arguments.dry_run else "removed"
    if not arguments.no_db:
        _collect_from_database(arguments, verb)
    trials = find_old_trials(arguments.older_than)
    if not arguments.dry_run:
        throw_trials_away(trials)
    for trial in trials:
        print(f"{verb} {trial.folder} (of a start that is over, {trial.age_days:.0f} days old)")
    print(f"{verb} files of {len(trials)} starts on this machine, {sum(trial.bytes for trial in trials)} bytes")
    return 0


def _collect_from_database(arguments: argparse.Namespace, verb: str) -> None:
    from partitune.store import OlderSchema, Store
    from partitune.store.collection import find_rubbish, throw_away

    with suppress(OlderSchema):
        Store.open(arguments.db, read_only=True).close()  # it has to be there: opened for writing, it would be created
    with Store.open(arguments.db, read_only=arguments.dry_run) as store:
        rubbish = find_rubbish(store, arguments.db, arguments.older_than, arguments.delete_study)
        if not arguments.dry_run:
            throw_away(store, rubbish)
    for file, reason in rubbish.logs:
        print(f"{verb} {file} ({reason})")
    for study in rubbish.studies:
        print(f"{verb} study {study} and its trials")
    print(f"{verb} {len(rubbish.logs)} logs, {rubbish.bytes} bytes; results of other studies stay")
