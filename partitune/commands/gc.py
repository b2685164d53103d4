"""`partitune gc`: removes what nobody needs any more, and says what."""

from __future__ import annotations

import argparse
import shutil

from partitune.commands.command import Command, say
from partitune.commands.study_arguments import add_database_argument


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="say what would go, and stop there")
    parser.add_argument("--older-than", type=_days, default=30.0, metavar="DAYS", help="age of files (default: 30)")
    parser.add_argument(
        "--delete-study", action="append", default=[], metavar="STUDY", help="also this study, results and all"
    )
    place = parser.add_mutually_exclusive_group()
    add_database_argument(place)
    place.add_argument("--no-db", action="store_true", help="only files of this machine: where there is no database")


def _days(text: str) -> float:
    try:
        if (days := float(text)) >= 0:
            return days
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"found {text!r}; allowed: a number of days, such as 30, not below 0")


def _collect(arguments: argparse.Namespace) -> int:
    from partitune.errors import SpecError
    from partitune.execution.processes.trial_files import find_old_trials, throw_trials_away
    from partitune.execution.ray.own_session import abandoned_sessions

    if arguments.no_db and arguments.delete_study:
        raise SpecError("--delete-study: found beside --no-db; allowed: --db, as a study is in a database")
    verb = "would remove" if arguments.dry_run else "removed"
    if not arguments.no_db:
        _collect_from_database(arguments, verb)
    trials = find_old_trials(arguments.older_than)
    if not arguments.dry_run:
        throw_trials_away(trials)
    for trial in trials:
        say(f"{verb} {trial.folder} (of a start that is over, {trial.age_days:.0f} days old)")
    for session in abandoned_sessions():
        if not arguments.dry_run:
            shutil.rmtree(session, ignore_errors=True)
        say(f"{verb} {session} (Ray's files of a search that was killed)")
    say(f"{verb} files of {len(trials)} starts on this machine, {sum(trial.bytes for trial in trials)} bytes")
    return 0


def _collect_from_database(arguments: argparse.Namespace, verb: str) -> None:
    from partitune.errors import StoreError
    from partitune.store import OlderSchema, Store
    from partitune.store.collection import find_rubbish, remove_logs, remove_studies
    from partitune.store.writer import refusal

    try:
        store = Store.open(arguments.db, read_only=True)
    except OlderSchema:
        if arguments.dry_run:
            raise
        Store.open(arguments.db).close()
        store = Store.open(arguments.db, read_only=True)
    with store:
        rubbish = find_rubbish(store, arguments.db, arguments.older_than, arguments.delete_study)
        if not arguments.dry_run and (writer := store.writer()):
            raise StoreError(refusal(store.label, writer))
    if not arguments.dry_run:
        remove_logs(rubbish)
    for file, reason in rubbish.logs:
        say(f"{verb} {file} ({reason})")
    left = "" if arguments.dry_run else remove_studies(arguments.db, rubbish)
    for study in rubbish.studies:
        say(f"{verb} study {study} and its trials")
    say(f"{verb} {len(rubbish.logs)} logs, {rubbish.bytes} bytes; results of other studies stay")
    if left:
        say(f"the database stays as large as it is: {left}")


COMMAND = Command(
    "gc",
    "remove logs that nobody needs, compact the database",
    _collect,
    _add_arguments,
    "Removes logs of studies that are gone, logs that are old, the files of starts of engines on this machine that "
    "ended long ago and what Ray left of searches that were killed, and gives free space of the database back. "
    "Results stay, unless a study is named.",
)
