"""Recorded schedules: does the simulator do what the engine's own scheduler did?

Decision: a recording is checked step by step, not by its totals, because two wrong schedules can end at the same time.
The file is a JSON list; each record holds the settings, the requests, the stage time
`scale[stage] * (base + per_token * tokens)` it was recorded under, and every step the real scheduler made. Hand-off,
sampling and engine time are zero in a recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field, PositiveInt

from partitune.engines.recordings import RequestEntry, Schedule, Strict
from partitune.engines.versions import Version, parse_version
from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.engine_core import simulate
from partitune.engines.vllm.scheduler.settings import SchedulerSettings, SchedulingPolicy, release_rules
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


class _Extension(Strict):
    """What the engine was configured with beyond the settings of every record."""

    group: str = ""  # the kind of the scenario, for people
    full_groups: PositiveInt = 1
    windows: list[PositiveInt] = Field(default_factory=list)
    mamba_groups: int = Field(default=0, ge=0)
    align_chunks: bool = False
    internal_checkpoints: bool = False
    max_num_active_seqs: PositiveInt | None = None
    max_num_scheduled_tokens: PositiveInt | None = None
    adaptive: bool = False
    retention: int | None = Field(default=0, ge=0)
    enable_chunked_prefill: bool = True
    reserve_full_isl: bool = True
    data_parallel_size: PositiveInt = 1
    dp_throttle: PositiveInt = 1  # the cadence of the engine core, where data ranks share one
    answers_shared: bool = False

    def settings(self) -> dict[str, Any]:
        """The same, as `SchedulerSettings` calls it."""
        return {
            "full_groups": self.full_groups,
            "windows": tuple(self.windows),
            "state_groups": self.mamba_groups,
            "align_chunks": self.align_chunks,
            "state_export_alignment": _EXPORT_ALIGNMENT if self.internal_checkpoints else None,
            "max_num_active_seqs": self.max_num_active_seqs,
            "max_num_scheduled_tokens": self.max_num_scheduled_tokens,
            "long_prefill_token_threshold_adaptive": self.adaptive,
            "prefix_cache_retention_interval": self.retention,
            "enable_chunked_prefill": self.enable_chunked_prefill,
            "reserve_full_isl": self.reserve_full_isl,
        }


#: What prompts are cut at in a recording with states that are exported on the way.
_EXPORT_ALIGNMENT = 16


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
    ext: _Extension = _Extension()

    @property
    def kind(self) -> str:
        """As the file says, or as the base."""
        return self.ext.group or super().kind

    @property
    def version(self) -> Version:
        """Of the engine. Raises SpecError where it is not named with one."""
        return parse_version(self.engine.rpartition(" ")[2])

    def settings(self) -> SchedulerSettings:
        """The scheduler that was recorded. Raises SpecError for what the engine refuses."""
        throttled = self.ext.dp_throttle > 1
        rules = release_rules(self.version, shares_core=throttled)
        alike = self.alike(SchedulerSettings)
        if throttled:
            alike["prefill_schedule_interval"] = self.ext.dp_throttle
        return SchedulerSettings(stages=self.pp, **alike | rules | self.ext.settings())

    def simulate(self, *, record_steps: bool = True) -> Run:
        """The same run, simulated; without its steps the simulator skips rounds."""
        requests = [entry.request() for entry in self.requests]
        if self.ext.answers_shared:
            requests = _conversations(requests)
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


def _conversations(requests: Sequence[Request]) -> list[Request]:
    """Requests of a group, each prompt longer than the one before, as what they were: the next holds the one before."""
    latest: dict[str, str] = {}
    continuing = {}
    for request in sorted(requests, key=lambda each: each.prompt_tokens):
        group = request.prefix[0].group
        continuing[request.id] = replace(request, prefix=(), continues=latest.get(group))
        latest[group] = request.id
    return [continuing[request.id] for request in requests]
