"""Stretches in which the same cohorts decode round after round: simulate one round, repeat it by arithmetic.

Decision: everything a step does to the clocks is a maximum or a sum with a constant. So once one whole round has moved
every clock of the engine by the same amount, the next rounds do the same until something happens, and they can be
skipped exactly. Costs are held over at most `context_step` rounds, at the contexts of the middle one; that is the only
approximation, of the size that rounding the context makes anyway.

What can happen: a request ends or is about to, the client sends one, KV blocks run out. A leg stays short of all three.
"""

from __future__ import annotations

from collections.abc import Sequence

from partitune.engines.vllm.scheduler.cohort import Cohort, Live
from partitune.engines.vllm.scheduler.pipeline import BatchCost
from partitune.engines.vllm.scheduler.state import EngineState

#: Fewer rounds than this are left to the loop.
_WORTHWHILE = 3
#: Clocks that moved by amounts this close (relative) moved together.
_TOGETHER = 1e-9


def fast_forward(state: EngineState) -> None:
    """Run ahead as long as nothing but whole cohorts decoding happens; leaves `state` as the loop would."""
    if ring := _ring(state):
        _legs(state, ring)
    state.scheduler.quiet_steps = 0


def _legs(state: EngineState, ring: Sequence[Cohort | None]) -> None:
    """Leg after leg; what the requests hold is counted by its upper bound until that no longer fits."""
    settings, scheduler = state.settings, state.scheduler
    pool = scheduler.pool
    cohorts = [cohort for cohort in ring if cohort is not None]
    lives = [live for cohort in cohorts for live in cohort.members]
    growing = pool.growing * len(lives)
    begun = [cohort.scheduled for cohort in cohorts]
    admits = bool(scheduler.waiting) and len(scheduler.running) < settings.seats
    taken = given = 0  # blocks at most
    going = True
    while going:
        rounds = min(state.context_step, *(_quiet_rounds(cohort) for cohort in cohorts))
        back = pool.trimming * len(lives) * -(-rounds // settings.block_size)
        if admits and pool.trims and given + back >= pool.lacking:  # that may be what somebody waits for
            rounds = min(rounds, *(_rounds_to_trim(live) for live in lives))
        if rounds < _WORTHWHILE:
            break
        more = growing * -(-rounds // settings.block_size)
        if taken + more > pool.free:
            _settle(state, cohorts, begun)
            begun = [cohort.scheduled for cohort in cohorts]
            taken = 0
            if sum(pool.missing(live, live.context + rounds) for live in lives) > pool.free:
                break
        taken += more
        given += back
        going = _leg(state, ring, rounds)
    if taken:
        _settle(state, cohorts, begun)


def _settle(state: EngineState, cohorts: Sequence[Cohort], begun: Sequence[int]) -> None:
    """Give every request the blocks it really holds by now; `begun` are the tokens each cohort was scheduled for."""
    turns = [(cohort, cohort.scheduled - then) for cohort, then in zip(cohorts, begun, strict=True)]
    state.scheduler.pool.catch_up(turns, state.scheduler.running)


def _rounds_to_trim(live: Live) -> int:
    """Rounds before one at whose step the request gives blocks back."""
    return int(min(1e9, live.trims_at - live.processed - 1))


def _ring(state: EngineState) -> list[Cohort | None] | None:
    """The cohorts of the coming steps, in order, None for an empty step; None where they do not come round for ever."""
    scheduler = state.scheduler
    if state.record_steps or state.context_step == 1 or scheduler.at_length_limit or scheduler.reading:
        return None
    in_flight = [None if output is None else output.cohort for _, output in state.queue]
    if len(in_flight) != state.settings.slots - 1 or any(output and output.chunks for _, output in state.queue):
        return None
    if scheduler.cadence:
        ring = in_flight[-scheduler.cadence :] if len(in_flight) >= scheduler.cadence else []
    else:
        ring = [scheduler.due[0] if scheduler.due else None, *in_flight]
    cohorts = [cohort for cohort in ring if cohort is not None]
    turns = [cohort.eligible_step - scheduler.step for cohort in cohorts]
    wanted = [number for number, cohort in enumerate(ring, start=1) if cohort is not None]
    if scheduler.cadence and (turns != wanted or list(scheduler.due) != cohorts):
        return None
    if not cohorts or len(set(cohorts)) < len(cohorts) or any(each.fresh or each.stopping for each in cohorts):
        return None
    return ring


def _quiet_rounds(cohort: Cohort) -> int:
    """Tokens that can come back to the cohort before one of its members is about to end."""
    events = [key for table in (cohort.ending, cohort.will_stop) for key, lives in table.items() if lives]
    return min(events, default=cohort.delivered) - cohort.delivered - 1


def _leg(state: EngineState, ring: Sequence[Cohort | None], rounds: int) -> bool:
    """Up to `rounds` rounds at constant costs; False when the client has something to send."""
    costs = [None if cohort is None else _middle_cost(state, cohort, rounds) for cohort in ring]
    while rounds:
        before = _clocks(state, ring)
        in_pipeline = state.in_pipeline
        if not _round(state, ring, costs):
            return False
        rounds -= 1
        moved = [now - then for now, then in zip(_clocks(state, ring), before, strict=True)]
        period = moved[0]
        if period > 0 and max(moved) - min(moved) <= _TOGETHER * period:
            times = min(rounds, int(min(1e9, (state.client.next_s - state.now) / period)) - 1)
            if times > 0:
                _skip(state, ring, costs, times, period, state.in_pipeline - in_pipeline)
                rounds -= times
    return True


def _middle_cost(state: EngineState, cohort: Cohort, rounds: int) -> BatchCost:
    decodes = len(cohort.members)
    context = state.rounded(cohort.context + decodes * (1 + rounds // 2), decodes)
    return state.pipeline.cost(0, 0.0, decodes, context, decodes, state.settings.padding(0, decodes))


def _clocks(state: EngineState, ring: Sequence[Cohort | None]) -> list[float]:
    """Every time the future depends on."""
    tokens = [cohort.token_s for cohort in ring if cohort is not None and state.tokens_on_stages]
    return [state.now, *state.pipeline.clock(), *(out_s for out_s, _ in state.queue), *tokens]


def _round(state: EngineState, ring: Sequence[Cohort | None], costs: Sequence[BatchCost | None]) -> bool:
    """One step of every cohort; False, possibly in the middle, when the client has something to send."""
    for cohort, cost in zip(ring, costs, strict=True):
        if state.client.next_s <= state.now:
            return False
        output = state.scheduler.repeat(cohort)
        if output is None or cost is None:
            state.dispatch_empty()
            state.take_oldest()
            state.now += state.overheads.empty_step_s
        else:
            state.now += state.overheads.engine_s(output.requests)
            state.push(output, cost)
            state.take_oldest()
    return True


def _skip(
    state: EngineState,
    ring: Sequence[Cohort | None],
    costs: Sequence[BatchCost | None],
    times: int,
    period: float,
    in_pipeline: float,
) -> None:
    """Repeat the last round `times` times."""
    seconds = times * period
    steps = times * len(ring)
    scheduler = state.scheduler
    for cohort in ring:
        if cohort is None:
            state.empty_steps += times
            continue
        last = cohort.times[-1]
        cohort.times += [last + number * period for number in range(1, times + 1)]
        if cohort.steps:
            cohort.steps += range(cohort.last_step + len(ring), cohort.last_step + steps + 1, len(ring))
            cohort.seen_step += steps
        cohort.scheduled += times
        cohort.delivered += times
        cohort.looked += times
        cohort.context += times * len(cohort.members)
        cohort.last_step += steps
        cohort.eligible_step += steps if scheduler.cadence else 0
        cohort.token_s += seconds if state.tokens_on_stages else 0.0
    state.pipeline.skip([cost for cost in costs if cost is not None], times, seconds)
    state.now += seconds
    state.makespan += seconds
    state.in_pipeline += times * in_pipeline
    scheduler.step += steps
    scheduler.delivered_step += steps
    scheduler.executed += times * sum(cohort is not None for cohort in ring)
    for number, (out_s, output) in enumerate(state.queue):
        if output is not None:
            output.step += steps
        state.queue[number] = (out_s + seconds, output)
