"""Jobs of a Ray cluster: submit, list, follow, wait, stop, over the job server of its head.

Decision: Ray's own `JobSubmissionClient` speaks the protocol; this module gives it what it lacks. It would wait for
ever for a head that does not answer, obey `RAY_ADDRESS` over the address it was given, give up on a head whose agent
is still starting, and lose the log when a connection breaks. Whatever goes wrong is one ClusterError that names the
address; what a cluster answers is never trusted to have the shape it should have.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from partitune.errors import ClusterError, nearest
from partitune.execution.ray.address import TOKEN_HINT
from partitune.jobs.address import checked, knock
from partitune.jobs.package import Shipment

if TYPE_CHECKING:  # costs more than a second
    from ray.job_submission import JobDetails, JobSubmissionClient

#: Seconds for which the agent of a head may still be starting.
AGENT_S = 30.0
#: Seconds for which a head may be away while a job is watched, and between two looks.
AWAY_S = 60.0
LOOK_S = 1.0
#: Seconds without a line before the connection is doubted and made anew.
SILENCE_S = 300.0
#: Seconds `stop` waits for a job to be gone.
STOP_S = 120.0
#: Ray's own spelling of an ended job (ray 2.60, `JobStatus`).
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")

_NO_AGENT = "no agent takes the job"
#: Loggers that announce every upload and every closed connection.
_TALKATIVE = ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging")
#: Environment variables that Ray's client prefers to the address it is given.
_REDIRECTS = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Job:
    """One job that partitune submitted."""

    job_id: str
    status: str  # PENDING, RUNNING or one of ENDED
    study: str
    results: str  # where they go, as a person reads it
    package: str  # version and content of the partitune that it runs
    started_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    message: str

    @property
    def ended(self) -> bool:
        """Nothing of it runs any more."""
        return self.status in ENDED


class JobServer:
    """The job server of a cluster. Every method raises ClusterError."""

    def __init__(self, address: str) -> None:
        """Connect to `http://HOST:PORT`, the address of the dashboard."""
        self.address = checked(address)
        knock(self.address)
        with self._explained(), _without_redirects():
            from ray.job_submission import JobSubmissionClient

            for name in _TALKATIVE:
                logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)
            self._client: JobSubmissionClient = JobSubmissionClient(self.address)

    def submit(self, entrypoint: str, shipment: Shipment, *, study: str, results: str, env: Mapping[str, str]) -> str:
        """Ship and start; the new job's id.

        Args:
            entrypoint: the shell command that Ray runs in the job's folder.
            shipment: what that folder and its Python path hold, on every node.
            study: for `jobs list`; also part of the id.
            results: for `jobs list`.
            env: environment variables of the job and of all its tasks.
        """
        job_id = f"partitune-{study}-{secrets.token_hex(4)}"  # Ray refuses an id it has seen, even of a failed job
        with tempfile.TemporaryDirectory(prefix="partitune-") as folder:
            archive = Path(folder, "study.zip")
            archive.write_bytes(shipment.archive())
            modules = [str(shipment.unpack_package(Path(folder)))]

            def submit() -> str:
                with self._explained():
                    return self._client.submit_job(
                        entrypoint=entrypoint,
                        submission_id=job_id,
                        runtime_env={"working_dir": str(archive), "py_modules": modules, "env_vars": dict(env)},
                        metadata={"partitune": shipment.label, "study": study, "results": results},
                    )

            return _patiently(submit, AGENT_S, _NO_AGENT)

    def jobs(self) -> list[Job]:
        """Jobs that partitune submitted, oldest first."""
        with self._explained():
            ours = [_job(details) for details in self._client.list_jobs() if _is_ours(details)]
        return sorted(ours, key=lambda job: (job.started_at or datetime.max.replace(tzinfo=UTC), job.job_id))

    def job(self, job_id: str) -> Job:
        """One job as it is now."""
        try:
            with self._explained():
                return _job(self._client.get_job_info(job_id))
        except ClusterError as error:
            if "does not exist" not in str(error):
                raise
            known = [job.job_id for job in self.jobs()]
            near = nearest(job_id, known, most=3) or known[-3:]
            hint = f"did you mean {', '.join(near)}?" if near else "partitune submitted none there"
            raise ClusterError(f"Ray at {self.address}: no job {job_id}; {hint}") from error

    def log(self, job_id: str) -> list[str]:
        """The lines of a job's log so far."""
        self.job(job_id)
        with self._explained():
            return str(self._client.get_job_logs(job_id)).splitlines(keepends=True)

    def follow(self, job_id: str) -> Iterator[str]:
        """The lines of a job's log as they come, to its end; a broken connection is made anew while the head lives."""
        self.job(job_id)
        seen, heard_at = 0, time.monotonic()
        while True:
            broken: ClusterError | None = None
            try:
                for number, line in enumerate(self._lines(job_id)):
                    if number >= seen:
                        seen, heard_at = number + 1, time.monotonic()
                        yield line
            except ClusterError as error:
                broken = error
            if self.watch(job_id).ended and broken is None:
                return
            if broken is not None and time.monotonic() > heard_at + AWAY_S + SILENCE_S:
                raise broken
            time.sleep(LOOK_S)

    def watch(self, job_id: str) -> Job:
        """The job as it is now, through short absences of the head."""
        return _patiently(lambda: self.job(job_id), AWAY_S)

    def wait(self, job_id: str) -> Job:
        """The job once it has ended."""
        return self._ended(self.job(job_id), math.inf)

    def _ended(self, job: Job, most_s: float) -> Job:
        """The job once it has ended, or as it is after `most_s` seconds."""
        deadline = time.monotonic() + most_s
        while not job.ended and time.monotonic() < deadline:
            time.sleep(LOOK_S)
            job = self.watch(job.job_id)
        return job

    def stop(self, job_id: str) -> bool:
        """Stop a job and wait until nothing of it runs; False when it had ended before."""
        job = self.job(job_id)
        if job.ended:
            return False
        with self._explained():
            self._client.stop_job(job_id)
        if not (job := self._ended(job, STOP_S)).ended:
            raise ClusterError(f"Ray at {self.address}: {job_id} is still {job.status} after {STOP_S:.0f} s")
        return True

    def _lines(self, job_id: str) -> Iterator[str]:
        """One reading of the log from its start to the job's end."""

        async def portion(tail: AsyncIterator[str]) -> str | None:
            return await asyncio.wait_for(anext(tail, None), SILENCE_S)

        rest = ""
        with self._explained(), asyncio.Runner() as runner:
            tail = self._client.tail_job_logs(job_id)
            while (text := runner.run(portion(tail))) is not None:
                *whole, rest = (rest + text).split("\n")
                yield from (f"{line}\n" for line in whole)
        if rest:
            yield rest

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what Ray's client raises into one ClusterError."""
        import aiohttp
        from ray.exceptions import RayError

        try:
            yield
        except (RayError, aiohttp.ClientError, RuntimeError, OSError, ValueError, KeyError, TypeError) as error:
            raise ClusterError(f"Ray at {self.address}{_explanation(error)}") from error


def _patiently(act: Callable[[], Answer], patience_s: float, hindrance: str = "") -> Answer:
    """What `act` returns, tried again for so long while a ClusterError that names the hindrance keeps it from that."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return act()
        except ClusterError as error:
            if hindrance not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(LOOK_S)


def _explanation(error: Exception) -> str:
    """How a sentence goes on that begins with the address."""
    text = str(error).strip() or type(error).__name__
    status = getattr(error, "status", None)  # of a refused WebSocket
    if type(error).__name__ == "AuthenticationError" or status in (401, 403):
        return f" asks for its token: {text.splitlines()[0].partition('. ')[0]}\n{TOKEN_HINT}"
    if "status code 413" in text:
        return " takes no upload of that size; see what is shipped with --dry-run"
    if "No available agent to submit job" in text:  # ray 2.60, dashboard/modules/job/job_head.py
        return (
            f": {_NO_AGENT}, for {AGENT_S:.0f} s now. See dashboard_agent.log on the head; a second Ray on that "
            "machine may hold the agent's port"
        )
    last = text.splitlines()[-1] if "Traceback" in text else text
    if isinstance(error, OSError):
        return f": the connection broke: {last}\nThe head has ended or is too busy to answer; try again"
    return f": {last}"


@contextmanager
def _without_redirects() -> Iterator[None]:
    hidden = {name: os.environ.pop(name) for name in _REDIRECTS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _is_ours(details: JobDetails) -> bool:
    return details.submission_id is not None and "partitune" in (details.metadata or {})


def _job(details: JobDetails) -> Job:
    metadata = details.metadata or {}
    return Job(
        job_id=details.submission_id or details.job_id or "",
        status=str(details.status.value),
        study=metadata.get("study", ""),
        results=metadata.get("results", ""),
        package=metadata.get("partitune", ""),
        started_at=_time(details.start_time),
        ended_at=_time(details.end_time),
        exit_code=details.driver_exit_code,
        message=details.message or "",
    )


def _time(milliseconds: int | None) -> datetime | None:
    """A time of Ray, None for one that is not there yet."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None
