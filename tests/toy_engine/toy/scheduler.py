"""Toy's scheduler in virtual time: as many groups as stages; a group steps again when its tokens are back.

A request joins the group whose turn it is, where there is room for its whole length in the KV cache, and stays in it.
A step holds one token of every request that decodes, and prompt tokens in what is left of the budget.

Source: Toy 1.2 `program.py`.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field

from partitune.costs.cost_model import Batch
from partitune.engines.memory import KvCache
from partitune.engines.scheduling import Flow, Simulation
from partitune.errors import OutOfMemory, Refused
from partitune.simulation.request import Client, Request
from partitune.simulation.run import Overheads, Run, client_view


@dataclass(slots=True)
class _Live:
    """A request that was sent."""

    request: Request
    sent_s: float
    pages: int
    read: int = 0  # prompt tokens
    token_s: list[float] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return len(self.token_s) == self.request.output_tokens


@dataclass(slots=True)
class _Group:
    """Requests that step together; its tokens are back at `ready_s`."""

    ready_s: float = 0.0
    members: list[_Live] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    """What one step holds, while it is filled."""

    prompts: list[tuple[_Live, int]] = field(default_factory=list)  # with new tokens
    decodes: list[_Live] = field(default_factory=list)

    @property
    def batch(self) -> Batch:
        ends = sum(live.read + new == live.request.prompt_tokens for live, new in self.prompts)
        return Batch(
            prefill_tokens=sum(new for _, new in self.prompts),
            prefill_pairs=sum(new * (live.read + (new + 1) / 2) for live, new in self.prompts),
            decode_tokens=len(self.decodes),
            decode_context=sum(live.read + len(live.token_s) for live in self.decodes),
            sampled=ends + len(self.decodes),
        )


def simulate(simulation: Simulation, flow: Flow, overheads: Overheads) -> Run:
    """Run the requests. Raises Refused for shared prefixes, OutOfMemory (in pages) for a request that never fits."""
    requests, kv_cache, costs = simulation.requests, simulation.kv_cache, simulation.costs
    pages = {request.id: _pages(request, kv_cache) for request in requests}
    client, waiting = Client(requests, simulation.concurrency), deque[_Live]()
    groups, everyone = [_Group() for _ in range(flow.cohorts)], dict[str, _Live]()
    stage_free_s, compute_s, handed_s = [0.0] * costs.stages, [0.0] * costs.stages, [0.0] * (costs.stages - 1)
    free_pages, in_pipeline_s, work = kv_cache.num_blocks, 0.0, Counter[Batch]()
    while True:
        group = min(groups, key=lambda each: (each.ready_s, not each.members))
        now = max(group.ready_s, stage_free_s[0])
        free_pages += sum(live.pages for live in group.members if live.is_done)
        group.members = [live for live in group.members if not live.is_done]
        while client.next_s <= now:
            request, sent_s = client.send()
            everyone[request.id] = _Live(request, sent_s, pages[request.id])
            waiting.append(everyone[request.id])
        while waiting and waiting[0].pages <= free_pages and len(group.members) < flow.cohort_requests:
            free_pages -= waiting[0].pages
            group.members.append(waiting.popleft())
        if not group.members:
            group.ready_s = min([each.ready_s for each in groups if each.members] + [client.next_s])
            if group.ready_s == math.inf:
                break
            continue
        step = _fill(group, flow.step_tokens)
        batch = step.batch
        start_s = end_s = now + overheads.engine_s(len(step.prompts) + len(step.decodes))
        handed = (0.0, *costs.transfer_s(batch.tokens))
        for stage, seconds in enumerate(costs.compute_s(batch)):
            end_s = stage_free_s[stage] = max(end_s + handed[stage], stage_free_s[stage]) + seconds
            compute_s[stage] += seconds
        handed_s = [total + seconds for total, seconds in zip(handed_s, handed[1:], strict=True)]
        work[batch] += 1
        in_pipeline_s += end_s - start_s
        for live, new in step.prompts:
            live.read += new
        served = [live for live in group.members if live.read == live.request.prompt_tokens]
        for live in served:
            live.token_s.append(end_s)
        client.done([live.request.id for live in served if live.is_done], end_s)
        group.ready_s = end_s
    times, gaps = client_view((each, everyone[each.id].sent_s, everyone[each.id].token_s) for each in requests)
    return Run(
        requests=times,
        inter_token_s=gaps,
        makespan_s=stage_free_s[-1],
        compute_s=tuple(compute_s),
        transfer_s=tuple(got + given for got, given in zip([0.0, *handed_s], [*handed_s, 0.0], strict=True)),
        batches=work.total(),
        empty_steps=0,
        decode_steps=sum(uses for batch, uses in work.items() if batch.decode_tokens),
        decode_tokens=sum(uses * batch.decode_tokens for batch, uses in work.items()),
        batch_tokens=sum(uses * batch.tokens for batch, uses in work.items()),
        preemptions=0,
        in_pipeline_s=in_pipeline_s,
        work=tuple(work.items()),
    )


def _fill(group: _Group, budget: int) -> _Step:
    step = _Step()
    for live in group.members:
        if live.token_s:
            step.decodes.append(live)
    budget -= len(step.decodes)
    for live in group.members:
        if (new := min(live.request.prompt_tokens - live.read, budget)) > 0:
            step.prompts.append((live, new))
            budget -= new
    return step


def _pages(request: Request, kv_cache: KvCache) -> int:
    if request.prefix or request.continues is not None:
        raise Refused("Toy: shared prefixes are not simulated", excess=1.0)
    pages = -(-(request.prompt_tokens + request.output_tokens) // kv_cache.block_size)
    if pages > kv_cache.num_blocks:
        raise OutOfMemory(f"request {request.id} takes {pages} pages", excess=float(pages - kv_cache.num_blocks))
    return pages
