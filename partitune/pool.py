"""Where candidates run: in this process, or on Ray workers. One protocol, one contract test.

Decision: asynchronous refill without a round barrier: `free_slots` says how many more may be submitted, `next_done`
returns whichever finishes first. Ray costs about ten seconds to start, so `WarmingPool` runs the first candidates in
process until the cluster is there. A measured candidate is never silently run again: Ray tasks have no retries, and a
worker or node that dies makes its candidate `lost`.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from types import TracebackType
from typing import Any, Protocol, Self

from partitune.drivers.interface import Driver, run
from partitune.errors import ClusterError
from partitune.result import Candidate, Outcome, Result

#: Seconds a head has to accept a connection.
CONNECT_TIMEOUT_S = 5.0


class Pool(Protocol):
    """Runs candidates. A context manager: leaving it ends what it started."""

    @property
    def description(self) -> str:
        """One phrase for the progress line."""
        ...

    @property
    def free_slots(self) -> int:
        """How many candidates may be submitted now without waiting."""
        ...

    @property
    def running(self) -> int:
        """Candidates submitted and not yet returned."""
        ...

    def submit(self, candidate: Candidate) -> None:
        """Start measuring `candidate`."""
        ...

    def next_done(self, timeout_s: float | None) -> Result | None:
        """The next finished result; None when `timeout_s` passes first or nothing runs."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LocalPool:
    """One slot, in this process: a candidate runs when its result is asked for."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._queue: deque[Candidate] = deque()
        self.description = "in process"

    @property
    def free_slots(self) -> int:
        """1 while idle, else 0."""
        return 0 if self._queue else 1

    @property
    def running(self) -> int:
        """Candidates waiting for `next_done`."""
        return len(self._queue)

    def submit(self, candidate: Candidate) -> None:
        """Queue `candidate`."""
        self._queue.append(candidate)

    def next_done(self, timeout_s: float | None) -> Result | None:  # noqa: ARG002 - nothing to wait for in process
        """Run the oldest queued candidate."""
        return run(self._driver, self._queue.popleft()) if self._queue else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.clear()


class RayPool:
    """Ray tasks, one candidate each, as many at once as the cluster has CPUs (or `slots`)."""

    def __init__(self, driver: Driver, address: str | None = None, slots: int | None = None) -> None:
        self._driver = driver
        self._address = address
        self._slots = slots
        self._owns_cluster = False
        self._task: Any = None
        self._refs: dict[Any, Candidate] = {}
        self.description = f"Ray at {address}" if address else "Ray, local"

    def start(self) -> None:
        """Connect to the cluster (or start one on this machine). Raises ClusterError."""
        # Ray reads these on import: no usage ping, no token file written into the user's home for a private cluster.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if self._address is None:
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        reach(self._address)
        try:
            if not ray.is_initialized():
                ray.init(
                    address=self._address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
                )
                self._owns_cluster = True
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise _unusable(self._address, error) from error
        if self._slots is None:
            resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
            self._slots = max(1, int(resources.get("CPU", 1)))
        driver_ref = ray.put(self._driver)
        task = ray.remote(max_retries=0, num_cpus=1)(run)
        self._task = lambda candidate: task.remote(driver_ref, candidate)

    @property
    def free_slots(self) -> int:
        """Slots not in use; 0 before `start`."""
        return 0 if self._slots is None or self._task is None else max(0, self._slots - len(self._refs))

    @property
    def running(self) -> int:
        """Tasks not yet returned."""
        return len(self._refs)

    def submit(self, candidate: Candidate) -> None:
        """Start one task."""
        self._refs[self._task(candidate)] = candidate

    def next_done(self, timeout_s: float | None) -> Result | None:
        """Wait for any task."""
        import ray

        if not self._refs:
            return None
        ready, _ = ray.wait(list(self._refs), num_returns=1, timeout=timeout_s)
        if not ready:
            return None
        candidate = self._refs.pop(ready[0])
        try:
            result: Result = ray.get(ready[0])
        except ray.exceptions.RayError as error:
            first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            return Result(candidate, Outcome.LOST, f"Ray lost the worker: {first_line}")
        return result

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        for ref in self._refs:
            ray.cancel(ref, force=True)
        self._refs.clear()
        if self._owns_cluster:
            ray.shutdown()


def reach(address: str | None) -> None:
    """Raise ClusterError where nothing listens at `address`, in seconds; Ray itself tries for minutes."""
    if address is None or address in ("auto", "local"):
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if not (colon and host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError(f"{address!r} is not an address")
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise _unusable(address, error) from error


def _unusable(address: str | None, error: Exception) -> ClusterError:
    return ClusterError(
        f"Ray at {'this machine' if address is None else address} cannot be used: {error}\n"
        "Check the address (host:port of the head, or `auto`), or run without Ray: --pool local"
    )


class WarmingPool:
    """Runs in process until Ray is up, then hands over.

    A cluster somebody named has to be there: its ClusterError is raised at the next call. Where it would only have been
    our own, the search goes on in process and `description` says so.
    """

    def __init__(self, driver: Driver, address: str | None = None, slots: int | None = None) -> None:
        self._local = LocalPool(driver)
        self._ray = RayPool(driver, address, slots)
        self._named = address is not None
        self._ready = threading.Event()
        self._over = threading.Event()
        self._failure: ClusterError | None = None
        self._starter = threading.Thread(target=self._start, name="ray-start", daemon=True)

    def _start(self) -> None:
        try:
            self._ray.start()
        except ClusterError as error:
            self._failure = error
        finally:
            self._ready.set()
        if self._failure is None:
            # Ray asks Linux to kill its processes when the thread that started them ends (prctl PR_SET_PDEATHSIG).
            self._over.wait()

    @property
    def _active(self) -> LocalPool | RayPool:
        if self._failure is not None and self._named:
            raise self._failure
        if self._local.running or not self._ready.is_set() or self._failure is not None:
            return self._local
        return self._ray

    @property
    def description(self) -> str:
        """The pool that takes the next candidate."""
        if self._failure is not None:
            return f"{self._active.description} (Ray did not start: {str(self._failure).splitlines()[0]})"
        return self._active.description + ("" if self._ready.is_set() else " (Ray is starting)")

    @property
    def free_slots(self) -> int:
        """Free slots of the active pool."""
        return self._active.free_slots

    @property
    def running(self) -> int:
        """Running in either pool."""
        return self._local.running + self._ray.running

    def submit(self, candidate: Candidate) -> None:
        """Submit to the active pool."""
        self._active.submit(candidate)

    def next_done(self, timeout_s: float | None) -> Result | None:
        """From whichever pool has work."""
        return (self._local if self._local.running else self._ray).next_done(timeout_s)

    def __enter__(self) -> Self:
        self._starter.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A cluster still starting has to be up before it can be ended; leaving it would orphan its processes.
        self._ready.wait()
        try:
            if self._failure is None:
                self._ray.__exit__(kind, error, trace)
        finally:
            self._over.set()
            self._starter.join()
