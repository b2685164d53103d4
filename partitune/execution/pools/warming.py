"""In this process until a Ray of our own is up: the ten seconds that it takes to start are not lost."""

from __future__ import annotations

import threading

from partitune.candidate import Result, Submission
from partitune.errors import ClusterError
from partitune.execution.driver import Driver
from partitune.execution.pools.local import LocalPool
from partitune.execution.pools.pool import Pool
from partitune.execution.pools.ray import RayPool


class WarmingPool(Pool):
    """Runs in process until a Ray of our own is up, then hands over.

    If it does not come up, the search goes on in process and `description` says so. A cluster that somebody named is
    there or is not, so it needs no warming: that is RayPool's.
    """

    def __init__(self, driver: Driver, slots: int | None = None) -> None:
        self._local = LocalPool(driver)
        self._ray = RayPool(driver, None, slots)
        self._ready = threading.Event()
        self._failure: ClusterError | None = None
        self._starter = threading.Thread(target=self._start_ray, name="ray-start", daemon=True)

    def _start_ray(self) -> None:
        try:
            self._ray.start()
        except ClusterError as error:
            self._failure = error
        finally:
            self._ready.set()

    @property
    def _active(self) -> LocalPool | RayPool:
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
        """Runs of either pool that are not yet returned."""
        return self._local.running + self._ray.running

    def submit(self, submission: Submission) -> None:
        """Submit to the active pool."""
        self._active.submit(submission)

    def next_done(self, timeout_s: float | None) -> Result | None:
        """From whichever pool has work."""
        return (self._local if self._local.running else self._ray).next_done(timeout_s)

    def prepare(self) -> tuple[str, ...]:
        """Check in this process: only the simulator runs here and there alike."""
        return self._local.prepare()

    def start(self) -> None:
        """Begin to start Ray, and come back at once: what is submitted meanwhile runs in process."""
        self._starter.start()

    def close(self) -> None:
        """End Ray. One still starting has to be up before it can be ended; leaving it would orphan its processes."""
        self._starter.join()
        if self._failure is None:
            self._ray.close()
