"""vLLM's scheduler: which requests take part in the next step, and what a finished step changes.

Decision: one step has a quick way and an exact way. When everything that could run fits the token budget and the free
KV blocks, order does not matter and whole cohorts are scheduled at once; otherwise the running list is walked in its
order, request by request, with preemption, exactly as the engine does it. Both end in the same step.

Source: vLLM 0.33.0 `v1/core/sched/scheduler.py` (schedule, update_from_output) and
`async_scheduler.py`; held to the recorded schedules and to tests/reference_simulator.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.admission import admit
from partitune.engines.vllm.scheduler.cohort import Cohort, Live
from partitune.engines.vllm.scheduler.exact_step import ExactStep, move
from partitune.engines.vllm.scheduler.kv_pool import KvPool
from partitune.engines.vllm.scheduler.queues import Limits, Queues
from partitune.engines.vllm.scheduler.settings import PrefillCadence, SchedulerSettings


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

    def __init__(self, settings: SchedulerSettings, pool: KvPool) -> None:
        super().__init__(settings, pool)
        self.finished_unflushed = False  # the engine tells the workers in one more step
        self.wave_step = 0  # since when there was always a request to serve
        self.waiting_bound = False  # the last step that could admit prompts left some waiting
        self.executed = 0  # steps that were not empty
        self.read_at = -settings.prefill_schedule_interval  # the last of them that read prompts
        # async-v1 schedules past a request's last token, but never past the model's length.
        self.at_length_limit = False
        self.cadence = {Regime.ASYNC_V1: 1, Regime.ASYNC_V2: settings.stages}.get(settings.regime, 0)

    def has_requests(self) -> bool:
        """True while the engine core keeps calling `schedule`."""
        return bool(self.running or self.waiting or self.finished_unflushed)

    def add(self, live: Live) -> None:
        """Let a request that has arrived wait for its admission, which may succeed in one step of a round only."""
        self.quiet_steps = 0
        self.wait(live)

    def schedule(self) -> SchedulerOutput | None:
        """Make the next step and hand out its KV blocks, by preemption if need be; None for an empty one."""
        limits = self._limits()
        self.pool.begin_step()
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
                limits.reads = bool(chunks)
            else:
                self.quiet_steps = 0
                before = self.preemptions
                due, chunks = ExactStep(self, due, limits).run()
                preempted = self.preemptions > before
        if self.waiting and not preempted:
            chunks += admit(self, limits, due)
        if limits.no_prompts:
            if self.waiting:
                self.quiet_steps = 0
        elif not preempted and self.settings.prefill_schedule_interval > 1:
            self.waiting_bound = any(not live.deferred for live in self.waiting)
        if chunks or len(due) > 1:
            self.quiet_steps = 0
        if not due and not chunks:
            return None
        self.executed += 1
        if limits.reads:
            self.read_at = self.executed
        return self._commit(due, chunks)

    def _limits(self) -> Limits:
        """What the step to come may hold."""
        settings = self.settings
        eligible = len(self.running) + len(self.waiting)
        spared = settings.spares_lone_prompts and eligible == 1
        threshold = 0 if spared else settings.long_prefill_token_threshold
        if threshold and settings.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, settings.max_num_batched_tokens // max(eligible, 1))
        limits = Limits(settings.scheduled_tokens, threshold)
        if settings.prefill_schedule_interval > 1 and not self.waiting_bound and self._is_held_step():
            limits.no_prompts = len(self.reading) < len(self.running)
        return limits

    def _is_held_step(self) -> bool:
        """Whether prompts wait in this step while others decode."""
        interval = self.settings.prefill_schedule_interval
        if self.settings.prefill_cadence is PrefillCadence.STEPS:
            return self.executed + 1 - self.read_at < interval
        return (self.step - self.wave_step) % interval > 0

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
        pool = self.pool
        if pool.ample:
            for cohort in due:
                cohort.fresh.clear()
            return True
        grants = self._grants(due, chunks)
        if not grants:
            return True
        missing = sum(pool.missing(live, tokens) for live, tokens in grants.items())
        if missing > pool.free:
            return False
        left = pool.free - missing
        self._give(grants)
        if pool.free > left and self.waiting:  # windows and states gave some back: somebody may be admitted now
            self.quiet_steps = 0
        for cohort in due:
            cohort.looked = cohort.delivered
            cohort.fresh = [live for live in cohort.fresh if not self._watch(cohort, live)]
        return True

    def _grants(self, due: list[Cohort], chunks: list[tuple[Live, int]]) -> dict[Live, int]:
        """Who may take blocks in this step or give some back, and the tokens it then has."""
        block = self.settings.block_size
        grants: dict[Live, int] = {}
        for cohort in due:
            for live in cohort.fresh:
                grants[live] = live.context + 1
            for live in cohort.crossing.get(cohort.scheduled % block, ()):
                grants[live] = live.context + 1
            for delivered in range(cohort.looked + 1, cohort.delivered + 1) if cohort.trimming else ():
                for live in cohort.trimming.get(delivered % block, ()):
                    grants[live] = live.context + 1
        for live, new in chunks:
            grants[live] = live.computed + new
        return grants

    def _give(self, grants: dict[Live, int]) -> None:
        """Hand out what fits: in the engine's order where that decides what the cache forgets."""
        order: Iterable[Live] = grants
        if self.pool.trims and self.pool.caches and len(grants) > 1:
            places = {live: place for place, live in enumerate(self.running)}
            order = sorted(grants, key=places.__getitem__)
        for live in order:
            self.pool.grow(live, grants[live])

    def _watch(self, cohort: Cohort, live: Live) -> bool:
        """Let the cohort tell when a member takes or gives blocks; not while older tokens of it are on their way."""
        if self.pool.trims and (live.in_flight or live.delivered < live.base):
            return False
        cohort.watch(live, self.settings.block_size, self.pool.trims)
        return True

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
        cohort.lag = cohort.scheduled - cohort.delivered
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
        self.executed += 1
        cohort.looked = cohort.delivered
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
        self.fruitless = 0
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
            self.leave(live, live.prompt + live.target - 1, comes_back=False)
        else:  # preempted with its last token in flight: holds nothing
            self.waiting.remove(live)
        self.finished_unflushed = True
        if not (self.running or self.waiting):
            self.wave_step = self.step
