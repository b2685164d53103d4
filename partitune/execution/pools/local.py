"""In this process, one candidate at a time."""

from __future__ import annotations

from collections import deque

from partitune.candidate import Result, Submission
from partitune.execution.driver import Driver, run
from partitune.execution.pools.pool import Pool


class LocalPool(Pool):
    """One slot, in this process: a candidate runs when its result is asked for."""

    description = "in process"

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._queue: deque[Submission] = deque()

    @property
    def free_slots(self) -> int:
        """1 while idle, else 0."""
        return 0 if self._queue else 1

    @property
    def running(self) -> int:
        """Runs that wait for `next_done` to run them."""
        return len(self._queue)

    def submit(self, submission: Submission) -> None:
        """Queue it; it runs when `next_done` is called."""
        self._queue.append(submission)

    def next_done(self, timeout_s: float | None) -> Result | None:  # noqa: ARG002 - nothing to wait for in process
        """Run what was queued first."""
        if not self._queue:
            return None
        submission = self._queue.popleft()
        return run(self._driver, submission.candidate, submission.repeat)

    def prepare(self) -> tuple[str, ...]:
        """What the driver checks, asked in this process."""
        return self._driver.prepare()

    def close(self) -> None:
        """Forget what is queued; nothing else is left running."""
        self._queue.clear()
