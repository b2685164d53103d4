"""The cluster that jobs run on, and staying with one of them to its end.

Decision: leaving early with Ctrl-C never ends a job, and says how to go on. The exit code of whoever waits is the
job's outcome.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from partitune.commands.command import tell
from partitune.errors import printable

if TYPE_CHECKING:  # for annotations only: these imports cost a second
    from partitune.jobs.client import JobServer
    from partitune.jobs.home import Home

_DEFAULT_ADDRESS = "http://127.0.0.1:8265"


def add_address_argument(parser: argparse.ArgumentParser) -> None:
    """`--address`: the job server of the cluster that is meant."""
    parser.add_argument(
        "--address",
        default=os.environ.get("RAY_API_SERVER_ADDRESS", _DEFAULT_ADDRESS),
        metavar="URL",
        help=f"the head's dashboard (default: RAY_API_SERVER_ADDRESS, or {_DEFAULT_ADDRESS})",
    )


def watch(server: JobServer, job_id: str, database: str | None, *, show: bool, mode: int) -> int:
    """Stay with a job to its end.

    Args:
        server: of the cluster.
        job_id: as `submit` and `jobs list` show it.
        database: where its results go, if it sends any.
        show: its log on stdout meanwhile.
        mode: of a database that is new.

    Returns:
        The exit code that says how it ended; 130 where a person left before.
    """
    from partitune.jobs.home import Home
    from partitune.jobs.submission import advice, exit_code

    def stay() -> int:
        if database is not None:
            _bring_home(server, job_id, database, show=show, mode=mode)
        elif show:
            print_log(server.follow(job_id), Home())
        job = server.wait(job_id)
        tell(f"{job_id}: {job.status}")
        if job.status == "FAILED":
            home = Home()
            last_words = "".join(home.take(line) for line in job.message.splitlines(keepends=True))
            tell(*filter(None, (last_words.rstrip(), advice(job))))
        return exit_code(job)

    return until_left(job_id, database, stay)


def until_left(job_id: str, database: str | None, stay: Callable[[], int]) -> int:
    """The exit code of `stay`, which a person may leave at any time: then 130, and how to come back."""
    try:
        return stay()
    except KeyboardInterrupt:
        again = f"wait {job_id}" + (f" --fetch-results {database}" if database else "")
        tell(f"{job_id} goes on. Come back: partitune jobs {again}. End it: partitune jobs stop {job_id}")
        return 130


def print_log(lines: Iterable[str], home: Home, *, show: bool = True) -> int:
    """Let `home` take the lines of a log, and with `show` print those that are for people. Returns 0."""
    for line in lines:
        text = home.take(line)
        if show and text:
            sys.stdout.write(printable(text, lines=True))
            sys.stdout.flush()
    return 0


def _bring_home(server: JobServer, job_id: str, database: str, *, show: bool, mode: int) -> None:
    from partitune.jobs.home import Home
    from partitune.store import Store

    server.job(job_id)  # before a database is created for a job that is not there
    with Store.open(database, mode=mode) as store:
        home = Home(store)
        try:
            print_log(server.follow(job_id), home, show=show)
        finally:
            home.leave()
    trials = ", ".join(f"{count} trials of {study}" for study, count in home.trials.items())
    tell(f"{database}: {trials or 'the job sent no results'}")
