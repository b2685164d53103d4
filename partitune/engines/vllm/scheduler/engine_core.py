"""The engine core's loop in virtual time: schedule, dispatch, wait for the oldest batch, update.

Decision: the loop is the engine's own, statement for statement, because the interesting behaviour lives in it: empty
batches take slots, the core blocks on the oldest batch, and a request that arrives meanwhile waits for it.

Source: vLLM 0.33.0 `v1/engine/core.py` (run_busy_loop, step_with_batch_queue, _process_engine_step).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from partitune.costs.cost_model import StageCosts
from partitune.engines.vllm.scheduler.fast_forward import fast_forward
from partitune.engines.vllm.scheduler.pools import pool_of
from partitune.engines.vllm.scheduler.settings import SchedulerSettings
from partitune.engines.vllm.scheduler.state import EngineState
from partitune.engines.vllm.scheduler.traced import TracedState
from partitune.errors import OutOfMemory, SpecError, Stalled
from partitune.simulation.request import Request
from partitune.simulation.run import Overheads, Run


def simulate(
    requests: Sequence[Request],
    settings: SchedulerSettings,
    costs: StageCosts,
    overheads: Overheads,
    concurrency: int | None = None,
    *,
    waits: bool = False,
    context_step: int = 32,
    record_steps: bool = False,
    record_timeline: bool = False,
) -> Run:
    """Run `requests` through the engine.

    Args:
        requests: what the client has to send, in any order.
        settings: the engine's scheduler and KV cache.
        costs: seconds per stage and per hand-off of a batch.
        overheads: seconds beside the stages' work.
        concurrency: at most that many requests outstanding (closed loop); None: every request at its arrival.
        waits: a request that continues another is not sent before that one's answer has come.
        context_step: costs are asked with the mean context of the decodes rounded to this many tokens, which saves
            most questions; 1 asks for every step.
        record_steps: keep every step, empty ones too, in `Run.steps`.
        record_timeline: keep what every stage and the engine core did, in `Run.timeline`, and the steps.

    Raises:
        SpecError: a load that no client can send, or a request the engine would refuse.
        OutOfMemory: a request that can never hold its KV blocks, at once or while its chunks are in flight; `excess`
            is in blocks.
        Stalled: requests are left and none can be scheduled (a fault of the simulator).
    """
    _check(requests, settings, costs)
    kind = TracedState if record_timeline else EngineState
    state = kind(requests, settings, costs, overheads, concurrency, waits, context_step, record_steps)
    _loop(state)
    return state.result()


def _check(requests: Sequence[Request], settings: SchedulerSettings, costs: StageCosts) -> None:
    if costs.stages != settings.stages:
        raise SpecError(f"the costs are for {costs.stages} stages, the settings say {settings.stages}")
    pool = pool_of(settings)
    for request in requests:
        total = request.prompt_tokens + request.output_tokens
        if total > settings.max_model_len:
            raise SpecError(
                f"request {request.id}: {request.prompt_tokens} prompt and {request.output_tokens} output tokens "
                f"exceed max_model_len {settings.max_model_len}"
            )
        need = pool.most(total)
        if need > pool.free:
            raise OutOfMemory(
                f"request {request.id} needs {need} KV blocks for {total} tokens, the cache has {pool.free}",
                excess=need - pool.free,
            )


def _loop(state: EngineState) -> None:
    """Until every request has its tokens and the pipeline is empty."""
    scheduler, queue = state.scheduler, state.queue
    slots, empty_step_s = state.settings.slots, state.overheads.empty_step_s
    patience = 2 * (slots + state.settings.stages)  # a request waits that many empty steps at most
    idle = 0
    while True:
        if scheduler.quiet_steps >= slots:
            fast_forward(state)
        state.send_due()
        if not scheduler.has_requests():
            if queue:
                state.take_oldest()
            elif state.client.next_s < math.inf:
                state.now = state.client.next_s
            else:
                return
            continue
        output = scheduler.schedule()
        if output is not None:
            idle = 0
            state.now += state.overheads.engine_s(output.requests)
            state.dispatch(output)
            if len(queue) == slots:
                state.take_oldest()
            continue
        idle += 1
        if idle > patience:
            raise Stalled(f"no request can be scheduled any more, {len(state.lives)} were sent")
        state.dispatch_empty()
        if len(queue) == slots or not scheduler.has_requests():
            state.take_oldest()
        if scheduler.has_requests():
            state.now += empty_step_s
