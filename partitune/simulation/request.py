"""Requests as the client has them, and the client: when each is sent.

Decision: prompts are lengths, not tokens: the only content that matters is how many tokens at the front a request
shares with others, so it names them. A closed loop is the same client with a limited number of slots, as in `vllm bench
serve --max-concurrency` (a semaphore): a request waits for its arrival, for a slot and for the answer it continues,
and its latency counts from when it is sent.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from partitune.errors import SpecError


class SharedPrefix(NamedTuple):
    """The first tokens of a prompt, the same for every request that names the group."""

    group: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the client has it."""

    id: str
    arrival_s: float  # when the client wants to send it
    prompt_tokens: int
    output_tokens: int
    stops_early: bool = False  # ends on a stop token: the engine does not know beforehand that it makes so many
    priority: int = 0  # less is served earlier, with SchedulingPolicy.PRIORITY
    prefix: tuple[SharedPrefix, ...] = ()  # ever longer ones, each with all before it; none: it begins like no other
    continues: str | None = None  # id of the request with whose prompt and answer this prompt begins


class Client:
    """Sends requests in order of arrival, at most `concurrency` outstanding; None: each at its arrival.

    With `waits`, as a person does, a request that continues another is sent once that one's answer has come.

    Raises:
        SpecError: a load that no client can send; names the request.
    """

    def __init__(self, requests: Sequence[Request], concurrency: int | None, *, waits: bool = False) -> None:
        if concurrency is not None and concurrency < 1:
            raise SpecError(f"concurrency is {concurrency}; it must be 1 or more")
        _check(requests)
        self._slots = deque([0.0] * min(len(requests), concurrency or len(requests)))  # since when each is free
        self._unsent: list[tuple[float, int, float, Request]] = []  # a heap: arrival, place, when it may be sent
        self._waiting: dict[str, list[tuple[int, Request]]] = {}  # for the answer to a request, by its id
        for place, request in enumerate(requests):
            if waits and request.continues is not None:
                self._waiting.setdefault(request.continues, []).append((place, request))
            else:
                self._unsent.append((request.arrival_s, place, request.arrival_s, request))
        heapify(self._unsent)
        self.next_s = math.inf  # when the next request can be sent; inf: none, or no slot free
        self._look()

    def _look(self) -> None:
        free = self._unsent and self._slots
        self.next_s = max(self._unsent[0][2], self._slots[0]) if free else math.inf

    def send(self) -> tuple[Request, float]:
        """The next request and the time it was sent."""
        sent_s = self.next_s
        self._slots.popleft()
        *_, request = heappop(self._unsent)
        self._look()
        return request, sent_s

    def done(self, requests: Iterable[str], now: float) -> None:
        """Those requests, by their ids, got their last token at `now`."""
        for name in requests:
            self._slots.append(now)
            for place, request in self._waiting.pop(name, ()):
                heappush(self._unsent, (request.arrival_s, place, max(request.arrival_s, now), request))
        self._look()


def _check(requests: Sequence[Request]) -> None:
    if not requests:
        raise SpecError("a run needs at least one request")
    if len({request.id for request in requests}) < len(requests):
        raise SpecError("two requests have the same id")
    for request in requests:
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise SpecError(f"request {request.id}: prompt_tokens and output_tokens must be 1 or more")
        if not 0.0 <= request.arrival_s < math.inf:
            raise SpecError(f"request {request.id}: arrival_s is {request.arrival_s}; it must be a time of 0 or later")
