"""The requests of one engine and the KV blocks they hold, and what a step may still hold.

Decision: below the scheduler and both ways of filling a step (exact_step.py, admission.py), which all work on this one
state and know nothing of each other.

Source: vLLM 0.33.0 `v1/core/sched/scheduler.py` (_preempt_request).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from partitune.engines.vllm.scheduler.chunks import next_chunk
from partitune.engines.vllm.scheduler.cohort import Cohort, Live
from partitune.engines.vllm.scheduler.kv_pool import KvPool
from partitune.engines.vllm.scheduler.settings import SchedulerSettings
from partitune.engines.vllm.scheduler.waiting import Waiting


@dataclass(slots=True)
class Limits:
    """What a step may still hold."""

    tokens: int
    threshold: int  # most tokens of one prompt chunk; 0: no such limit
    no_prompts: bool = False  # neither chunks nor newcomers


class Queues:
    """Everyone who waits or runs."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.pool = KvPool(settings)
        self.waiting = Waiting(settings.scheduling_policy)
        self.running: list[Live] = []  # in order of admission
        self.reading: list[Live] = []  # those of `running` whose prompt is not read to its end
        self.due: deque[Cohort] = deque()  # cohorts that may be scheduled, ordered by eligible_step
        self.step = 0
        self.delivered_step = 0
        self.preemptions = 0
        self.prefix_queries = self.prefix_hits = 0
        self.quiet_steps = 0  # since anything but whole cohorts decoding happened

    def chunk(self, live: Live, limits: Limits) -> int:
        """Prompt tokens that a running request reads next."""
        if limits.no_prompts or self.step < live.eligible_step:
            return 0
        return next_chunk(self.settings, live, limits.tokens, limits.threshold)

    def write(self, live: Live, new: int) -> None:
        """A chunk of `new` tokens got its blocks: what it fills can be found from now on."""
        if self.pool.cache is not None:
            self.pool.cache.write(live, live.computed, live.computed + new, self.step, self.pool.free)

    def preempt(self, live: Live, cached_tokens: int) -> None:
        """Take everything from a running request; it will read prompt and output again."""
        self.running.remove(live)
        if live.cohort is not None:
            live.cohort.remove(live, self.settings.block_size)
        if live.reading:
            self.reading.remove(live)
            live.reading = False
        self.pool.release(live, cached_tokens, comes_back=True)
        live.computed = 0
        live.preempted = True
        self.waiting.put_back(live)
        self.preemptions += 1
