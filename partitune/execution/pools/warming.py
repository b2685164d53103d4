"""In this process until a Ray of our own is up: the ten seconds that it takes to start are not lost."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from partitune.candidate import Result, Submission
from partitune.execution.driver import Driver
from partitune.execution.pools.local import LocalPool
from partitune.execution.pools.pool import Pool
from partitune.execution.pools.ray import RayPool


class WarmingPool(Pool):
    """Runs in process until a Ray of our own is up, then hands over.

    If it does not come up, the search goes on in process and `news` says so. A cluster that somebody named is
    there or is not, so it needs no warming: that is RayPool's.
    """

    def __init__(self, driver: Driver, slots: int | None = None) -> None:
        self._local = LocalPool(driver)
        self._ray = RayPool(driver, None, slots)
        self._starting = Future[None]()
        self._told = False  # that Ray did not start

    @property
    def _active(self) -> LocalPool | RayPool:
        is_up = self._starting.done() and self._starting.exception() is None
        return self._ray if is_up and not self._local.running else self._local

    @property
    def description(self) -> str:
        """The pool that takes the next candidate."""
        if not self._starting.done():
            return f"{self._active.description} (Ray is starting)"
        return self._active.description

    def news(self) -> tuple[str, ...]:
        """That Ray did not start, once; of one that did only what comes after."""
        if not self._starting.done() or self._told:
            return ()
        if (failure := self._starting.exception()) is None:
            return self._ray.news()
        self._told = True
        return (f"candidates run in this process, as Ray did not start: {str(failure).splitlines()[0]}",)

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
        with_ray = ThreadPoolExecutor(1, "ray-start")
        self._starting = with_ray.submit(self._ray.start)
        with_ray.shutdown(wait=False)

    def close(self) -> None:
        """End Ray. One whose processes start has to be up before it can be ended; leaving it would orphan them."""
        self._ray.cancel()
        if self._starting.exception() is None:
            self._ray.close()
