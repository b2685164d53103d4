"""vLLM's scheduler: which requests take part in the next step, and what a finished step changes.

Decision: one step has a quick way and an exact way. When everything that could run fits the token budget and the free
KV blocks, order does not matter and whole cohorts are scheduled at once; otherwise the running list is walked in its
order, request by request, with preemption, exactly as the engine does it. Both end in the same step.

Source: vLLM 0.33.0 `v1/core/sched/scheduler.py` (schedule, _preempt_request, update_from_output) and
`async_scheduler.py`; held to the recorded schedules and to tests/reference_simulator.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from partitune.engines.regimes import Regime
from partitune.sim.cohort import Cohort, Live, crossing_key
from partitune.sim.inputs import SchedulerSettings
from partitune.sim.kv import KvPool


@dataclass(slots=True)
class Plan:
    """One non-empty step."""

    step: int
    chunks: list[tuple[Live, int, int]]  # (request, prompt tokens read in this step, tokens before them)
    cohort: Cohort | None  # those who sample: decodes and finished prompts
    decodes: int
    decode_context: int
    sampled: int
    token_s: float  # when the decodes' newest tokens are on every stage


class Scheduler:
    """The scheduler of one engine core."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.pool = KvPool(settings)
        self.waiting: deque[Live] = deque()
        self.running: list[Live] = []  # in order of admission
        self.reading: list[Live] = []  # those of `running` whose prompt is not read to its end
        self.due: deque[Cohort] = deque()  # cohorts that may be scheduled, ordered by eligible_step
        self.step = 0
        self.delivered_step = 0
        self.finished_unflushed = False  # the engine tells the workers in one more step
        self.preemptions = 0
        self.quiet_steps = 0  # since anything but whole cohorts decoding happened
        # R1 schedules past a request's last token, but never past the model's length.
        self.at_length_limit = False
        self.cadence = {Regime.R1: 1, Regime.R3: settings.stages}.get(settings.regime, 0)

    def has_requests(self) -> bool:
        """True while the engine core keeps calling `schedule`."""
        return bool(self.running or self.waiting or self.finished_unflushed)

    def schedule(self) -> Plan | None:
        """The next step; None for an empty one."""
        self.step += 1
        self.quiet_steps += 1
        self.finished_unflushed = False
        due = self._take_due()
        if not (due or self.reading or self.waiting):
            return None
        settings = self.settings
        threshold = settings.long_prefill_token_threshold if len(self.running) + len(self.waiting) > 1 else 0
        budget = settings.max_num_batched_tokens
        chunks: list[tuple[Live, int]] = []
        preempted = False
        if due or self.reading:
            decodes = sum(len(cohort.members) for cohort in due)
            chunks = [(live, new) for live in self.reading if (new := self._chunk(live, budget, threshold))]
            wanted = decodes + sum(new for _, new in chunks)
            if wanted <= budget and self._allocate_all(due, chunks):
                budget -= wanted
            else:
                self.quiet_steps = 0
                before = self.preemptions
                due, chunks, budget = self._walk(due, budget, threshold)
                preempted = self.preemptions > before
        if self.waiting and not preempted:
            self._admit(chunks, budget, threshold)
        if chunks or len(due) > 1:
            self.quiet_steps = 0
        if not due and not chunks:
            return None
        return self._commit(due, chunks)

    def _take_due(self) -> list[Cohort]:
        """Cohorts whose turn it is, without members that already wait for their last token."""
        taken = []
        due = self.due
        while due and due[0].eligible_step <= self.step:
            cohort = due.popleft()
            if cohort.stopping:
                for live in [live for live in cohort.stopping if live.target - 1 <= live.delivered < live.sampled]:
                    cohort.remove(live, self.settings.block_size)
            if self.at_length_limit:
                for live in [live for live in cohort.members if live.context >= self.settings.max_model_len - 1]:
                    cohort.remove(live, self.settings.block_size)
            if cohort.members:
                taken.append(cohort)
        return taken

    def _chunk(self, live: Live, budget: int, threshold: int) -> int:
        """Prompt tokens that `live` reads next within `budget`."""
        if self.step < live.eligible_step:
            return 0
        new = live.to_compute - live.computed
        if 0 < threshold < new:
            new = threshold
        return self._align(live, min(new, budget))

    def _align(self, live: Live, new: int) -> int:
        """Clip a chunk of a hybrid model so that it ends where a state is kept (_mamba_block_aligned_split)."""
        settings = self.settings
        start, tokens = live.computed, live.to_compute
        prompt_end = max(live.prompt, tokens - 1)
        if not settings.align_chunks or start >= prompt_end:
            return new
        block = settings.block_size
        end = start + new
        if end < prompt_end:
            limit = settings.max_num_batched_tokens
            if settings.long_prefill_token_threshold:
                limit = min(limit, settings.long_prefill_token_threshold)
            aligned = end // block * block
            if aligned > start or block <= limit:
                end = aligned
        stops = [(tokens - 1) // block * block]
        if start % block:
            stops.append((start // block + 1) * block)
        return max(min([stop for stop in stops if start < stop < end], default=end) - start, 0)

    def _allocate_all(self, due: list[Cohort], chunks: list[tuple[Live, int]]) -> bool:
        """Give every decode and chunk its blocks, or nobody."""
        pool, block = self.pool, self.settings.block_size
        grants: list[tuple[Live, int]] = []
        for cohort in due:
            if cohort.fresh:
                grants += [(live, pool.blocks(live.context + 1)) for live in cohort.fresh]
            crossing = cohort.crossing.get(cohort.scheduled % block)
            if crossing:
                grants += [(live, pool.blocks(live.context + 1)) for live in crossing]
        for live, new in chunks:
            grants.append((live, pool.blocks(live.computed + new, live.in_flight + new)))
        if not grants:
            return True
        if sum(max(0, blocks - live.held) for live, blocks in grants) > pool.free:
            return False
        for live, blocks in grants:
            self.hold(live, blocks)
        for cohort in due:
            for live in cohort.fresh:
                cohort.crossing.setdefault(crossing_key(live, block), {})[live] = None
            cohort.fresh.clear()
        return True

    def hold(self, live: Live, blocks: int) -> None:
        """Give `live` so many blocks in all."""
        self.pool.free += live.held - blocks
        live.held = blocks

    def _walk(self, due: list[Cohort], budget: int, threshold: int) -> tuple[list[Cohort], list[tuple[Live, int]], int]:
        """Schedule the running requests one by one, in order; returns whole cohorts, chunks and the budget left."""
        chunks: list[tuple[Live, int]] = []
        granted: dict[Live, None] = {}
        turn: set[Cohort | None] = set(due)
        index = 0
        while index < len(self.running) and budget > 0:
            live = self.running[index]
            new = blocks = 0
            if live.cohort in turn:
                new = 1
                blocks = self.pool.blocks(live.context + 1)
            elif live.reading:
                new = self._chunk(live, budget, threshold)
                blocks = self.pool.blocks(live.computed + new, live.in_flight + new)
            if new:
                if not self._make_room(live, blocks):
                    break
                self.hold(live, blocks)
                if live.reading:
                    chunks.append((live, new))
                else:
                    granted[live] = None
                budget -= new
            index += 1
        return self._split(due, granted), chunks, budget

    def _make_room(self, live: Live, blocks: int) -> bool:
        """Preempt from the end of the running list until `live` can hold `blocks`; False when it preempts itself."""
        while blocks - live.held > self.pool.free:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is live:
                return False
        return True

    def _split(self, due: list[Cohort], granted: dict[Live, None]) -> list[Cohort]:
        """Cohorts made of exactly the granted members; who was left out stays due."""
        whole = []
        left_out = []
        for cohort in due:
            chosen = [live for live in cohort.members if live in granted]
            if len(chosen) < len(cohort.members):
                left_out.append(cohort)
                if chosen:
                    part = Cohort()
                    part.token_s = cohort.token_s
                    self._move(chosen, part)
                    whole.append(part)
            elif chosen:
                whole.append(cohort)
        self.due.extendleft(reversed(left_out))
        return whole

    def _move(self, lives: Iterable[Live], cohort: Cohort) -> None:
        for live in lives:
            if live.cohort is not None:
                live.cohort.remove(live, self.settings.block_size)
            cohort.add(live)

    def _preempt(self, live: Live) -> None:
        """Free everything of the youngest running request; it will read prompt and output again."""
        self.running.pop()
        if live.cohort is not None:
            live.cohort.remove(live, self.settings.block_size)
        if live.reading:
            self.reading.remove(live)
            live.reading = False
        self.hold(live, 0)
        live.computed = 0
        self.waiting.appendleft(live)
        self.preemptions += 1

    def _admit(self, chunks: list[tuple[Live, int]], budget: int, threshold: int) -> None:
        """Move requests from waiting to running while budget, seats and blocks last."""
        settings, pool = self.settings, self.pool
        skipped: list[Live] = []
        while budget > 0 and self.waiting and len(self.running) < settings.max_num_seqs:
            live = self.waiting[0]
            if live.last_step > self.delivered_step:  # preempted, with tokens still in flight
                skipped.append(self.waiting.popleft())
                continue
            new = live.to_compute
            if 0 < threshold < new:
                new = threshold
            if not settings.enable_chunked_prefill and new > budget:
                break
            new = self._align(live, min(new, budget))
            if new == 0:
                break
            free = pool.free - (pool.watermark if self.running else 0)
            if settings.reserve_full_isl and pool.admission_blocks(live.to_compute) > free:
                break
            blocks = pool.blocks(new, new)
            if blocks > free:
                break
            self.hold(live, blocks)
            self.running.append(self.waiting.popleft())
            self.reading.append(live)
            live.reading = True
            chunks.append((live, new))
            budget -= new
        self.waiting.extendleft(reversed(skipped))

    def _commit(self, due: list[Cohort], chunks: list[tuple[Live, int]]) -> Plan:
        """Advance everyone in the step; who samples in it is one cohort from now on."""
        step = self.step
        cohort = max(due, key=lambda each: len(each.members)) if due else None
        for other in due:
            if cohort is not None and other is not cohort:
                cohort.token_s = max(cohort.token_s, other.token_s)
                self._move(list(other.members), cohort)
        plan = Plan(step, [], cohort, 0, 0, 0, 0.0)
        if cohort is not None:
            plan.decodes = len(cohort.members)
            plan.decode_context = cohort.context + plan.decodes
            plan.token_s = cohort.token_s
        for live, new in chunks:
            plan.chunks.append((live, new, live.computed))
            live.computed += new
            live.in_flight += new
            live.last_step = step
            if live.computed == live.to_compute:
                if cohort is None:
                    cohort = plan.cohort = Cohort()
                self.reading.remove(live)
                live.reading = False
                cohort.add(live)
                if self.settings.regime is Regime.R1:
                    total = live.prompt + live.target + self.settings.slots
                    self.at_length_limit |= total > self.settings.max_model_len
        if cohort is not None:
            plan.sampled = len(cohort.members)
            self._advance(cohort)
        return plan

    def _advance(self, cohort: Cohort) -> None:
        cohort.scheduled += 1
        cohort.context += len(cohort.members)
        cohort.last_step = self.step
        if self.cadence:
            cohort.eligible_step = self.step + self.cadence
            self.due.append(cohort)

    def repeat(self, cohort: Cohort | None) -> Plan | None:
        """Schedule a cohort whose turn is known, without looking at anyone else or at the KV blocks."""
        self.step += 1
        if cohort is None:
            return None
        self.due.popleft()
        decodes = len(cohort.members)
        self._advance(cohort)
        return Plan(self.step, [], cohort, decodes, cohort.context, decodes, cohort.token_s)

    def deliver(self, plan: Plan, now: float) -> list[Live]:
        """Take a step's tokens back; returns the requests that have all theirs."""
        self.delivered_step = plan.step
        for live, new, _ in plan.chunks:
            live.in_flight -= new
        cohort = plan.cohort
        if cohort is None:
            return []
        cohort.delivered += 1
        cohort.times.append(now)
        finished = []
        if cohort.delivered in cohort.will_stop:
            cohort.stopping += cohort.will_stop.pop(cohort.delivered)
        if cohort.delivered in cohort.ending:
            finished = cohort.ending.pop(cohort.delivered)
            for live in finished:
                self._finish(live)
            self.quiet_steps = 0
        if not self.cadence:
            self.due.append(cohort)
        return finished

    def _finish(self, live: Live) -> None:
        if live.cohort is not None:
            live.cohort.remove(live, self.settings.block_size)
        if live in self.running:
            self.running.remove(live)
        else:
            self.waiting.remove(live)
        self.hold(live, 0)
        self.finished_unflushed = True
