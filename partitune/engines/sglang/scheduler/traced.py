"""A finished run of SGLang, moment by moment.

Decision: turns keep all their times, so a timeline is made of them afterwards and nothing has to be watched. What could
have run and did not waits for its slot: the loop visits one after the other. What a stage receives, or with
`SGLANG_PP_COMM_OVERLAP` sends, while it computes shows as computing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partitune.engines.sglang.scheduler.pipeline import Turn
from partitune.engines.sglang.scheduler.scheduler import MicroBatch
from partitune.simulation.timeline import Activity, Crossing, SlotSlice, Timeline, TracedBatch


def timeline_of(
    turns: Sequence[tuple[Turn, MicroBatch | None]],
    slots: int,
    sent_s: Mapping[str, float],
    token_s: Mapping[str, Sequence[float]],
) -> Timeline:
    """The timeline of a run.

    Args:
        turns: every turn of a slot, in order.
        slots: how many are visited in turn.
        sent_s: request id -> when it was sent.
        token_s: request id -> when each of its tokens was processed on stage 0.
    """
    next_s = dict(sent_s)  # request -> when it could go on after its latest turn
    made = dict.fromkeys(sent_s, 0)
    batches, occupied = [], []
    for number, (turn, batch) in enumerate(turns):
        if batch is None:
            continue
        traced = _traced(number + 1, turn, batch, min(next_s[name] for name in batch.tokens))
        batches.append(traced)
        occupied.append(SlotSlice(number % slots, turn.dispatch_s, batch.back_s, traced))
        for name in batch.tokens:
            if batch.cut is not None and name == batch.cut.id and any(live is batch.cut for live, _, _ in batch.chunks):
                next_s[name] = turn.dispatch_s
            else:
                next_s[name] = token_s[name][made[name]]
                made[name] += 1
    return Timeline(
        stages=len(turns[0][0].end),
        makespan_s=max(batch.crossing.ends[-1] for batch in batches),
        batches=tuple(batches),
        slots=tuple(occupied),
        undispatched=Activity.WAITS_FOR_SLOT,
    )


def _traced(step: int, turn: Turn, batch: MicroBatch, ready_s: float) -> TracedBatch:
    ends = tuple(turn.end)
    starts = tuple(end - seconds for end, seconds in zip(ends, turn.compute, strict=True))
    return TracedBatch(
        step=step,
        requests=batch.tokens,
        prompts=len(batch.chunks),
        prompt_tokens=sum(new for _, new, _ in batch.chunks),
        decodes=len(batch.decodes),
        ready_s=ready_s,
        dispatch_s=turn.dispatch_s,
        crossing=Crossing(
            starts=(turn.start_s, *starts[1:]),
            ends=ends,
            hand_offs=tuple(left - seconds for left, seconds in zip(turn.left, turn.transfer, strict=False)),
            leaves=(*turn.left[:-1], ends[-1]),
        ),
    )
