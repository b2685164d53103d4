"""On Ray workers, as many candidates at once as the cluster has room for.

Decision: a cluster that dies is no reason to end a search: what ran there is `lost`, what is submitted waits until the
cluster is back, for a while. It is noticed here, before Ray gives up this process.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from partitune.candidate import Outcome, Result, Submission
from partitune.errors import ClusterError
from partitune.execution.driver import Driver
from partitune.execution.pools.pool import Pool
from partitune.execution.ray.actors import RayWorkers, answer, first_line
from partitune.execution.ray.cluster import RayCluster
from partitune.execution.ray.groups import RayGroup, machines

#: Seconds between looks at whether the cluster lives.
PULSE_S = 2.0
#: Seconds that the checks of further slots may take after those of the first, as others may use their GPUs.
LATE_S = 180.0
#: Seconds that a search waits for a lost cluster to come back.
PATIENCE_S = 1800.0


class RayPool(Pool):
    """Ray actors with one candidate at a time: as many as the cluster has CPUs, or room for `group`; `slots` at most.

    Actors rather than tasks: twice the trials a second, as nothing is scheduled and unpickled for each of them.

    A cluster that is lost takes its candidates with it: they come back as `lost`. What is submitted then waits until
    the cluster is back; after `patience_s` without one, `next_done` raises ClusterError.
    """

    def __init__(
        self,
        driver: Driver,
        address: str | None = None,
        slots: int | None = None,
        patience_s: float = PATIENCE_S,
        group: RayGroup | None = None,  # what each candidate reserves
        named_by: str = "",  # who gave the address
    ) -> None:
        self._driver = driver
        self._cluster = RayCluster(address)
        self._slots = slots
        self._group = group
        self._patience_s = patience_s
        self._capacity = 0
        self._had_room = 0.0  # when the cluster last could hold a candidate
        self._workers: RayWorkers  # of the cluster as it was last connected
        self._refs: dict[Any, tuple[Submission, Any]] = {}  # what is awaited, and from which worker
        self._lost: deque[Result] = deque()
        self._waiting: deque[Submission] = deque()
        self._away: _Away | None = None
        self._checked = 0.0
        self._name = f"Ray at {address}" if address else "Ray, local"
        reason = f", named by {named_by} (a cluster of its own: --ray-address local)" if named_by else ""
        self._news = [f"candidates run on {self._name}{reason}"]

    def start(self) -> None:
        """Connect to the cluster (or start one on this machine).

        Raises:
            ClusterError: it cannot be used, or could never hold one candidate.
        """
        self._cluster.start()
        if self._group is not None:
            try:
                self._group.check(machines(), self._name)
            except ClusterError:
                self._cluster.stop()
                raise
        self._workers = RayWorkers(self._driver, self._group)
        self._look()

    def cancel(self) -> None:
        """From another thread: `start` raises ClusterError if it has started nothing yet."""
        self._cluster.cancel()

    def _look(self) -> None:
        """How many candidates the cluster as it is now holds. Raises ClusterError when it held none for too long."""
        self._checked = time.monotonic()
        if self._group is None:
            self._capacity = self._slots or self._cluster.cpus()
            return
        room, now = self._group.fits(machines()), time.monotonic()
        self._capacity = min(room, self._slots or room)
        if room:
            self._had_room = now
        elif now > self._had_room + self._patience_s:
            self._group.check(machines(), self._name)

    def news(self) -> tuple[str, ...]:
        """Which cluster it is and who named it; later that it is gone, or back."""
        news, self._news = tuple(self._news), []
        return news

    def prepare(self) -> tuple[str, ...]:
        """Check on a worker of every slot, as each stands on machines of its own; they then wait for candidates."""
        import ray

        workers = [self._workers.new() for _ in range(1 if self._group is None else self._capacity)]
        asked = {worker.prepare.remote(): worker for worker in workers}
        if not ray.wait(list(asked), timeout=self._patience_s)[0]:
            self._workers.close()
            raise ClusterError(
                f"{self._name}: nothing could start in {self._patience_s / 60:.0f} minutes; others use it"
            )
        ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=LATE_S)
        for reference in (*late, *ready):  # the last is taken first
            self._workers.put_back(asked[reference])
        return tuple(dict.fromkeys(line for reference in ready for line in answer(reference, self._name)))

    @property
    def description(self) -> str:
        """Where it is, and since when the cluster is gone."""
        return self._name if self._away is None else f"{self._name}: {self._away.reason}; waiting for it"

    @property
    def free_slots(self) -> int:
        """Slots not in use; 0 while there is no cluster."""
        return 0 if self._away is not None else max(0, self._capacity - self.running)

    @property
    def running(self) -> int:
        """Candidates submitted and not yet returned, also those that wait for a cluster."""
        return len(self._refs) + len(self._waiting) + len(self._lost)

    def submit(self, submission: Submission) -> None:
        """Start it, as soon as there is a cluster."""
        if self._away is not None:
            self._waiting.append(submission)
            return
        worker = self._workers.take()
        self._refs[worker.run.remote(submission.candidate, submission.repeat)] = (submission, worker)

    def next_done(self, timeout_s: float | None) -> Result | None:
        """Wait for any candidate. Raises ClusterError when the cluster stays away."""
        if self._lost:
            return self._lost.popleft()
        if self._away is not None:
            self._try_again(self._away, timeout_s)
            return None
        if time.monotonic() > self._checked + PULSE_S:
            if reason := self._cluster.loss():
                self._lose(reason)
                return None
            self._look()
        if not self._refs:
            return None
        import ray

        ready, _ = ray.wait(list(self._refs), num_returns=1, timeout=timeout_s)
        if not ready:
            return None
        submission, worker = self._refs.pop(ready[0])
        try:
            result: Result = ray.get(ready[0])
        except ray.exceptions.RayError as error:
            if reason := self._cluster.loss():
                self._lose(reason)
            else:
                self._workers.release(worker)
            return _lost(submission, f"Ray lost the worker: {first_line(error)}")
        if result.outcome is Outcome.LOST:
            self._workers.release(worker)  # a machine of its group is gone, or may not be used
        else:
            self._workers.put_back(worker)
        return result

    def _lose(self, reason: str) -> None:
        """Give up the cluster before Ray gives up this process."""
        self._lost.extend(_lost(submission, f"Ray lost the cluster: {reason}") for submission, _ in self._refs.values())
        self._refs.clear()
        self._away = _Away(reason, time.monotonic())
        self._news.append(f"{self._name} is lost, as {reason}; what ran there runs again once it is back")
        self._cluster.stop(lost=True)

    def _try_again(self, away: _Away, timeout_s: float | None) -> None:
        pause_s = away.next_try - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s if timeout_s is None else min(pause_s, timeout_s))
            return
        try:
            self.start()
        except ClusterError as error:
            gone_s = time.monotonic() - away.since
            if gone_s > self._patience_s or self._cluster.stuck:
                raise ClusterError(
                    f"{away.reason}, and none came back in {gone_s / 60:.0f} minutes. {error}"
                ) from error
            away.next_try = time.monotonic() + away.pause_s
            away.pause_s = min(2 * away.pause_s, 60.0)
            return
        self._away = None
        self._news.append(f"{self._name} is back")
        while self._waiting:
            self.submit(self._waiting.popleft())

    def close(self) -> None:
        """End the workers, and a cluster of its own."""
        if self._away is None:
            self._workers.close()
        self._refs.clear()
        self._cluster.stop()


@dataclass(slots=True)
class _Away:
    """A cluster that is gone: since when, why, and when to look for it again, in growing pauses."""

    reason: str
    since: float
    next_try: float = 0.0
    pause_s: float = 1.0  # before the next look but one; a minute at most


def _lost(submission: Submission, reason: str) -> Result:
    return Result(submission.candidate, Outcome.LOST, reason, repeat=submission.repeat)
