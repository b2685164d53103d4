"""`partitune submit` and `partitune jobs`: arguments, and the handlers that `cli.py` calls.

Decision: stdout holds what a script wants (the job's id, its log, the list), stderr what a person wants to know
meanwhile. `submit` returns when the job is accepted, unless it is followed or its results are brought home; leaving
early with Ctrl-C never ends the job, and says how to go on. The exit code of whoever waits is the job's outcome.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # for annotations only: these imports cost a second
    from partitune.jobs.client import Head, Job
    from partitune.jobs.home import Home
    from partitune.jobs.package import Shipment
    from partitune.spec.search_space import SearchSpace

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_DEFAULT_ADDRESS = "http://127.0.0.1:8265"
_LARGEST = 5


def add_commands(commands: Commands) -> None:
    """Add `submit` and `jobs` to the command line."""
    command = commands.add_parser("submit", help="the same search as a job of a Ray cluster", description=_SUBMIT)
    command.set_defaults(handler=_submit)
    command.add_argument("space", metavar="SPACE", help="a search space by name or path")
    _address(command)
    command.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="as in partitune search; repeatable"
    )
    command.add_argument("--trials", type=int, metavar="N", help="budget of trials, over the space's own")
    command.add_argument("--seed", type=int, metavar="N", help="random seed, over the space's own")
    command.add_argument("--study", help="name of the study (default: that of the search space)")
    command.add_argument("--runner", default="simulator", help="how candidates are measured (default: simulator)")
    command.add_argument("--db", metavar="URL", help="results: an absolute path on the head, or a postgresql:// URL")
    command.add_argument("--fetch-results", metavar="FILE", help="in place of --db: wait, and bring the results here")
    command.add_argument(
        "--python", default="python3", metavar="CMD", help="starts Python on the head (default: python3)"
    )
    command.add_argument("--follow", action="store_true", help="show the job's log until it ends")
    command.add_argument("--dry-run", action="store_true", help="show what would be shipped and run, and stop there")

    command = commands.add_parser("jobs", help="jobs that partitune submitted", description=_JOBS)
    kinds = command.add_subparsers(title="commands", metavar="COMMAND", required=True)
    command = _kind(kinds, "list", _list, "Lists the jobs of the cluster that partitune submitted.")
    command.add_argument("--json", action="store_true", help="JSON on stdout")
    command = _kind(kinds, "logs", _logs, "Shows the log of a job.", job=True)
    command.add_argument("--follow", action="store_true", help="until the job ends")
    _kind(kinds, "stop", _stop, "Stops a job; returns when nothing of it runs any more.", job=True)
    command = _kind(kinds, "wait", _wait, "Waits for the end of a job; the exit code is its outcome.", job=True)
    command.add_argument("--fetch-results", metavar="FILE", help="bring its results here, if it was submitted so")


_SUBMIT = """Runs a search as a job of a Ray cluster. Ships this partitune and only the files that the search space
names (its config.json, its trace); .gitignore and .rayignore play no part. The token of a cluster is taken from where
Ray takes it: RAY_AUTH_MODE=token with RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token."""
_JOBS = "Jobs that partitune submitted. Exit codes of wait: 0 succeeded, 130 stopped, else that of the search."


def _kind(
    kinds: Commands, name: str, handler: Callable[[argparse.Namespace], int], text: str, *, job: bool = False
) -> argparse.ArgumentParser:
    command = kinds.add_parser(name, help=text[0].lower() + text[1:].rstrip("."), description=text)
    command.set_defaults(handler=handler)
    if job:
        command.add_argument("job", metavar="JOB", help="id of the job, as submit and list show it")
    _address(command)
    return command


def _address(command: argparse.ArgumentParser) -> None:
    default = os.environ.get("RAY_API_SERVER_ADDRESS", _DEFAULT_ADDRESS)
    command.add_argument(
        "--address",
        default=default,
        metavar="URL",
        help=f"the head's dashboard (default: RAY_API_SERVER_ADDRESS, or {_DEFAULT_ADDRESS})",
    )


def _submit(arguments: argparse.Namespace) -> int:
    from partitune.jobs.client import Head
    from partitune.jobs.submission import ENVIRONMENT, prepare
    from partitune.spec.runner import load_runner

    made = prepare(
        _space(arguments),
        load_runner(arguments.runner),
        study=arguments.study,
        database=arguments.db,
        home=arguments.fetch_results,
        python=arguments.python,
    )
    if arguments.dry_run:
        _say_shipped(made.shipment)
        print(made.entrypoint)
        return 0
    head = Head(arguments.address)
    if arguments.fetch_results is not None:
        _check_home(arguments.fetch_results, made.study)
    _say_shipped(made.shipment)
    job_id = head.submit(made.entrypoint, made.shipment, study=made.study, results=made.results, env=ENVIRONMENT)
    watched = arguments.follow or arguments.fetch_results is not None
    print(job_id, file=sys.stderr if watched else sys.stdout)
    if not watched:
        print(f"results: {made.results}; go on with: partitune jobs logs {job_id} --follow", file=sys.stderr)
        return 0
    return _watch(head, job_id, arguments.fetch_results, show=arguments.follow)


def _list(arguments: argparse.Namespace) -> int:
    from partitune.jobs.client import Head
    from partitune.report.output import stdout, table

    jobs = Head(arguments.address).jobs()
    if arguments.json:
        print(json.dumps([_plain(job) for job in jobs]))
        return 0
    rows = (
        (
            *(job.job_id, job.status, job.study),
            *(f"{time.astimezone():%d %b %H:%M:%S}" if time else "-" for time in (job.started_at, job.ended_at)),
            *(job.results, job.package),
        )
        for job in jobs
    )
    columns = ("job", "status", "study", "started", "ended", "results", "partitune")
    stdout().draw(table(f"jobs of {arguments.address}", columns, rows))
    return 0


def _logs(arguments: argparse.Namespace) -> int:
    from partitune.jobs.client import Head
    from partitune.jobs.home import Home

    head, home = Head(arguments.address), Home()
    if arguments.follow:
        return _staying(arguments.job, None, lambda: _read(head.follow(arguments.job), home, show=True))
    return _read(head.log(arguments.job), home, show=True)


def _stop(arguments: argparse.Namespace) -> int:
    from partitune.jobs.client import Head

    head = Head(arguments.address)
    stopped = head.stop(arguments.job)
    print(f"{arguments.job}: {head.job(arguments.job).status}" + ("" if stopped else ", had ended before"))
    return 0


def _wait(arguments: argparse.Namespace) -> int:
    from partitune.jobs.client import Head

    return _watch(Head(arguments.address), arguments.job, arguments.fetch_results, show=False)


def _watch(head: Head, job_id: str, database: str | None, *, show: bool) -> int:
    """Stay with a job to its end; the exit code that says how it ended."""

    def stay() -> int:
        if database is not None:
            _bring_home(head, job_id, database, show=show)
        elif show:
            _read(head.follow(job_id), Home(), show=True)
        job = head.wait(job_id)
        print(f"{job_id}: {job.status}", file=sys.stderr)
        if job.status == "FAILED":
            said = Home()
            last_words = "".join(said.take(line) for line in job.message.splitlines(keepends=True))
            print("\n".join(filter(None, (last_words.rstrip(), advice(job)))), file=sys.stderr)
        return exit_code(job)

    from partitune.jobs.home import Home
    from partitune.jobs.submission import advice, exit_code

    return _staying(job_id, database, stay)


def _bring_home(head: Head, job_id: str, database: str, *, show: bool) -> None:
    from partitune.jobs.home import Home
    from partitune.store import Store

    head.job(job_id)  # before a database is created for a job that is not there
    with Store.open(database) as store:
        home = Home(store)
        try:
            _read(head.follow(job_id), home, show=show)
        finally:
            home.leave()
    found = ", ".join(f"{count} trials of {study}" for study, count in home.trials.items())
    print(f"{database}: {found or 'the job sent no results'}", file=sys.stderr)


def _read(lines: Iterable[str], home: Home, *, show: bool) -> int:
    """Take the lines of a log, and show those that are for people."""
    for line in lines:
        text = home.take(line)
        if show and text:
            sys.stdout.write(text)
            sys.stdout.flush()
    return 0


def _staying(job_id: str, database: str | None, stay: Callable[[], int]) -> int:
    """Run `stay`, which may be left at any time."""
    try:
        return stay()
    except KeyboardInterrupt:
        again = f"wait {job_id}" + (f" --fetch-results {database}" if database else "")
        print(
            f"{job_id} goes on. Come back: partitune jobs {again}. End it: partitune jobs stop {job_id}",
            file=sys.stderr,
        )
        return 130


def _space(arguments: argparse.Namespace) -> SearchSpace:
    """The search space that the arguments mean, as `partitune search` understands them."""
    from partitune.spec.overrides import parse_settings, with_settings
    from partitune.spec.search_space import load_search_space

    flags, keys = parse_settings(arguments.set)
    keys |= {f"engine.flags.{name}": value for name, value in flags.items()}
    keys |= {
        key: value
        for key, value in (("budget.trials", arguments.trials), ("random_seed", arguments.seed))
        if value is not None
    }
    return with_settings(load_search_space(arguments.space), keys)


def _check_home(database: str, study: str) -> None:
    """Refuse a database that cannot be written, or that holds the study already, before anything is started."""
    from partitune.errors import SpecError
    from partitune.store import Store

    with Store.open(database) as store:
        if study in {known.name for known in store.studies()}:
            raise SpecError(
                f"--study {study}: {store.label} holds a study of that name; "
                f"allowed: a new name, such as {store.unique_study_name(study)}, or another --fetch-results"
            )


def _say_shipped(shipment: Shipment) -> None:
    own = ", ".join(f"{path} ({_size(len(content))})" for path, content in shipment.files.items())
    largest = ", ".join(f"{path} ({_size(size)})" for path, size in shipment.largest(_LARGEST))
    print(
        f"ships {_size(shipment.size_bytes)}: partitune {shipment.label} ({len(shipment.package)} files) and {own}\n"
        f"largest: {largest}",
        file=sys.stderr,
    )


def _size(count: int) -> str:
    return f"{count / 1024:.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"


def _plain(job: Job) -> dict[str, str | int | None]:
    return {
        "job": job.job_id,
        "status": job.status,
        "study": job.study,
        "results": job.results,
        "partitune": job.package,
        "started_at": job.started_at.isoformat() if job.started_at else None,
        "ended_at": job.ended_at.isoformat() if job.ended_at else None,
        "exit_code": job.exit_code,
    }
