"""Recorded schedules: does the simulator do what the engine's own scheduler did?

Decision: a recording is checked step by step, not by its totals, because two wrong schedules can end at the same time.
The file is a JSON list; each record holds the settings, the requests, the stage time
`scale[stage] * (base + per_token * tokens)` it was recorded under, and every step the real scheduler made. Hand-off,
sampling and engine time are zero in a recording.
"""

from __future__ import annotations

from pydantic import Field, PositiveInt

from partitune.engines.recordings import RequestEntry, Schedule, Strict
from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.engine_core import simulate
from partitune.engines.vllm.scheduler.settings import SchedulerSettings, SchedulingPolicy
from partitune.simulation.request import Request, SharedPrefix
from partitune.simulation.run import Overheads, Run


class _Prefix(Strict):
    group: str
    tokens: int = Field(ge=0)


class _Request(RequestEntry):
    stops_early: bool = False
    priority: int = 0
    prefix: _Prefix | None = None

    def request(self) -> Request:
        """The request as the simulator understands it."""
        prefix = () if self.prefix is None else (SharedPrefix(self.prefix.group, self.prefix.tokens),)
        return Request(**dict(self) | {"prefix": prefix})


class Recording(Schedule):
    """One recorded run; settings have vLLM's names."""

    regime: Regime
    async_scheduling: bool
    queue_slots: PositiveInt
    max_num_batched_tokens: PositiveInt
    max_num_seqs: PositiveInt
    block_size: PositiveInt
    num_blocks: PositiveInt
    long_prefill_token_threshold: int = Field(ge=0)
    max_model_len: PositiveInt
    enable_prefix_caching: bool = False
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.FCFS
    prefill_schedule_interval: PositiveInt = 1
    watermark: float = Field(default=0.0, ge=0, lt=1)
    requests: list[_Request] = Field(min_length=1)
    prefix_cache_queries: int | None = None
    prefix_cache_hits: int | None = None
    preemptions: int | None = None

    def settings(self) -> SchedulerSettings:
        """The scheduler that was recorded. Raises SpecError for what the engine refuses."""
        return SchedulerSettings(stages=self.pp, **self.alike(SchedulerSettings))

    def simulate(self, *, record_steps: bool = True) -> Run:
        """The same run, simulated; without its steps the simulator skips rounds."""
        requests = [entry.request() for entry in self.requests]
        return simulate(requests, self.settings(), self.costs(), Overheads(), record_steps=record_steps)

    def difference(self, run: Run) -> str | None:
        """The first step, total or count that differs; None: all agree."""
        return self.step_difference(run) or self.total_difference(run) or self._count_difference(run)

    def _count_difference(self, run: Run) -> str | None:
        for key in ("prefix_cache_queries", "prefix_cache_hits", "preemptions"):
            recorded, simulated = getattr(self, key), getattr(run, key)
            if recorded is not None and recorded != simulated:
                return f"{key} recorded {recorded}, simulated {simulated}"
        return None
