"""`partitune submit`: the same search as a job of a Ray cluster.

Decision: stdout holds what a script wants (the job's id), stderr what a person wants to know meanwhile. It returns
when the job is accepted, unless the job is followed or its results are brought home.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from partitune.commands.command import Command, add_mode_argument, say, tell
from partitune.commands.job_arguments import add_address_argument, watch
from partitune.commands.space_arguments import add_settings_arguments, space_with_flags

if TYPE_CHECKING:  # for annotations only: it costs a second
    from partitune.jobs.package import Shipment

_LARGEST = 5


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("space", metavar="SPACE", help="a search space by name or path")
    add_address_argument(parser)
    add_settings_arguments(parser)
    parser.add_argument("--study", help="name of the study (default: that of the search space)")
    parser.add_argument("--runner", default="simulator", help="how candidates are measured (default: simulator)")
    parser.add_argument("--db", metavar="URL", help="results: an absolute path on the head, or a postgresql:// URL")
    parser.add_argument("--fetch-results", metavar="FILE", help="in place of --db: wait, and bring the results here")
    add_mode_argument(parser, "that file")
    parser.add_argument(
        "--python", default="python3", metavar="CMD", help="starts Python on the head (default: python3)"
    )
    parser.add_argument("--follow", action="store_true", help="show the job's log until it ends")
    parser.add_argument("--dry-run", action="store_true", help="show what would be shipped and run, and stop there")


def _submit(arguments: argparse.Namespace) -> int:
    from partitune.jobs.client import JobServer
    from partitune.jobs.submission import ENVIRONMENT, prepare
    from partitune.spec.runner import Runner

    database = arguments.fetch_results
    prepared = prepare(
        space_with_flags(arguments),
        Runner.load(arguments.runner),
        study=arguments.study,
        database=arguments.db,
        home=database,
        python=arguments.python,
    )
    if arguments.dry_run:
        tell(_shipped(prepared.shipment))
        say(prepared.entrypoint)
        return 0
    server = JobServer(arguments.address)
    if database is not None:
        _check_home(database, prepared.study, arguments.mode)
    tell(_shipped(prepared.shipment))
    job_id = server.submit(
        prepared.entrypoint, prepared.shipment, study=prepared.study, results=prepared.results, env=ENVIRONMENT
    )
    watched = arguments.follow or database is not None
    (tell if watched else say)(job_id)
    if not watched:
        tell(f"results: {prepared.results}; go on with: partitune jobs logs {job_id} --follow")
        return 0
    return watch(server, job_id, database, show=arguments.follow, mode=arguments.mode)


def _check_home(database: str, study: str, mode: int) -> None:
    """Refuse a database that cannot be written, or that holds the study already, before anything is started."""
    from partitune.errors import SpecError
    from partitune.store import Store

    with Store.open(database, mode=mode) as store:
        if study in {stored.name for stored in store.studies()}:
            raise SpecError(
                f"--study {study}: {store.label} holds a study of that name; "
                f"allowed: a new name, such as {store.unique_study_name(study)}, or another --fetch-results"
            )


def _shipped(shipment: Shipment) -> str:
    sizes = shipment.sizes
    own = ", ".join(f"{path} ({_size(sizes[path])})" for path in shipment.files)
    largest = ", ".join(f"{path} ({_size(sizes[path])})" for path in list(sizes)[:_LARGEST])
    return (
        f"ships {_size(sum(sizes.values()))}: partitune {shipment.label} ({len(shipment.package)} files) and {own}\n"
        f"largest: {largest}"
    )


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1024:.1f} KiB" if size_bytes < 1 << 20 else f"{size_bytes / (1 << 20):.1f} MiB"


COMMAND = Command(
    "submit",
    "the same search as a job of a Ray cluster",
    _submit,
    _add_arguments,
    "Runs a search as a job of a Ray cluster. Ships this partitune and only the files that the search space names (its "
    "config.json, its trace); .gitignore and .rayignore play no part. The token of a cluster is taken from where Ray "
    "takes it: RAY_AUTH_MODE=token with RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token.",
)
