"""Everything that changes while one engine runs, and how a step is sent to its stages.

Decision: the state is one plain object that the loop (engine_core.py) and its shortcut (fast_forward.py) work on, so
that the shortcut can leave it exactly as the loop would have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from partitune.costs.cost_model import StageCosts
from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.cohort import Live
from partitune.engines.vllm.scheduler.pipeline import BatchCost, Passage, Pipeline
from partitune.engines.vllm.scheduler.pools import kv_pool
from partitune.engines.vllm.scheduler.scheduler import Scheduler, SchedulerOutput
from partitune.engines.vllm.scheduler.settings import SchedulerSettings
from partitune.simulation.content import spans
from partitune.simulation.request import Client, Request
from partitune.simulation.run import Overheads, Run, Step, client_view


@dataclass(eq=False)
class EngineState:
    """One engine in the middle of a run. The fields are what `simulate` was asked."""

    requests: Sequence[Request]
    settings: SchedulerSettings
    costs: StageCosts
    overheads: Overheads
    concurrency: int | None
    waits: bool
    context_step: int
    record_steps: bool

    def __post_init__(self) -> None:
        block = self.settings.block_size
        self.texts = {
            name: tuple((span.end // block, span.owner) for span in text) for name, text in spans(self.requests).items()
        }
        self.continued = {request.continues for request in self.requests}
        self.client = Client(self.requests, self.concurrency, waits=self.waits)
        self.scheduler = Scheduler(self.settings, kv_pool(self.settings, self.requests, self.concurrency))
        self.pipeline = Pipeline(self.settings, self.costs, self.overheads)
        #: When its output is back, and the step; None for an empty one.
        self.queue: deque[tuple[float, SchedulerOutput | None]] = deque()
        self.lives: dict[str, Live] = {}
        self.steps: list[Step] = []  # where they are recorded
        self.now = 0.0
        self.makespan = 0.0
        self.in_pipeline = 0.0
        self.empty_steps = 0
        self.tokens_on_stages = self.settings.regime in (Regime.ASYNC_V2, Regime.SYNC_V2)

    def send_due(self) -> None:
        """Let the client send every request that is due by now; they wait for their admission."""
        while self.client.next_s <= self.now:
            request, sent_s = self.client.send()
            live = self.lives[request.id] = Live(
                request, sent_s, len(self.lives), self.texts[request.id], request.id in self.continued
            )
            self.scheduler.add(live)

    def dispatch(self, output: SchedulerOutput) -> None:
        """Send a step to the stages and put it in the queue."""
        prompt_tokens, pairs = 0, 0.0
        for _, new, past in output.chunks:
            prompt_tokens += new
            pairs += new * (past + (new + 1) / 2)
        context = self.rounded(output.decode_context, output.decodes)
        padding = self.settings.padding(prompt_tokens, output.decodes)
        cost = self.pipeline.cost(prompt_tokens, pairs, output.decodes, context, output.sampled, padding)
        passage = self.push(output, cost)
        if self.record_steps:
            tokens = {live.request.id: new for live, new, _ in output.chunks}
            if output.cohort is not None:
                tokens = {live.request.id: 1 for live in output.cohort.members} | tokens
            self.steps.append(Step(self.now, passage.start_s, passage.end_s, tokens))

    def rounded(self, context: int, decodes: int) -> int:
        """`context` with its mean per decode rounded to `context_step`."""
        grain = self.context_step * decodes
        return (context + grain // 2) // grain * grain if decodes else 0

    def push(self, output: SchedulerOutput, cost: BatchCost) -> Passage:
        """Let the stages run a step of that cost, and queue what comes back."""
        passage = self.pipeline.push(cost, max(self.now, output.token_s))
        if self.tokens_on_stages and output.cohort is not None:
            output.cohort.token_s = passage.token_s
        self.queue.append((passage.out_s, output))
        self.makespan = passage.end_s
        self.in_pipeline += passage.end_s - passage.start_s
        return passage

    def dispatch_empty(self) -> None:
        """An empty step takes a slot of the queue and nothing else."""
        self.queue.append((self.now, None))
        self.empty_steps += 1
        if self.record_steps:
            self.steps.append(Step(self.now, None, self.now, {}))

    def take_oldest(self) -> None:
        """Wait for the oldest step and take its tokens back."""
        out_s, oldest = self.queue.popleft()
        if out_s > self.now:
            self.now = out_s
        if oldest is not None:
            finished = self.scheduler.deliver(oldest, self.now)
            if finished:
                self.client.done([live.request.id for live in finished], self.now)

    def result(self) -> Run:
        """What the finished run leaves behind, requests in the order in which they were given."""
        lives = [self.lives[request.id] for request in self.requests]
        times, gaps = client_view((live.request, live.sent_s, live.token_times()) for live in lives)
        work = self.pipeline.work()
        decode_tokens = sum(batch.decode_tokens * uses for batch, uses in work)
        return Run(
            requests=times,
            inter_token_s=gaps,
            makespan_s=self.makespan,
            compute_s=self.pipeline.compute_s(),
            transfer_s=self.pipeline.transfer_s(),
            batches=sum(uses for _, uses in work),
            empty_steps=self.empty_steps,
            decode_steps=sum(uses for batch, uses in work if batch.decode_tokens),
            decode_tokens=decode_tokens,
            batch_tokens=decode_tokens + sum(batch.prefill_tokens * uses for batch, uses in work),
            preemptions=self.scheduler.preemptions,
            in_pipeline_s=self.in_pipeline,
            prefix_cache_queries=self.scheduler.prefix_queries,
            prefix_cache_hits=self.scheduler.prefix_hits,
            steps=tuple(self.steps),
            work=work,
        )
