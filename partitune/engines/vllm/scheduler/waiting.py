"""Requests that wait to be admitted, in the order of the policy.

Decision: always in order, so that the head is the next to admit under either policy. With equal priority the earlier
request is first; the engine compares times, here it is the order of sending, which has no ties.

Source: vLLM 0.33.0 `v1/core/sched/request_queue.py`, `v1/request.py` (Request.__lt__).
"""

from __future__ import annotations

from bisect import insort
from collections import deque

from partitune.engines.vllm.scheduler.cohort import Live
from partitune.engines.vllm.scheduler.settings import SchedulingPolicy


def rank(live: Live) -> tuple[int, int]:
    """Less is served earlier and preempted later."""
    return live.request.priority, live.number


class Waiting(deque[Live]):
    """The waiting requests; the head is the next one."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        super().__init__()
        self._by_priority = policy is SchedulingPolicy.PRIORITY

    def add(self, live: Live) -> None:
        """A request has arrived."""
        if self._by_priority:
            insort(self, live, key=rank)
        else:
            self.append(live)

    def put_back(self, live: Live) -> None:
        """A running request was preempted: first come first served, it is next."""
        if self._by_priority:
            insort(self, live, key=rank)
        else:
            self.appendleft(live)
