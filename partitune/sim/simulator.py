"""The engine core's loop in virtual time: schedule, dispatch, wait for the oldest batch, update.

Decision: the loop is the engine's own, statement for statement, because the interesting behaviour lives in it: empty
batches take slots, the core blocks on the oldest batch, and a request that arrives meanwhile waits for it.

Source: vLLM 0.33.0 `v1/engine/core.py` (run_busy_loop, step_with_batch_queue, _process_engine_step).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from partitune.costs.interface import StageCosts
from partitune.engines.regimes import Regime
from partitune.errors import OutOfMemory, SpecError
from partitune.sim.client import Client
from partitune.sim.cohort import Live
from partitune.sim.inputs import Overheads, Request, SchedulerSettings
from partitune.sim.kv import KvPool
from partitune.sim.pipeline import Passage, Pipeline
from partitune.sim.run import RequestTimes, Run, Step
from partitune.sim.scheduler import Plan, Scheduler


def simulate(
    requests: Sequence[Request],
    settings: SchedulerSettings,
    costs: StageCosts,
    overheads: Overheads,
    concurrency: int | None = None,
    *,
    context_step: int = 32,
    record_steps: bool = False,
) -> Run:
    """Run `requests` through the engine.

    Args:
        requests: what the client has to send, in any order.
        settings: the engine's scheduler and KV cache.
        costs: seconds per stage and per hand-off of a batch.
        overheads: seconds beside the stages' work.
        concurrency: at most that many requests outstanding (closed loop); None: every request at its arrival.
        context_step: costs are asked with the mean context of the decodes rounded to this many tokens, which saves
            most questions; 1 asks for every step.
        record_steps: keep every step, empty ones too, in `Run.steps`.

    Raises:
        SpecError: a request the engine would refuse.
        OutOfMemory: a request that can never hold its KV blocks; `excess` is in blocks.
    """
    _check(requests, settings, costs)
    core = _EngineCore(requests, settings, costs, overheads, concurrency, context_step, record_steps)
    core.loop()
    return core.result(requests)


def _check(requests: Sequence[Request], settings: SchedulerSettings, costs: StageCosts) -> None:
    if costs.stages != settings.stages:
        raise SpecError(f"the costs are for {costs.stages} stages, the settings say {settings.stages}")
    if len({request.id for request in requests}) < len(requests):
        raise SpecError("two requests have the same id")
    pool = KvPool(settings)
    for request in requests:
        total = request.prompt_tokens + request.output_tokens
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise SpecError(f"request {request.id}: prompt_tokens and output_tokens must be 1 or more")
        if total > settings.max_model_len:
            raise SpecError(
                f"request {request.id}: {request.prompt_tokens} prompt and {request.output_tokens} output tokens "
                f"exceed max_model_len {settings.max_model_len}"
            )
        need = pool.admission_blocks(total)
        if need > pool.free:
            raise OutOfMemory(
                f"request {request.id} needs {need} KV blocks for {total} tokens, the cache has {pool.free}",
                excess=need - pool.free,
            )


class _EngineCore:
    """State of one run."""

    def __init__(
        self,
        requests: Sequence[Request],
        settings: SchedulerSettings,
        costs: StageCosts,
        overheads: Overheads,
        concurrency: int | None,
        context_step: int,
        record_steps: bool,
    ) -> None:
        self.settings = settings
        self.overheads = overheads
        self.context_step = context_step
        self.client = Client(requests, concurrency)
        self.scheduler = Scheduler(settings)
        self.pipeline = Pipeline(settings.regime, costs, overheads)
        self.lives: dict[str, Live] = {}
        self.steps: list[Step] | None = [] if record_steps else None
        self.now = 0.0
        self.makespan = 0.0
        self.in_pipeline = 0.0
        self.batches = self.empty_steps = self.decode_steps = self.decode_tokens = self.prompt_tokens = 0

    def loop(self) -> None:
        """Until every request has its tokens and the pipeline is empty."""
        client, scheduler, overheads = self.client, self.scheduler, self.overheads
        slots = self.settings.slots
        queue: deque[tuple[float, Plan | None]] = deque()  # (when its output is back, the step)
        while True:
            while client.next_s <= self.now:
                request, sent_s = client.send()
                live = self.lives[request.id] = Live(request, sent_s)
                scheduler.waiting.append(live)
            if scheduler.has_requests():
                plan = scheduler.schedule()
                if plan is None:
                    self._record_empty()
                    queue.append((self.now, None))
                    if len(queue) < slots and scheduler.has_requests():
                        self.now += overheads.empty_step_s
                        continue
                else:
                    self.now += overheads.engine_step_s
                    queue.append((self._dispatch(plan).out_s, plan))
                    if len(queue) < slots:
                        continue
                executed = plan is not None
            elif queue:
                executed = False
            elif client.next_s == float("inf"):
                return
            else:
                self.now = client.next_s
                continue
            out_s, oldest = queue.popleft()
            self.now = max(self.now, out_s)
            if oldest is not None:
                finished = scheduler.deliver(oldest, self.now)
                if finished:
                    client.done(len(finished), self.now)
            if not executed and scheduler.has_requests():
                self.now += overheads.empty_step_s

    def _dispatch(self, plan: Plan) -> Passage:
        """Send a step to the stages."""
        decodes = plan.decodes
        context = plan.decode_context
        if decodes:
            grain = self.context_step * decodes
            context = (context + grain // 2) // grain * grain
            self.decode_steps += 1
            self.decode_tokens += decodes
        prompt_tokens, pairs = 0, 0.0
        for _, new, past in plan.chunks:
            prompt_tokens += new
            pairs += new * (past + (new + 1) / 2)
        self.prompt_tokens += prompt_tokens
        cost = self.pipeline.cost(prompt_tokens, pairs, decodes, context, plan.sampled)
        passage = self.pipeline.push(cost, max(self.now, plan.token_s), samples=plan.sampled > 0)
        if plan.cohort is not None and self.settings.regime in (Regime.R3, Regime.R4):
            plan.cohort.token_s = passage.token_s
        self.batches += 1
        self.makespan = passage.end_s
        self.in_pipeline += passage.end_s - passage.start_s
        if self.steps is not None:
            tokens = {live.request.id: new for live, new, _ in plan.chunks}
            if plan.cohort is not None:
                tokens = {live.request.id: 1 for live in plan.cohort.members} | tokens
            self.steps.append(Step(self.now, passage.start_s, passage.end_s, tokens))
        return passage

    def _record_empty(self) -> None:
        self.empty_steps += 1
        if self.steps is not None:
            self.steps.append(Step(self.now, None, self.now, {}))

    def result(self, requests: Sequence[Request]) -> Run:
        """What the finished run leaves behind."""
        times = []
        gaps = [np.zeros(0)]
        for request in requests:
            live = self.lives[request.id]
            tokens = live.token_times()
            times.append(
                RequestTimes(
                    request.id, request.prompt_tokens, request.output_tokens, live.sent_s, tokens[0], tokens[-1]
                )
            )
            gaps.append(np.diff(tokens))
        return Run(
            requests=tuple(times),
            inter_token_s=np.concatenate(gaps),
            makespan_s=self.makespan,
            compute_s=self.pipeline.compute_s(),
            transfer_s=self.pipeline.transfer_s(),
            batches=self.batches,
            empty_steps=self.empty_steps,
            decode_steps=self.decode_steps,
            decode_tokens=self.decode_tokens,
            batch_tokens=self.prompt_tokens + self.decode_tokens,
            preemptions=self.scheduler.preemptions,
            in_pipeline_s=self.in_pipeline,
            steps=tuple(self.steps or ()),
        )
