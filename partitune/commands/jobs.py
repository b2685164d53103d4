"""`partitune jobs`: the jobs of a Ray cluster that `partitune submit` started."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from partitune.commands.command import Command, CommandGroup, add_json_argument, add_mode_argument, answer, say
from partitune.commands.job_arguments import add_address_argument, print_log, until_left, watch

if TYPE_CHECKING:  # for annotations only: it costs a second
    from partitune.jobs.client import Job


def _add_job_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="id of the job, as submit and list show it")
    add_address_argument(parser)


def _add_list_arguments(parser: argparse.ArgumentParser) -> None:
    add_address_argument(parser)
    add_json_argument(parser, "JSON on stdout")


def _list(arguments: argparse.Namespace) -> int:
    from partitune.jobs.client import JobServer
    from partitune.report.output import table

    jobs = JobServer(arguments.address).jobs()
    rows = (
        (
            *(job.job_id, job.status, job.study),
            *(f"{time.astimezone():%d %b %H:%M:%S}" if time else "-" for time in (job.started_at, job.ended_at)),
            *(job.results, job.package),
        )
        for job in jobs
    )
    columns = ("job", "status", "study", "started", "ended", "results", "partitune")
    answer(
        arguments,
        lambda: [_to_json(job) for job in jobs],
        lambda console: console.draw(table(f"jobs of {arguments.address}", columns, rows)),
    )
    return 0


def _to_json(job: Job) -> dict[str, str | int | None]:
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


def _add_logs_arguments(parser: argparse.ArgumentParser) -> None:
    _add_job_arguments(parser)
    parser.add_argument("--follow", action="store_true", help="until the job ends")


def _logs(arguments: argparse.Namespace) -> int:
    from partitune.jobs.client import JobServer
    from partitune.jobs.home import Home

    server, home = JobServer(arguments.address), Home()
    if arguments.follow:
        return until_left(arguments.job, None, lambda: print_log(server.follow(arguments.job), home))
    return print_log(server.log(arguments.job), home)


def _stop(arguments: argparse.Namespace) -> int:
    from partitune.jobs.client import JobServer

    server = JobServer(arguments.address)
    stopped = server.stop(arguments.job)
    say(f"{arguments.job}: {server.job(arguments.job).status}" + ("" if stopped else ", had ended before"))
    return 0


def _add_wait_arguments(parser: argparse.ArgumentParser) -> None:
    _add_job_arguments(parser)
    parser.add_argument("--fetch-results", metavar="FILE", help="bring its results here, if it was submitted so")
    add_mode_argument(parser, "that file")


def _wait(arguments: argparse.Namespace) -> int:
    from partitune.jobs.client import JobServer

    return watch(JobServer(arguments.address), arguments.job, arguments.fetch_results, show=False, mode=arguments.mode)


COMMAND = CommandGroup(
    "jobs",
    "jobs that partitune submitted",
    "Jobs that partitune submitted. Exit codes of wait: 0 succeeded, 130 stopped, else that of the search.",
    (
        Command("list", "lists the jobs of the cluster that partitune submitted", _list, _add_list_arguments),
        Command("logs", "shows the log of a job", _logs, _add_logs_arguments),
        Command("stop", "stops a job; returns when nothing of it runs any more", _stop, _add_job_arguments),
        Command("wait", "waits for the end of a job; the exit code is its outcome", _wait, _add_wait_arguments),
    ),
)
