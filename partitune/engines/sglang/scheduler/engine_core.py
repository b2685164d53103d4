"""SGLang in virtual time: its scheduler, its pipeline loop and the clients.

Decision: the scheduler decides for all stages at once (they run replicas and agree), the pipeline says when, and the
only thing that flows back is stage 0's clock: it decides which requests have arrived at a slot's turn. Tokens reach the
client when stage 0 has processed them. A round without work is where the engine resets its reservation ratio, and where
virtual time goes on to the next request.

Source: SGLang 0.5.23 `srt/managers/scheduler_pp_mixin.py` (event_loop_pp).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from partitune.costs.cost_model import Batch, StageCosts
from partitune.engines.sglang.scheduler.admission import Live
from partitune.engines.sglang.scheduler.kv_pool import Path
from partitune.engines.sglang.scheduler.pipeline import SglangPipeline, Turn
from partitune.engines.sglang.scheduler.radix_tree import Text
from partitune.engines.sglang.scheduler.scheduler import MicroBatch, SglangScheduler
from partitune.engines.sglang.scheduler.settings import SglangSettings
from partitune.engines.sglang.scheduler.traced import timeline_of
from partitune.errors import OutOfMemory, SpecError
from partitune.simulation.content import spans
from partitune.simulation.request import Client, Request
from partitune.simulation.run import Overheads, Run, Step, client_view

#: Costs are asked with the mean context of the decodes rounded to this many tokens.
_CONTEXT_STEP = 32


def simulate_sglang(
    requests: Sequence[Request],
    settings: SglangSettings,
    costs: StageCosts,
    overheads: Overheads,
    concurrency: int | None = None,
    *,
    waits: bool = False,
    record_steps: bool = False,
    record_timeline: bool = False,
) -> Run:
    """Run `requests` through SGLang.

    Args:
        requests: what the client has to send, in any order.
        settings: scheduler, KV pool and loop.
        costs: seconds per stage and per hand-off of a batch; a hand-off includes the all-gather over tensor ranks.
        overheads: seconds beside the stages' work. `engine_step_s` is the CPU time of a slot with work on every stage,
            `empty_step_s` of one without, `broadcast_s` one hop of the sampled tokens round the ring.
        concurrency: at most that many requests outstanding (closed loop); None: every request at its arrival.
        waits: a request that continues another is not sent before that one's answer has come.
        record_steps: keep every slot's turn, empty ones too, in `Run.steps`.
        record_timeline: keep what every stage and slot did, in `Run.timeline`.

    Raises:
        SpecError: a load that no client can send, or a request the engine would refuse or cut short.
        OutOfMemory: a request that does not fit, or KV so short that the engine would abort a request or stop;
            `excess` is in tokens.
    """
    client = Client(requests, concurrency, waits=waits)
    _check(requests, settings, costs)
    engine = _Engine(client, spans(requests), settings, costs, overheads)
    engine.loop()
    run = engine.result(requests, record_steps=record_steps)
    if not record_timeline:
        return run
    return replace(run, timeline=timeline_of(engine.turns, settings.slots, engine.sent_s, engine.token_s))


def _check(requests: Sequence[Request], settings: SglangSettings, costs: StageCosts) -> None:
    if costs.stages != settings.stages:
        raise SpecError(f"the costs are for {costs.stages} stages, the settings say {settings.stages}")
    page = settings.page_size
    for request in requests:
        total = request.prompt_tokens + request.output_tokens
        if total > settings.max_model_len - 2:
            raise SpecError(
                f"request {request.id}: {request.prompt_tokens} prompt and {request.output_tokens} output tokens "
                f"exceed max_model_len {settings.max_model_len} less the 2 that SGLang keeps"
            )
        # init_req_max_new_tokens would cut the output short: the last token and one page are kept free.
        whole = -(-request.prompt_tokens // page) * page
        need = max(whole + request.output_tokens + page + 1, total + 2)
        if need > settings.num_tokens:
            raise OutOfMemory(
                f"request {request.id} needs {need} KV tokens, the pool has {settings.num_tokens}",
                excess=float(need - settings.num_tokens),
            )


class _Engine:
    """State of one run."""

    def __init__(
        self,
        client: Client,
        texts: Mapping[str, Text],
        settings: SglangSettings,
        costs: StageCosts,
        overheads: Overheads,
    ) -> None:
        self.texts = texts
        self.settings = settings
        self.costs = costs
        self.overheads = overheads
        self.client = client
        self.scheduler = SglangScheduler(settings)
        self.pipeline = SglangPipeline(settings, overheads)
        self.sent_s: dict[str, float] = {}
        self.token_s: dict[str, list[float]] = {}
        self.turns: list[tuple[Turn, MicroBatch | None]] = []
        self.known: dict[Batch, tuple[tuple[float, ...], tuple[float, ...]]] = {}
        self.uses: dict[Batch, int] = {}

    def loop(self) -> None:
        """Slot after slot until every request has its tokens."""
        slots = self.settings.slots
        in_flight: list[MicroBatch | None] = [None] * slots
        stuck = 0
        while True:
            busy = False
            for number in range(slots):
                self._ingest()
                batch = self.scheduler.schedule(number)
                in_flight[number] = batch
                busy = busy or batch is not None
                self.pipeline.push(self._turn(batch))
                due = in_flight[(number + 1) % slots]
                if due is not None:
                    self._deliver(due)
            if busy:
                stuck = 0
                continue
            if self.scheduler.is_idle:
                self.scheduler.idle()
                if self.client.next_s == math.inf:
                    return
                self.pipeline.wait_until(self.client.next_s)
            stuck += 1
            if stuck > self.settings.prefill_decode_interval + 2:
                raise OutOfMemory("requests wait and SGLang admits none: the KV pool is too small for them", excess=1.0)

    def _ingest(self) -> None:
        client = self.client
        while client.next_s <= self.pipeline.now:
            request, sent_s = client.send()
            self.sent_s[request.id] = sent_s
            self.token_s[request.id] = []
            path = Path(self.texts[request.id])
            self.scheduler.waiting.append(Live(request.id, request.prompt_tokens, request.output_tokens, path=path))

    def _deliver(self, batch: MicroBatch) -> None:
        served = self.scheduler.deliver(batch)
        now = batch.back_s = self.pipeline.now
        for live in served:
            self.token_s[live.id].append(now)
        if finished := [live.id for live in served if live.finished]:
            self.client.done(finished, now)

    def _turn(self, batch: MicroBatch | None) -> Turn:
        turn = Turn(self.settings.stages)
        if batch is not None:
            work = self._work(batch)
            if work not in self.known:
                *others, last = map(float, self.costs.compute_s(work))
                compute = (*others, last + self.overheads.sample_s)
                self.known[work] = (compute, tuple(map(float, self.costs.transfer_s(work.tokens))))
            self.uses[work] = self.uses.get(work, 0) + 1
            turn.compute, turn.transfer = self.known[work]
            turn.graph = not batch.chunks
            turn.silent = self.settings.skip_pure_chunked_output and batch.is_middle_chunk
        self.turns.append((turn, batch))
        return turn

    def _work(self, batch: MicroBatch) -> Batch:
        """The batch as costs see it: every row passes head and sampler, a middle chunk's too."""
        tokens, pairs = 0, 0.0
        for _, new, past in batch.chunks:
            tokens += new
            pairs += new * (past + (new + 1) / 2)
        decodes = len(batch.decodes)
        context = sum(live.committed for live in batch.decodes) - decodes
        if decodes:
            grain = _CONTEXT_STEP * decodes
            context = (context + grain // 2) // grain * grain
        return Batch(tokens, pairs, decodes, context, len(batch.chunks) + decodes)

    def result(self, requests: Sequence[Request], *, record_steps: bool) -> Run:
        """What the finished run leaves behind."""
        stages = range(self.settings.stages)
        times, gaps = client_view((each, self.sent_s[each.id], self.token_s[each.id]) for each in requests)
        ran = [turn for turn, batch in self.turns if batch is not None]
        handed = [sum(n * self.known[work][1][b] for work, n in self.uses.items()) for b in stages[:-1]]
        return Run(
            requests=times,
            inter_token_s=gaps,
            makespan_s=max(turn.end[-1] for turn in ran),
            compute_s=tuple(sum(n * self.known[work][0][stage] for work, n in self.uses.items()) for stage in stages),
            transfer_s=tuple(received + given for received, given in zip([0.0, *handed], [*handed, 0.0], strict=True)),
            batches=len(ran),
            empty_steps=len(self.turns) - len(ran),
            decode_steps=sum(n for work, n in self.uses.items() if work.decode_tokens),
            decode_tokens=sum(n * work.decode_tokens for work, n in self.uses.items()),
            batch_tokens=sum(n * work.tokens for work, n in self.uses.items()),
            preemptions=self.scheduler.retractions,
            in_pipeline_s=sum(turn.end[-1] - turn.start_s for turn in ran),
            steps=self._steps() if record_steps else (),
            prefix_cache_queries=self.scheduler.looked_up,
            prefix_cache_hits=self.scheduler.found,
            work=tuple(self.uses.items()),
        )

    def _steps(self) -> tuple[Step, ...]:
        steps = [
            Step(turn.dispatch_s, turn.start_s, turn.end[-1], batch.tokens)
            if batch is not None
            else Step(turn.dispatch_s, None, turn.dispatch_s, {})
            for turn, batch in self.turns
        ]
        while steps and not steps[-1].tokens:
            steps.pop()
        return tuple(steps)
