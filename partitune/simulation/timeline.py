"""What every stage did at every moment of a run, and why it waited.

Decision: a stage's time is cut at the ends of what it did, so its slices cover the run once and without gaps, whatever
the batches were. A wait is put down to the batch that ends it. As long as none of its requests could have gone on, the
tokens are the reason (or the client); from then until it is dispatched the engine core is, if it is blocked; then the
tokens again; and once the batch runs further up the pipeline, the stage merely has no work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import NamedTuple


class Crossing(NamedTuple):
    """One batch stage by stage and boundary by boundary; from `hand_offs` on, both sides take part."""

    starts: tuple[float, ...]  # per stage: computing begins
    ends: tuple[float, ...]  # per stage: computing ends, on the last stage sampler included
    hand_offs: tuple[float, ...]  # per boundary: the batch is there and the receiver is free
    leaves: tuple[float, ...]  # per stage: rid of the batch


class Activity(StrEnum):
    """What a stage is at."""

    COMPUTE = "compute"  # sampler included
    RECEIVE = "receive"
    SEND = "send"
    NO_WORK = "no work"  # nothing to run, or the next batch is still being scheduled or on a stage before this one
    WAITS_FOR_TOKEN = "waits for token"  # noqa: S105 - the tokens that the next batch decodes from are not there
    WAITS_FOR_SEND = "waits for send"  # computed; the next stage is not rid of its own batch, or the loop is not there
    WAITS_FOR_SLOT = "waits for its slot"  # there is something to run, and the loop is at another slot
    QUEUE_FULL = "queue full"  # there is something to run, and the engine core is blocked on its oldest batch
    WAITS_FOR_COPY = "waits for copy"  # last stage of a sync engine: its tokens on their way to the host


class CoreActivity(StrEnum):
    """What the engine core is at."""

    DISPATCH = "dispatch"
    EMPTY = "empty step"  # takes a slot of the queue and no time
    SLEEP = "sleeps after an empty step"
    BLOCKED = "blocked on the oldest batch"  # every slot of the queue is taken
    DRAIN = "waits for the oldest batch"  # nothing is left to schedule


class Slice(NamedTuple):
    """One activity of a stage. `batch` is the one at hand; of a wait, the one that ends it; None after the last."""

    activity: Activity
    start_s: float
    end_s: float
    batch: TracedBatch | None


class CoreSlice(NamedTuple):
    """One activity of the engine core; `step` is the one dispatched, or waited for."""

    activity: CoreActivity
    start_s: float
    end_s: float
    step: int


class SlotSlice(NamedTuple):
    """A batch in its slot: from when it was decided on until its tokens are back."""

    slot: int
    start_s: float
    end_s: float
    batch: TracedBatch


@dataclass(frozen=True, slots=True)
class TracedBatch:
    """A non-empty step and its way through the stages."""

    step: int  # counts empty steps too
    requests: Mapping[str, int]  # request id -> tokens
    prompts: int  # requests that read their prompt
    prompt_tokens: int
    decodes: int
    ready_s: float  # the first of its requests could have gone on
    dispatch_s: float
    crossing: Crossing


@dataclass(frozen=True, slots=True)
class Timeline:
    """One run, moment by moment. Batches and the core's activities are in order.

    An engine has a core that dispatches, or slots that are visited in turn.
    """

    stages: int
    makespan_s: float
    batches: tuple[TracedBatch, ...]
    core: tuple[CoreSlice, ...] = ()
    slots: tuple[SlotSlice, ...] = ()
    undispatched: Activity = Activity.NO_WORK  # a batch that could run, until it is dispatched by a core that is free

    def empty_steps(self, stage: int) -> Iterator[tuple[float, int]]:
        """When `stage` had each step without tokens, and which it was: it takes no time, and runs in its turn."""
        batches = iter(self.batches)
        batch, free_s = next(batches, None), 0.0
        for piece in self.core:
            if piece.activity is CoreActivity.EMPTY:
                while batch is not None and batch.step < piece.step:
                    free_s = batch.crossing.leaves[stage]
                    batch = next(batches, None)
                yield max(piece.start_s, free_s), piece.step

    def stage(self, stage: int) -> list[Slice]:
        """Everything `stage` did from 0 to the makespan: every moment in exactly one slice."""
        blocked = [piece for piece in self.core if piece.activity is CoreActivity.BLOCKED]
        begins = [piece.start_s for piece in blocked]
        slices: list[Slice] = []
        now = 0.0

        def until(end_s: float, activity: Activity, batch: TracedBatch | None) -> None:
            nonlocal now
            end_s = min(end_s, self.makespan_s)
            if end_s > now:
                slices.append(Slice(activity, now, end_s, batch))
                now = end_s

        for batch, after in zip_longest(self.batches, self.batches[1:]):
            crossing = batch.crossing
            next_s = after.crossing.starts[stage] if after is not None else self.makespan_s
            start_s = crossing.starts[0]
            undispatched_s = min(batch.dispatch_s, start_s)
            unready = Activity.WAITS_FOR_TOKEN if batch.decodes else Activity.NO_WORK
            until(min(batch.ready_s, undispatched_s), unready, batch)
            for piece in blocked[max(0, bisect_right(begins, now) - 1) : bisect_right(begins, undispatched_s)]:
                until(min(piece.start_s, undispatched_s), Activity.NO_WORK, batch)
                until(min(piece.end_s, undispatched_s), Activity.QUEUE_FULL, batch)
            until(undispatched_s, self.undispatched, batch)
            until(start_s, Activity.WAITS_FOR_TOKEN, batch)
            if stage:
                until(crossing.hand_offs[stage - 1], Activity.NO_WORK, batch)
                until(min(crossing.leaves[stage - 1], crossing.starts[stage]), Activity.RECEIVE, batch)
                until(crossing.starts[stage], Activity.WAITS_FOR_TOKEN, batch)
            until(crossing.ends[stage], Activity.COMPUTE, batch)
            if stage == self.stages - 1:
                until(crossing.leaves[stage], Activity.WAITS_FOR_COPY, batch)
            elif crossing.leaves[stage] > crossing.ends[stage]:  # it takes part in the hand-off
                until(min(crossing.hand_offs[stage], next_s), Activity.WAITS_FOR_SEND, batch)
                until(min(crossing.leaves[stage], next_s), Activity.SEND, batch)
        until(self.makespan_s, Activity.NO_WORK, None)
        return slices
