"""The engine's state, watched: the same run, with everything noted that a timeline shows.

Decision: watching is a subclass that notes what its base did, so that a run nobody watches pays nothing and a watched
one cannot come out differently.
"""

from __future__ import annotations

from collections.abc import Sequence

from partitune.costs.cost_model import StageCosts
from partitune.engines.vllm.scheduler.pipeline import TracedPipeline
from partitune.engines.vllm.scheduler.scheduler import Plan
from partitune.engines.vllm.scheduler.settings import SchedulerSettings
from partitune.engines.vllm.scheduler.state import EngineState
from partitune.simulation.overheads import Overheads
from partitune.simulation.request import Request
from partitune.simulation.timeline import CoreActivity, CoreSlice, Timeline, TracedBatch


class TracedState(EngineState):
    """`EngineState` that also keeps a timeline; keeps its steps too, which rules out running ahead."""

    def __init__(
        self,
        requests: Sequence[Request],
        settings: SchedulerSettings,
        costs: StageCosts,
        overheads: Overheads,
        concurrency: int | None,
        context_step: int,
    ) -> None:
        super().__init__(requests, settings, costs, overheads, concurrency, context_step, True)
        self.pipeline = self._traced = TracedPipeline(
            settings.regime, costs, overheads, broadcasts_chunks=settings.broadcasts_chunks
        )
        self._batches: list[TracedBatch] = []
        self._core: list[CoreSlice] = []
        self._after_empty = False
        self._next_s: dict[str, float] = {}  # request -> when it could go on after its latest step
        self._scheduled_s = 0.0  # when the scheduler was last asked
        self._read_prompts = False  # and whether its step held prompt tokens

    def send_due(self) -> None:
        """As the engine's; begins every turn of its loop, so time that passed after an empty step was slept."""
        if self._after_empty:
            self._after_empty = False
            if self.now > self._core[-1].end_s:
                self._core.append(CoreSlice(CoreActivity.SLEEP, self._core[-1].end_s, self.now, self.scheduler.step))
        super().send_due()

    def dispatch(self, plan: Plan) -> None:
        """As the engine's."""
        super().dispatch(plan)
        assert self.steps is not None  # noqa: S101 - asked for in __init__
        begin_s = self.now - self.overheads.engine_s(plan.requests)
        self._core.append(CoreSlice(CoreActivity.DISPATCH, begin_s, self.now, plan.step))
        requests = self.steps[-1].tokens
        ready_s = min(self._next_s[name] if name in self._next_s else self._admissible_s(name) for name in requests)
        self._batches.append(
            TracedBatch(
                step=plan.step,
                requests=requests,
                prompts=len(plan.chunks),
                prompt_tokens=sum(new for _, new, _ in plan.chunks),
                decodes=plan.decodes,
                ready_s=ready_s,
                dispatch_s=self.now,
                crossing=self._traced.crossings[-1],
            )
        )
        self._next_s |= dict.fromkeys(requests, self.now)
        if plan.cohort is not None:
            out_s, _ = self.queue[-1]
            end_s = self._traced.crossings[-1].ends[-1]
            token_s = end_s + self.overheads.broadcast_s if self.settings.regime.asynchronous else out_s
            self._next_s |= {live.request.id: token_s for live in plan.cohort.members}
        self._scheduled_s, self._read_prompts = self.now, bool(plan.chunks)

    def _admissible_s(self, request: str) -> float:
        """When a request that has not run yet could have.

        One that waited when the scheduler was last asked was left out for want of budget if that step read prompts; if
        not, for want of a seat or of KV blocks, and it could not have run before now.
        """
        sent_s = self.lives[request].sent_s
        if sent_s > self._scheduled_s or self._read_prompts:
            return max(sent_s, self._scheduled_s)
        return self.now

    def dispatch_empty(self) -> None:
        """As the engine's."""
        super().dispatch_empty()
        self._core.append(CoreSlice(CoreActivity.EMPTY, self.now, self.now, self.scheduler.step))
        self._after_empty = True
        self._scheduled_s, self._read_prompts = self.now, False

    def take_oldest(self) -> None:
        """As the engine's."""
        before_s = self.now
        full = len(self.queue) == self.settings.slots
        oldest = self.queue[0][1]
        super().take_oldest()
        if oldest is not None and self.now > before_s:
            activity = CoreActivity.BLOCKED if full else CoreActivity.DRAIN
            self._core.append(CoreSlice(activity, before_s, self.now, oldest.step))

    def timeline(self) -> Timeline:
        """What was noted so far."""
        return Timeline(self.settings.stages, self.makespan, tuple(self._batches), tuple(self._core))
