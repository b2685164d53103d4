"""The engine's state, watched: the same run, with everything noted that a timeline shows.

Decision: watching is a subclass that notes what its base did, so that a run nobody watches pays nothing and a watched
one cannot come out differently.
"""

from __future__ import annotations

from dataclasses import replace

from partitune.engines.vllm.scheduler.pipeline import BatchCost, Passage
from partitune.engines.vllm.scheduler.scheduler import SchedulerOutput
from partitune.engines.vllm.scheduler.state import EngineState
from partitune.simulation.run import Run
from partitune.simulation.timeline import CoreActivity, CoreSlice, Crossing, Timeline, TracedBatch


class TracedState(EngineState):
    """`EngineState` that also keeps a timeline; keeps its steps too, which rules out running ahead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.record_steps = True
        self._batches: list[TracedBatch] = []
        self._core: list[CoreSlice] = []
        self._after_empty = False
        self._crossings: list[Crossing] = []  # of each batch
        self._next_s: dict[str, float] = {}  # request -> when it could go on after its latest step
        self._scheduled_s = 0.0  # when the scheduler was last asked
        self._read_prompts = False  # and whether its step held prompt tokens

    def send_due(self) -> None:
        """Begin a turn of the engine's loop: time that passed since an empty step was slept."""
        if self._after_empty:
            self._after_empty = False
            if self.now > self._core[-1].end_s:
                self._core.append(CoreSlice(CoreActivity.SLEEP, self._core[-1].end_s, self.now, self.scheduler.step))
        super().send_due()

    def push(self, output: SchedulerOutput, cost: BatchCost) -> Passage:
        """Let the stages run a step, and note its way through them."""
        free = tuple(self.pipeline.leave)
        passage = super().push(output, cost)
        leaves = tuple(self.pipeline.leave)
        starts, ends, hand_offs = [passage.start_s], [], []
        for stage, transfer in enumerate(cost.transfer):
            ends.append(starts[-1] + cost.compute[stage])
            hand_offs.append(max(ends[-1], free[stage + 1]))
            starts.append(leaves[stage] if transfer > 0.0 else hand_offs[-1])
        ends.append(passage.end_s)
        self._crossings.append(Crossing(tuple(starts), tuple(ends), tuple(hand_offs), leaves))
        return passage

    def dispatch(self, output: SchedulerOutput) -> None:
        """Send a step to the stages, and note what it held and since when its requests could have gone on."""
        super().dispatch(output)
        crossing = self._crossings[-1]
        begin_s = self.now - self.overheads.engine_s(output.requests)
        self._core.append(CoreSlice(CoreActivity.DISPATCH, begin_s, self.now, output.step))
        requests = self.steps[-1].tokens
        ready_s = min(self._next_s[name] if name in self._next_s else self._admissible_s(name) for name in requests)
        self._batches.append(
            TracedBatch(
                step=output.step,
                requests=requests,
                prompts=len(output.chunks),
                prompt_tokens=sum(new for _, new, _ in output.chunks),
                decodes=output.decodes,
                ready_s=ready_s,
                dispatch_s=self.now,
                crossing=crossing,
            )
        )
        self._next_s |= dict.fromkeys(requests, self.now)
        if output.cohort is not None:
            out_s, _ = self.queue[-1]
            token_s = crossing.ends[-1] + self.overheads.broadcast_s if self.settings.regime.asynchronous else out_s
            self._next_s |= {live.request.id: token_s for live in output.cohort.members}
        self._scheduled_s, self._read_prompts = self.now, bool(output.chunks)

    def _admissible_s(self, request: str) -> float:
        """When a request that has not run yet could have.

        One that waited when the scheduler was last asked was left out for want of budget if that step read prompts; if
        not, because of `max_num_seqs` or for want of KV blocks, and it could not have run before now.
        """
        sent_s = self.lives[request].sent_s
        if sent_s > self._scheduled_s or self._read_prompts:
            return max(sent_s, self._scheduled_s)
        return self.now

    def dispatch_empty(self) -> None:
        """Let an empty step take a slot, and note it."""
        super().dispatch_empty()
        self._core.append(CoreSlice(CoreActivity.EMPTY, self.now, self.now, self.scheduler.step))
        self._after_empty = True
        self._scheduled_s, self._read_prompts = self.now, False

    def take_oldest(self) -> None:
        """Wait for the oldest step, and note the wait and its reason."""
        before_s = self.now
        full = len(self.queue) == self.settings.slots
        oldest = self.queue[0][1]
        super().take_oldest()
        if oldest is not None and self.now > before_s:
            activity = CoreActivity.BLOCKED if full else CoreActivity.DRAIN
            self._core.append(CoreSlice(activity, before_s, self.now, oldest.step))

    def result(self) -> Run:
        """What the finished run leaves behind, its steps and timeline with it."""
        timeline = Timeline(self.settings.stages, self.makespan, tuple(self._batches), tuple(self._core))
        return replace(super().result(), timeline=timeline)
