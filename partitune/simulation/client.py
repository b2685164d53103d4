"""The load generator's side: when each request is sent.

Decision: a closed loop is the same client with a limited number of slots, as in `vllm bench serve --max-concurrency`
(a semaphore): a request waits for its arrival and for a slot, and its latency counts from when it is sent.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from partitune.simulation.request import Request


class Client:
    """Sends requests in order of arrival, at most `concurrency` outstanding."""

    def __init__(self, requests: Sequence[Request], concurrency: int | None) -> None:
        self._unsent = deque(sorted(requests, key=lambda request: request.arrival_s))
        self._slots = deque([0.0] * min(len(requests), concurrency or len(requests)))  # since when each is free
        self.next_s = math.inf  # when the next request can be sent; inf: none, or no slot free
        self._look()

    def _look(self) -> None:
        free = self._unsent and self._slots
        self.next_s = max(self._unsent[0].arrival_s, self._slots[0]) if free else math.inf

    def send(self) -> tuple[Request, float]:
        """The next request and the time it was sent."""
        sent_s = self.next_s
        self._slots.popleft()
        request = self._unsent.popleft()
        self._look()
        return request, sent_s

    def done(self, count: int, now: float) -> None:
        """`count` requests got their last token at `now`."""
        self._slots.extend([now] * count)
        if self.next_s == math.inf:
            self._look()
