"""The exact way to fill a step: the running requests one by one, in their order, preempting where blocks run out.

Decision: apart from the scheduler, because it is the engine's loop as it stands there, while most steps go the quick
way; both leave whole cohorts and chunks behind.

Source: vLLM 0.33.0 `v1/core/sched/scheduler.py` (schedule, the loop over RUNNING).
"""

from __future__ import annotations

from collections.abc import Iterable

from partitune.engines.vllm.scheduler.cohort import Cohort, Live
from partitune.engines.vllm.scheduler.queues import Limits, Queues, rank


class ExactStep:
    """One pass over the running requests."""

    def __init__(self, queues: Queues, due: list[Cohort], limits: Limits) -> None:
        self._queues = queues
        self._due = due
        self._limits = limits
        self._granted: dict[Live, None] = {}  # decodes
        self._chunks: dict[Live, int] = {}

    def run(self) -> tuple[list[Cohort], list[tuple[Live, int]]]:
        """Fill the step; what it takes goes off the limits.

        Returns:
            Whole cohorts that decode in it, and (request, prompt tokens it reads).
        """
        queues, limits = self._queues, self._limits
        running, pool = queues.running, queues.pool
        turn: set[Cohort | None] = set(self._due)
        index = 0
        while index < len(running) and limits.tokens > 0:
            live = running[index]
            new = tokens = 0
            if live.cohort in turn:
                new = 1
                tokens = live.context + 1
            elif live.reading:
                new = queues.chunk(live, limits)
                tokens = live.computed + new
            index += 1
            if not new:
                continue
            while not pool.grow(live, tokens):
                victim = max(running, key=rank) if queues.by_priority else running[-1]
                if running.index(victim) < index:
                    index -= 1
                self._give_up(victim)
                if victim is live:
                    break
            else:
                self._grant(live, new)
                continue
            if not (queues.by_priority and queues.settings.passes_over_preempted):
                break
        return self._split(), list(self._chunks.items())

    def _grant(self, live: Live, new: int) -> None:
        if live.reading:
            self._chunks[live] = new
            self._limits.reads = True
        else:
            self._granted[live] = None
        self._limits.tokens -= new

    def _give_up(self, victim: Live) -> None:
        """Preempt `victim`; what this step had for it goes to others."""
        cached_tokens = victim.cached_tokens if self._queues.pool.caches else 0
        if victim in self._granted:
            del self._granted[victim]
            self._limits.tokens += 1
            cached_tokens = victim.prompt + victim.delivered
        elif victim in self._chunks:
            new = self._chunks.pop(victim)
            self._limits.tokens += new
            cached_tokens += new
        self._queues.preempt(victim, cached_tokens)

    def _split(self) -> list[Cohort]:
        """Cohorts made of exactly the granted members; who was left out stays due."""
        whole = []
        left_out = []
        for cohort in self._due:
            chosen = [live for live in cohort.members if live in self._granted]
            if len(chosen) < len(cohort.members):
                left_out.append(cohort)
                if chosen:
                    part = Cohort(token_s=cohort.token_s)
                    move(chosen, part, self._queues.settings.block_size)
                    whole.append(part)
            elif chosen:
                whole.append(cohort)
        self._queues.due.extendleft(reversed(left_out))
        return whole


def move(lives: Iterable[Live], cohort: Cohort, block_size: int) -> None:
    """Let `lives` leave their cohorts, if they are in any, and go on in `cohort`."""
    for live in lives:
        if live.cohort is not None:
            live.cohort.remove(live, block_size)
        cohort.add(live)
