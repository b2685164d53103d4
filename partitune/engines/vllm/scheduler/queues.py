"""The requests of one engine and their KV blocks, what a step may still hold, and how far prompts are read in it.

Decision: below the scheduler and both ways of filling a step (exact_step.py, admission.py), which all work on this one
state and know nothing of each other. Who waits is always in the order of the policy, so that the head is the next to
admit under either. With equal priority the earlier request is first; the engine compares times, here it is the order of
sending, which has no ties.

Source: vLLM 0.33.0 `v1/core/sched/scheduler.py` (schedule, _mamba_block_aligned_split, _preempt_request),
`v1/core/sched/request_queue.py`, `v1/request.py` (Request.__lt__).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass
from itertools import takewhile

from partitune.engines.vllm.scheduler.cohort import Cohort, Live
from partitune.engines.vllm.scheduler.kv_pool import KvPool
from partitune.engines.vllm.scheduler.settings import SchedulerSettings, SchedulingPolicy
from partitune.errors import OutOfMemory

#: Preemptions without a token between them after which none will come: the engine goes on for ever.
_MOST_FRUITLESS = 1000


@dataclass(slots=True)
class Limits:
    """What a step may still hold."""

    tokens: int
    threshold: int  # most tokens of one prompt chunk; 0: no such limit
    no_prompts: bool = False  # neither chunks nor newcomers
    reads: bool = False  # the step has read prompts, of running requests or of newcomers


def rank(live: Live) -> tuple[int, int]:
    """The order of the policy PRIORITY: less is served earlier and preempted later."""
    return live.request.priority, live.number


class Queues:
    """Everyone who waits or runs."""

    def __init__(self, settings: SchedulerSettings, pool: KvPool) -> None:
        self.settings = settings
        self.pool = pool
        self.by_priority = settings.scheduling_policy is SchedulingPolicy.PRIORITY
        self.waiting: deque[Live] = deque()  # the head is the next to be admitted
        self.running: list[Live] = []  # in order of admission
        self.reading: list[Live] = []  # those of `running` whose prompt is not read to its end
        self.continued: dict[int, Live] = {}  # owner of a text -> the running request whose text others continue
        self.due: deque[Cohort] = deque()  # cohorts that may be scheduled, ordered by eligible_step
        self.step = 0
        self.delivered_step = 0
        self.preemptions = 0
        self.fruitless = 0  # of them, since a token came back
        self.prefix_queries = self.prefix_hits = 0
        self.quiet_steps = 0  # since anything but whole cohorts decoding happened

    def wait(self, live: Live) -> None:
        """Let `live` wait for its admission: first come first served behind the others, a preempted one before them."""
        if self.by_priority:
            insort(self.waiting, live, key=rank)
        elif live.preempted:
            before = takewhile(lambda each: each.deferred, self.waiting if self.settings.passed_over_first else ())
            self.waiting.insert(sum(1 for _ in before), live)
        else:
            self.waiting.append(live)

    def chunk(self, live: Live, limits: Limits) -> int:
        """Prompt tokens that a running request reads next within `limits`."""
        if limits.no_prompts or self.step < live.eligible_step:
            return 0
        return self.next_chunk(live, limits)

    def next_chunk(self, live: Live, limits: Limits) -> int:
        """Prompt tokens that `live` may read next within `limits`; those of a hybrid end where a state is kept."""
        settings, start, tokens = self.settings, live.computed, live.to_compute
        new = tokens - start
        if 0 < limits.threshold < new:
            new = limits.threshold
        new = min(new, limits.tokens)
        prompt_end = live.prompt_end
        if not settings.align_chunks or start >= prompt_end:
            return new
        block = settings.block_size
        end = start + new
        exports = end >= prompt_end and settings.exports_state(start, end, (prompt_end - 1) // block * block)
        if end < prompt_end:
            limit = settings.scheduled_tokens
            if settings.long_prefill_token_threshold:
                limit = min(limit, settings.long_prefill_token_threshold)
            aligned = end // block * block
            if aligned > start or block <= limit:
                end = aligned
        stops = [start + (live.junction - start) // block * block]
        if not exports:
            stops.append((tokens if settings.whole_prompt_border else tokens - 1) // block * block)
            if start % block:
                stops.append((start // block + 1) * block)
        return max(min([stop for stop in stops if start < stop < end], default=end) - start, 0)

    def leave(self, live: Live, cached_tokens: int, *, comes_back: bool) -> None:
        """Take its blocks from a request that runs no more, of whose tokens the first `cached_tokens` are cached."""
        self.pool.release(live, cached_tokens, comes_back=comes_back)
        if live.continued:
            del self.continued[live.texts[-1][1]]

    def preempt(self, live: Live, cached_tokens: int) -> None:
        """Take everything from a running request, of whose tokens the first `cached_tokens` are cached.

        It will read prompt and output again.
        """
        self.running.remove(live)
        if live.cohort is not None:
            live.cohort.remove(live, self.settings.block_size)
        if live.reading:
            self.reading.remove(live)
            live.reading = False
        self.leave(live, cached_tokens, comes_back=True)
        live.computed = 0
        live.preempted = True
        self.wait(live)
        self.preemptions += 1
        self.fruitless += 1
        if self.fruitless > _MOST_FRUITLESS:
            raise OutOfMemory(
                f"request {live.request.id} is preempted again and again before anybody gets a token: the cache has no "
                f"room for its chunks in flight",
                excess=float(self.pool.growing),
            )
