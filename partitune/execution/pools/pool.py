"""What a pool is: where candidates run, in this process or elsewhere, as many at once as there is room for.

Decision: asynchronous refill without a round barrier: `free_slots` says how many more may be submitted, `next_done`
returns whichever finishes first. A measured candidate is never silently run again: nothing has retries, and a worker
or node that dies makes its candidate `lost`. One protocol, one contract test that every pool passes.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from partitune.candidate import Result, Submission


class Pool(Protocol):
    """Runs candidates. A context manager: entering it takes what it needs, leaving it ends what it started."""

    @property
    def description(self) -> str:
        """One phrase for the progress line."""

    @property
    def free_slots(self) -> int:
        """How many runs may be submitted now without waiting."""

    @property
    def running(self) -> int:
        """Runs submitted and not yet returned."""

    def submit(self, submission: Submission) -> None:
        """Start a run; its `repeat` comes back with the result."""

    def next_done(self, timeout_s: float | None) -> Result | None:
        """The next finished result; None when `timeout_s` passes first or nothing runs.

        Raises:
            ClusterError: what it runs on is gone and stays away.
        """

    def news(self) -> tuple[str, ...]:
        """What a person should know of where candidates run, since it was asked last."""
        return ()

    def prepare(self) -> tuple[str, ...]:
        """What the driver checks once before its first candidate, where candidates run; what a person should know.

        Raises:
            PartituneError: no candidate could be measured.
        """

    def start(self) -> None:
        """Take what it needs; entering it does this. Raises ClusterError."""
        return

    def close(self) -> None:
        """End what it started; leaving it does this."""
        return

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
