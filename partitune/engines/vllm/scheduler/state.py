"""Everything that changes while one engine runs, and how a step is sent to its stages.

Decision: the state is one plain object that the loop (engine_core.py) and its shortcut (fast_forward.py) work on, so
that the shortcut can leave it exactly as the loop would have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from partitune.costs.cost_model import StageCosts
from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.cohort import Live
from partitune.engines.vllm.scheduler.pipeline import BatchCost, Passage, Pipeline
from partitune.engines.vllm.scheduler.scheduler import Plan, Scheduler
from partitune.engines.vllm.scheduler.settings import SchedulerSettings
from partitune.simulation.client import Client
from partitune.simulation.overheads import Overheads
from partitune.simulation.request import Request
from partitune.simulation.run import Run, Step, client_view


class EngineState:
    """One engine in the middle of a run."""

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
        self.pipeline = Pipeline(settings.regime, costs, overheads, broadcasts_chunks=settings.broadcasts_chunks)
        self.queue: deque[tuple[float, Plan | None]] = deque()  # (when its output is back, the step or an empty one)
        self.lives: dict[str, Live] = {}
        self.steps: list[Step] | None = [] if record_steps else None
        self.now = 0.0
        self.makespan = 0.0
        self.in_pipeline = 0.0
        self.batches = self.empty_steps = self.decode_steps = self.decode_tokens = self.prompt_tokens = 0
        self.tokens_on_stages = settings.regime in (Regime.ASYNC_V2, Regime.SYNC_V2)

    def send_due(self) -> None:
        """Let the client send what it can by now."""
        while self.client.next_s <= self.now:
            request, sent_s = self.client.send()
            live = self.lives[request.id] = Live(request, sent_s, len(self.lives))
            self.scheduler.add(live)

    def dispatch(self, plan: Plan) -> None:
        """Send a step to the stages and put it in the queue."""
        prompt_tokens, pairs = 0, 0.0
        for _, new, past in plan.chunks:
            prompt_tokens += new
            pairs += new * (past + (new + 1) / 2)
        context = self.rounded(plan.decode_context, plan.decodes)
        padding = self.settings.padding(prompt_tokens, plan.decodes)
        cost = self.pipeline.cost(prompt_tokens, pairs, plan.decodes, context, plan.sampled, padding)
        passage = self.push(plan, cost)
        self.prompt_tokens += prompt_tokens
        if self.steps is not None:
            tokens = {live.request.id: new for live, new, _ in plan.chunks}
            if plan.cohort is not None:
                tokens = {live.request.id: 1 for live in plan.cohort.members} | tokens
            self.steps.append(Step(self.now, passage.start_s, passage.end_s, tokens))

    def rounded(self, context: int, decodes: int) -> int:
        """`context` with its mean per decode rounded to `context_step`."""
        grain = self.context_step * decodes
        return (context + grain // 2) // grain * grain if decodes else 0

    def push(self, plan: Plan, cost: BatchCost) -> Passage:
        """Let the stages run a step."""
        passage = self.pipeline.push(cost, max(self.now, plan.token_s), samples=plan.sampled > 0)
        if self.tokens_on_stages and plan.cohort is not None:
            plan.cohort.token_s = passage.token_s
        self.queue.append((passage.out_s, plan))
        self.batches += 1
        if plan.decodes:
            self.decode_steps += 1
            self.decode_tokens += plan.decodes
        self.makespan = passage.end_s
        self.in_pipeline += passage.end_s - passage.start_s
        return passage

    def dispatch_empty(self) -> None:
        """An empty step takes a slot of the queue and nothing else."""
        self.queue.append((self.now, None))
        self.empty_steps += 1
        if self.steps is not None:
            self.steps.append(Step(self.now, None, self.now, {}))

    def take_oldest(self) -> None:
        """Wait for the oldest step and take its tokens back."""
        out_s, oldest = self.queue.popleft()
        if out_s > self.now:
            self.now = out_s
        if oldest is not None:
            finished = self.scheduler.deliver(oldest, self.now)
            if finished:
                self.client.done(len(finished), self.now)

    def result(self, requests: Sequence[Request]) -> Run:
        """What the finished run leaves behind."""
        lives = [self.lives[request.id] for request in requests]
        times, gaps = client_view((live.request, live.sent_s, live.token_times()) for live in lives)
        return Run(
            requests=times,
            inter_token_s=gaps,
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
            prefix_cache_queries=self.scheduler.prefix_queries,
            prefix_cache_hits=self.scheduler.prefix_hits,
            steps=tuple(self.steps or ()),
            work=self.pipeline.work(),
        )
