"""From what a person types to what Ray is told: the command of a job, where its results go, and what its end means.

Decision: everything that can be known here is checked here, because a job answers half a minute later. The job's own
folder is temporary, so a database in it would be lost: results go to a place that outlasts the job, or come home. A
password is refused in a database URL: Ray shows the command and the environment of a job to all who see its dashboard.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from partitune.errors import SpecError
from partitune.execution.choice import check_runner
from partitune.jobs.client import Job
from partitune.jobs.package import FILES, Shipment, pack
from partitune.planning.resolve import resolve
from partitune.spec.catalog import SHIPPED_FILES
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace

#: Of the job and its tasks. The wait is Ray's between SIGTERM and SIGKILL (3 s by itself), in which servers are ended.
ENVIRONMENT = {SHIPPED_FILES: FILES, "RAY_JOB_STOP_WAIT_TIME_S": "60"}
_STUDY = re.compile(r"[\w.-]{1,64}", re.ASCII)  # also part of the job's id, which is part of URLs
_MISSING = re.compile(r"No module named '?([\w.]+)")
_OLD = re.compile(r"cannot import name '(StrEnum|Self|UTC)'")  # what partitune uses of Python 3.11


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """A job about to be started."""

    study: str
    results: str  # where they go, as `jobs list` says it
    entrypoint: str
    shipment: Shipment


def prepare(
    space: SearchSpace, runner: Runner, *, study: str | None, database: str | None, home: str | None, python: str
) -> PreparedJob:
    """Check and pack a search.

    Args:
        space: the search space, with every setting of the command line in it.
        runner: how candidates are measured.
        study: its name; that of the space if None.
        database: an absolute path on the head, or a database URL.
        home: where results are brought, in place of `database`.
        python: the command that starts Python on the head.

    Raises:
        SpecError: anything of it that cannot work.
    """
    results = _destination(database, home)
    resolve(space)
    check_runner(runner)
    try:
        command = shlex.split(python)
    except ValueError as error:
        raise SpecError(f"--python {python!r}: {error}; allowed: a command, such as /opt/venv/bin/python") from error
    if not command:
        raise SpecError("--python '': allowed: a command, such as python3 or /opt/venv/bin/python")
    name = space.name if study is None else study
    if not _STUDY.fullmatch(name):
        raise SpecError(f"--study {name!r}: allowed: at most 64 characters of a-z, A-Z, 0-9, '.', '_' and '-'")
    shipment = pack(space, runner)
    command += ["-m", "partitune.jobs.sending"] if database is None else ["-m", "partitune", "search"]
    command += [shipment.space, "--runner", shipment.runner, "--study", name, "--pool", "ray", "--ray-address", "auto"]
    command += [] if database is None else ["--db", database]
    return PreparedJob(name, results, shlex.join(command), shipment)


def _destination(database: str | None, home: str | None) -> str:
    lasting = "an absolute path on the head node, or a postgresql:// URL"
    if database is not None and home is not None:
        raise SpecError("--db: found beside --fetch-results; allowed: one of the two")
    if database is None:
        if home is None:
            raise SpecError(
                "no place for the results: the folder of a job is temporary; "
                f"allowed: --fetch-results FILE (brought here, such as results.db), or --db with {lasting}"
            )
        return "brought home"
    path, label = database, database
    if "://" in database:
        try:
            url = make_url(database)
        except ArgumentError as error:
            raise SpecError(f"--db: not a database URL; allowed: {lasting}") from error
        label, path = url.set(query={}).render_as_string(hide_password=True), url.database or ""
        if url.password is not None or "password" in url.query:
            raise SpecError(
                f"--db {label}: holds a password, which Ray would show to everybody who sees the job; "
                "allowed: the URL without it, and PGPASSFILE or ~/.pgpass on the head node"
            )
        if url.get_backend_name() == "postgresql":
            return label
        if url.get_backend_name() != "sqlite":
            raise SpecError(f"--db {label}: {url.get_backend_name()} is not supported; allowed: {lasting}")
    if not path.startswith("/"):
        raise SpecError(
            f"--db {label}: a relative path, and the folder of a job is temporary; allowed: {lasting}, "
            "or --fetch-results FILE in its place"
        )
    return f"{label} on the head node"


def exit_code(job: Job) -> int:
    """0 succeeded, 130 stopped, else the code of the search itself (1: nothing usable found, 2: wrong input)."""
    if job.status == "SUCCEEDED":
        return 0
    if job.status == "STOPPED":
        return 130
    return job.exit_code if job.exit_code and 0 < job.exit_code < 256 else 1


def advice(job: Job) -> str:
    """What to do about a failure that the job's last words explain; empty when they do not."""
    if missing := _MISSING.search(job.message):
        what = f"has no module {missing[1]}"
    elif _OLD.search(job.message):
        what = "is older than 3.11"
    elif job.exit_code in (126, 127):
        what = "does not start"
    else:
        return ""
    return (
        f"The Python of the job {what}: partitune is shipped, its dependencies are not. "
        "Name the Python that Ray itself runs from, such as --python /opt/venv/bin/python, or install them there"
    )
