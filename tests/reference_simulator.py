"""The simulator written for the eye: one object per request, one scan of the running list per step, no shortcuts.

It follows vLLM 0.33.0 `v1/core/sched/scheduler.py`, `async_scheduler.py` and `v1/engine/core.py` line by line, with the
blocks of tests/reference_blocks.py, and is the oracle that the fast simulator is held to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partitune.costs.cost_model import Batch, StageCosts
from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.settings import PrefillCadence, SchedulerSettings, SchedulingPolicy
from partitune.simulation.request import Request
from partitune.simulation.run import Overheads, RequestTimes, Run, Step
from tests.reference_blocks import Cache, Tracked, ceil_div, text


@dataclass
class Dispatched:
    dispatch_s: float
    start_s: float | None
    end_s: float
    out_s: float
    rows: dict[Tracked, int]
    chunks: set[Tracked]
    sampled: set[Tracked]


class Scheduler:
    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.cache = Cache(settings)
        self.waiting: deque[Tracked] = deque()
        self.running: list[Tracked] = []
        self.finished_unflushed = False
        self.step = 0
        self.turn = 0  # of the busy loop, since it last had nothing to do
        self.capacity_bound = False
        self.executed = 0
        self.last_prefill = -settings.prefill_schedule_interval
        self.preemptions = 0
        self.queries = self.hits = 0

    def has_requests(self) -> bool:
        return bool(self.waiting or self.running or self.finished_unflushed)

    def end_turn(self) -> None:
        self.turn = self.turn + 1 if self.waiting or self.running else 0

    def align(self, sequence: Tracked, new: int) -> int:
        s = self.settings
        start = sequence.computed
        prefill_end = max(sequence.request.prompt_tokens, sequence.tokens - 1)
        if not s.align_chunks or start >= prefill_end:
            return new
        block = s.block_size
        end = start + new
        border = (prefill_end - 1) // block * block
        inside = s.state_export_alignment is not None and end >= prefill_end and start % block == 0
        inside = inside and ceil_div(end, block) - 2 > (start - 1) // block and start + block <= border < end
        inside = inside and (border - start) % (s.state_export_alignment or 1) == 0
        if end < prefill_end:
            limit = s.max_num_scheduled_tokens or s.max_num_batched_tokens
            if s.long_prefill_token_threshold:
                limit = min(limit, s.long_prefill_token_threshold)
            aligned = end // block * block
            if aligned > start or block <= limit:
                end = aligned
        stops = [start + (sequence.junction - start) // block * block]
        if not inside:
            stops.append((sequence.tokens - 1) // block * block)
        if start % block and not inside:
            stops.append((start // block + 1) * block)
        end = min([stop for stop in stops if start < stop < end], default=end)
        return max(end - start, 0)

    def schedule(self) -> tuple[dict[Tracked, int], set[Tracked], set[Tracked]]:  # noqa: C901 - one scan, as in the engine
        s = self.settings
        self.step += 1
        self.cache.fresh.clear()
        interval = s.prefill_schedule_interval
        if s.prefill_cadence is PrefillCadence.TURNS:
            throttle = interval > 1 and self.turn % interval != 0
        else:
            throttle = interval > 1 and self.executed + 1 - self.last_prefill < interval
        defer = throttle and not self.capacity_bound and any(not seq.reading for seq in self.running)
        budget = s.max_num_scheduled_tokens or s.max_num_batched_tokens
        eligible = len(self.running) + len(self.waiting)
        threshold = s.long_prefill_token_threshold if eligible > 1 else 0
        if threshold and s.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, s.max_num_batched_tokens // eligible)
        prefill = False
        rows: dict[Tracked, int] = {}
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            seq = self.running[index]
            confirmed = seq.computed + 2 - seq.placeholders
            known_end = seq.request.prompt_tokens + seq.request.output_tokens
            if seq.placeholders > 0 and confirmed >= known_end and not seq.request.stops_early:
                index += 1
                continue
            if self.step < seq.eligible_step:
                index += 1
                continue
            if defer and seq.reading:
                index += 1
                continue
            new = seq.tokens + seq.placeholders - seq.computed
            if 0 < threshold < new:
                new = threshold
            new = min(new, budget, s.max_model_len - seq.computed - 1)
            new = self.align(seq, new)
            if new == 0:
                index += 1
                continue
            while not (allocated := self.cache.allocate(seq, new)):
                victim = self.running[-1]
                if s.scheduling_policy is SchedulingPolicy.PRIORITY:
                    victim = max(self.running, key=rank)
                if self.running.index(victim) < index:
                    index -= 1
                budget += rows.pop(victim, 0)
                self.running.remove(victim)
                self.preempt(victim)
                preempted = True
                if victim is seq:
                    break
            if not allocated and s.scheduling_policy is SchedulingPolicy.PRIORITY and s.passes_over_preempted:
                continue
            if not allocated:
                break
            prefill |= seq.reading
            rows[seq] = new
            budget -= new
            index += 1
        if not preempted:
            skipped: deque[Tracked] = deque()
            if s.scheduling_policy is SchedulingPolicy.PRIORITY:
                self.waiting = deque(sorted(self.waiting, key=rank))
            while budget > 0 and self.waiting and len(self.running) < (s.max_num_active_seqs or s.max_num_seqs):
                seq = self.waiting[0]
                if seq.stale:
                    seq.deferred = True
                    skipped.append(self.waiting.popleft())
                    continue
                hits = self.cache.hits(seq)
                seq.computed = len(hits[0]) * s.block_size
                new = seq.tokens - seq.computed
                if defer and new > 1:
                    break
                if 0 < threshold < new:
                    new = threshold
                if not s.enable_chunked_prefill and new > budget:
                    break
                new = self.align(seq, min(new, budget))
                if new == 0:
                    break
                if not self.cache.admit(seq, new, hits, running=bool(self.running)):
                    break
                if self.cache.enabled and not seq.preempted:
                    self.queries += seq.tokens
                    self.hits += seq.computed
                prefill |= seq.computed < seq.tokens - 1
                self.waiting.popleft()
                seq.deferred = False
                self.running.append(seq)
                seq.state = "running"
                rows[seq] = new
                budget -= new
            self.waiting.extendleft(reversed(skipped))
            if not defer:
                self.capacity_bound = len(self.waiting) > sum(seq.deferred for seq in self.waiting)
        self.executed += bool(rows)
        if prefill:
            self.last_prefill = self.executed
        chunks = {seq for seq in rows if seq.reading}
        sampled = set()
        for seq, new in rows.items():
            seq.computed += new
            seq.in_flight += new
            if seq.computed >= seq.tokens + seq.placeholders:
                sampled.add(seq)
                seq.reading = False
                if s.regime.asynchronous:
                    seq.placeholders += 1
                if s.regime is Regime.ASYNC_V2:
                    seq.eligible_step = self.step + s.stages
        self.finished_unflushed = False
        return rows, chunks, sampled

    def preempt(self, seq: Tracked) -> None:
        self.cache.release(seq)
        seq.state = "waiting"
        seq.computed = 0
        seq.placeholders = 0
        seq.stale = seq.in_flight
        seq.reading = True
        seq.preempted = True
        self.waiting.appendleft(seq)
        self.preemptions += 1

    def update(self, step: Dispatched, now: float) -> list[Tracked]:
        finished = []
        for seq, new in step.rows.items():
            seq.in_flight -= new
            stale = seq.stale > 0
            if stale:
                seq.stale -= new
            if seq.state == "finished" or seq not in step.sampled:
                continue
            seq.outputs += 1
            seq.token_times.append(now)
            if self.settings.regime.asynchronous and not stale:
                seq.placeholders -= 1
            if self.settings.regime.asynchronous and seq.state == "running":
                self.cache.cache(seq, seq.computed - seq.placeholders)
            if seq.outputs >= seq.request.output_tokens or seq.tokens >= self.settings.max_model_len:
                (self.running if seq.state == "running" else self.waiting).remove(seq)
                seq.state = "finished"
                self.cache.release(seq)
                self.finished_unflushed = True
                finished.append(seq)
        return finished


def rank(sequence: Tracked) -> tuple[int, int]:
    return sequence.request.priority, sequence.number


class Pipeline:
    def __init__(self, settings: SchedulerSettings, costs: StageCosts, overheads: Overheads) -> None:
        self.regime, self.costs, self.overheads = settings.regime, costs, overheads
        self.broadcasts_chunks = settings.broadcasts_chunks
        self.leave = [0.0] * costs.stages  # when the stage is rid of its last batch
        self.compute = [0.0] * costs.stages
        self.transfer = [0.0] * costs.stages
        self.gate = 0.0

    def push(self, batch: Batch, ready: float) -> tuple[float, float, float, float]:
        o = self.overheads
        last = self.costs.stages - 1
        compute = self.costs.compute_s(batch)
        transfer = self.costs.transfer_s(batch.tokens)
        if self.regime is Regime.ASYNC_V1:
            ready = max(ready, self.gate)
        start = first = max(ready, self.leave[0])
        for stage in range(last):
            end = start + compute[stage]
            self.compute[stage] += compute[stage]
            # Rendezvous: the receiver posts its receive once it is rid of the batch before.
            leave = max(end, self.leave[stage + 1]) + transfer[stage] if transfer[stage] > 0.0 else end
            self.leave[stage] = leave
            self.transfer[stage] += transfer[stage]
            self.transfer[stage + 1] += transfer[stage]
            start = max(leave, self.leave[stage + 1])
        end = start + compute[last]
        sampled = end + (o.sample_s if batch.sampled else 0.0)
        self.compute[last] += sampled - start
        out = sampled + o.d2h_s
        blocking = self.regime in (Regime.SYNC_V1, Regime.SYNC_V2)
        self.leave[last] = out if blocking else sampled
        broadcasts = batch.sampled or self.broadcasts_chunks
        token = sampled + o.broadcast_s if broadcasts else sampled
        if broadcasts:
            self.gate = token
        return first, sampled, token, out


def simulate(
    requests: Sequence[Request],
    settings: SchedulerSettings,
    costs: StageCosts,
    overheads: Overheads,
    concurrency: int | None = None,
    context_step: int = 1,
) -> Run:
    order = sorted(range(len(requests)), key=lambda i: requests[i].arrival_s)
    unsent = deque(requests[i] for i in order)
    texts = {request.id: text(request, {each.id: each for each in requests}) for request in requests}
    slots = deque([0.0] * (concurrency or len(requests)))
    scheduler = Scheduler(settings)
    pipeline = Pipeline(settings, costs, overheads)
    queue: deque[Dispatched] = deque()
    everyone: dict[str, Tracked] = {}
    steps: list[Step] = []
    now = in_pipeline = makespan = 0.0
    batches = decode_steps = decode_tokens = batch_tokens = 0

    while True:
        while unsent and slots and max(unsent[0].arrival_s, slots[0]) <= now:
            request = unsent.popleft()
            seq = everyone[request.id] = Tracked(
                request, max(request.arrival_s, slots.popleft()), len(everyone), texts[request.id]
            )
            scheduler.waiting.append(seq)
        if not queue and not scheduler.has_requests():
            if not unsent:
                break
            now = max(now, unsent[0].arrival_s, slots[0])
            continue

        executed = False
        if scheduler.has_requests():
            rows, reading, sampled = scheduler.schedule()
            executed = bool(rows)
            if not executed:
                queue.append(Dispatched(now, None, now, now, rows, reading, sampled))
            else:
                now += overheads.engine_step_s + overheads.engine_request_s * len(rows)
                decodes = [q for q in rows if q not in reading]
                chunks = [(n, q.computed - n) for q, n in rows.items() if q in reading]
                context = sum(q.computed for q in decodes)
                grain = context_step * max(1, len(decodes))
                batch = Batch(
                    prefill_tokens=sum(n for n, _ in chunks),
                    prefill_pairs=sum(n * (past + (n + 1) / 2) for n, past in chunks),
                    decode_tokens=len(decodes),
                    decode_context=(context + grain // 2) // grain * grain,
                    sampled=len(sampled),
                    padding=settings.padding(sum(n for n, _ in chunks), len(decodes)),
                )
                ready = max([now] + [q.token_s for q in decodes])
                start, end, token, out = pipeline.push(batch, ready)
                for q in sampled:
                    q.token_s = token if settings.regime in (Regime.ASYNC_V2, Regime.SYNC_V2) else 0.0
                queue.append(Dispatched(now, start, end, out, rows, reading, sampled))
                makespan = end
                in_pipeline += end - start
                batches += 1
                decode_steps += bool(decodes)
                decode_tokens += len(decodes)
                batch_tokens += batch.prefill_tokens + batch.decode_tokens
            last = queue[-1]
            ids = {q.request.id: n for q, n in rows.items()}
            steps.append(Step(last.dispatch_s, last.start_s, last.end_s, ids))
            if len(queue) < settings.slots and (executed or scheduler.has_requests()):
                if not executed:
                    now += overheads.empty_step_s
                scheduler.end_turn()
                continue
        oldest = queue.popleft()
        now = max(now, oldest.out_s)
        slots.extend([now] * len(scheduler.update(oldest, now)))
        scheduler.end_turn()
        if not executed and scheduler.has_requests():
            now += overheads.empty_step_s

    times = []
    gaps = [np.zeros(0)]
    for request in requests:
        seq = everyone[request.id]
        times.append(
            RequestTimes(
                request.id, request.prompt_tokens, seq.outputs, seq.sent_s, seq.token_times[0], seq.token_times[-1]
            )
        )
        gaps.append(np.diff(seq.token_times))
    return Run(
        requests=tuple(times),
        inter_token_s=np.concatenate(gaps),
        makespan_s=makespan,
        compute_s=tuple(pipeline.compute),
        transfer_s=tuple(pipeline.transfer),
        batches=batches,
        empty_steps=len(steps) - batches,
        decode_steps=decode_steps,
        decode_tokens=decode_tokens,
        batch_tokens=batch_tokens,
        preemptions=scheduler.preemptions,
        in_pipeline_s=in_pipeline,
        prefix_cache_queries=scheduler.queries,
        prefix_cache_hits=scheduler.hits,
        steps=tuple(steps),
    )
