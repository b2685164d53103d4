"""vLLM's scheduler: which requests take part in the next step, and what a finished step changes.

Decision: one step has a quick way and an exact way. When everything that could run fits the token budget and the free
KV blocks, order does not matter and whole cohorts are scheduled at once; otherwise the running list is walked in its
order, request by request, with preemption, exactly as the engine does it. Both end in the same step.

Source: vLLM 0.33.0 `v1/core/sched/scheduler.py` (schedule, update_from_output) and
`async_scheduler.py`; held to the recorded schedules and to tests/reference_simulator.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.admission import admit
from partitune.engines.vllm.scheduler.cohort import Cohort, Live, crossing_key
from partitune.engines.vllm.scheduler.exact_step import ExactStep, move
from partitune.engines.vllm.scheduler.queues import Limits, Queues
from partitune.engines.vllm.scheduler.settings import SchedulerSettings


@dataclass(slots=True)
class SchedulerOutput:
    """One non-empty step: what the engine core sends to the stages."""

    step: int
    chunks: list[tuple[Live, int, int]]  # (request, prompt tokens read in this step, tokens before them)
    cohort: Cohort | None  # those who sample: decodes and finished prompts
    decodes: int
    decode_context: int
    sampled: int
    token_s: float  # when the decodes' newest tokens are on every stage

    @property
    def requests(self) -> int:
        """How many requests take part in the step."""
        return self.decodes + len(self.chunks)


class Scheduler(Queues):
    """The scheduler of one engine core."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.finished_unflushed = False  # the engine tells the workers in one more step
        self.wave_step = 0  # since when there was always a request to serve
        self.waiting_bound = False  # the last step that could admit prompts left some waiting
        # async-v1 schedules past a request's last token, but never past the model's length.
        self.at_length_limit = False
        self.cadence = {Regime.ASYNC_V1: 1, Regime.ASYNC_V2: settings.stages}.get(settings.regime, 0)

    def has_requests(self) -> bool:
        """True while the engine core keeps calling `schedule`."""
        return bool(self.running or self.waiting or self.finished_unflushed)

    def add(self, live: Live) -> None:
        """Let a request that has arrived wait for its admission."""
        prefix = live.request.prefix
        live.shared_blocks = 0 if not prefix else prefix[0].tokens // self.settings.block_size
        self.wait(live)

    def schedule(self) -> SchedulerOutput | None:
        """Make the next step and hand out its KV blocks, by preemption if need be; None for an empty one."""
        limits = self._limits()
        self.step += 1
        self.quiet_steps += 1
        self.finished_unflushed = False
        due = self._take_due()
        if not (due or self.reading or self.waiting):
            if not self.running:
                self.wave_step = self.step
            self.waiting_bound = False
            return None
        chunks: list[tuple[Live, int]] = []
        preempted = False
        if due or self.reading:
            decodes = sum(len(cohort.members) for cohort in due)
            chunks = [(live, new) for live in self.reading if (new := self.chunk(live, limits))]
            wanted = decodes + sum(new for _, new in chunks)
            if wanted <= limits.tokens and self._allocate_all(due, chunks):
                limits.tokens -= wanted
            else:
                self.quiet_steps = 0
                before = self.preemptions
                due, chunks = ExactStep(self, due, limits).run()
                preempted = self.preemptions > before
        if self.waiting and not preempted:
            chunks += admit(self, limits)
        if limits.no_prompts:
            if self.waiting:
                self.quiet_steps = 0
        elif not preempted and self.settings.prefill_schedule_interval > 1:
            self.waiting_bound = any(not live.deferred for live in self.waiting)
        if chunks or len(due) > 1:
            self.quiet_steps = 0
        if not due and not chunks:
            return None
        return self._commit(due, chunks)

    def _limits(self) -> Limits:
        """What the step to come may hold."""
        settings = self.settings
        several = len(self.running) + len(self.waiting) > 1
        threshold = settings.long_prefill_token_threshold if several else 0
        limits = Limits(settings.max_num_batched_tokens, threshold)
        interval = settings.prefill_schedule_interval
        if interval > 1 and (self.step - self.wave_step) % interval and not self.waiting_bound:
            limits.no_prompts = len(self.reading) < len(self.running)
        return limits

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
        self._give(grants, chunks)
        for cohort in due:
            for live in cohort.fresh:
                cohort.crossing.setdefault(crossing_key(live, block), {})[live] = None
            cohort.fresh.clear()
        return True

    def _give(self, grants: list[tuple[Live, int]], chunks: list[tuple[Live, int]]) -> None:
        """Hand out what fits."""
        back = any(blocks < live.held for live, blocks in grants)
        if back:  # a window lets go of what was in flight: somebody may be admitted now
            self.quiet_steps = 0
        if self.pool.caches and self.settings.keeps_states and (back or chunks):
            # Blocks given back and states kept between two grants decide what the cache forgets: in the engine's order.
            places = {live: place for place, live in enumerate(self.running)}
            grants.sort(key=lambda grant: places[grant[0]])
        reads = dict(chunks)
        for live, blocks in grants:
            self.pool.hold(live, blocks)
            if live in reads:
                self.pool.write(live, reads[live], self.step)

    def _commit(self, due: list[Cohort], chunks: list[tuple[Live, int]]) -> SchedulerOutput:
        """Advance everyone in the step; who samples in it is one cohort from now on."""
        step = self.step
        cohort = max(due, key=lambda each: len(each.members)) if due else None
        for other in due:
            if cohort is not None and other is not cohort:
                cohort.token_s = max(cohort.token_s, other.token_s)
                move(list(other.members), cohort, self.settings.block_size)
        output = SchedulerOutput(step, [], cohort, 0, 0, 0, 0.0)
        if cohort is not None:
            output.decodes = len(cohort.members)
            output.decode_context = cohort.context + output.decodes
            output.token_s = cohort.token_s
        for live, new in chunks:
            output.chunks.append((live, new, live.computed))
            live.computed += new
            live.in_flight += new
            live.last_step = step
            if live.computed == live.to_compute:
                if cohort is None:
                    cohort = output.cohort = Cohort()
                self.reading.remove(live)
                live.reading = False
                cohort.add(live)
                if self.settings.regime is Regime.ASYNC_V1 or (live.request.stops_early and self.cadence):
                    total = live.prompt + live.target + self.settings.slots
                    self.at_length_limit |= total > self.settings.max_model_len
        if cohort is not None:
            output.sampled = len(cohort.members)
            self._advance(cohort)
        return output

    def _advance(self, cohort: Cohort) -> None:
        cohort.scheduled += 1
        cohort.context += len(cohort.members)
        cohort.last_step = self.step
        if self.pool.caches:
            cohort.steps.append(self.step)
            cohort.seen_step = self.delivered_step
        if self.cadence:
            cohort.eligible_step = self.step + self.cadence
            self.due.append(cohort)

    def repeat(self, cohort: Cohort | None) -> SchedulerOutput | None:
        """Schedule a cohort whose turn is known, without looking at anyone else or at the KV blocks."""
        self.step += 1
        if cohort is None:
            return None
        self.due.popleft()
        decodes = len(cohort.members)
        self._advance(cohort)
        return SchedulerOutput(self.step, [], cohort, decodes, cohort.context, decodes, cohort.token_s)

    def deliver(self, output: SchedulerOutput, now: float) -> list[Live]:
        """Take a step's tokens back at `now` (seconds); returns the requests that have all theirs and are gone."""
        self.delivered_step = output.step
        for live, new, _ in output.chunks:
            live.in_flight -= new
        cohort = output.cohort
        if cohort is None:
            return []
        cohort.delivered += 1
        cohort.times.append(now)
        finished = []
        if cohort.delivered in cohort.will_stop:
            cohort.stopping += cohort.will_stop.pop(cohort.delivered)
        if cohort.delivered in cohort.ending:
            finished = cohort.ending.pop(cohort.delivered)
            if self.pool.caches and len(finished) > 1:  # who is first forgotten is as in the engine
                ended = set(finished)
                finished = [live for live in (*self.running, *self.waiting) if live in ended]
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
            self.pool.release(live, live.prompt + live.target - 1, comes_back=False)
        else:  # preempted with its last token in flight: holds nothing
            self.waiting.remove(live)
        self.finished_unflushed = True
        if not (self.running or self.waiting):
            self.wave_step = self.step
