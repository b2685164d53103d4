"""Recorded schedules: does the simulator do what the engine's own scheduler did?

Decision: a recording is checked step by step, not by its totals, because two wrong schedules can end at the same time.
The file is a JSON list; each record holds the settings, the requests, the stage time
`scale[stage] * (base + per_token * tokens)` it was recorded under, and every step the real scheduler made. Hand-off,
sampling and engine time are zero in a recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, TypeAdapter

from partitune.engines.recordings import (
    Agreement,
    LinearCosts,
    StageTimeEntry,
    StepEntry,
    Strict,
    check_stages,
    read_records,
    step_difference,
    total_difference,
)
from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.engine_core import simulate
from partitune.engines.vllm.scheduler.settings import SchedulerSettings, SchedulingPolicy
from partitune.simulation.overheads import Overheads
from partitune.simulation.request import Request, SharedPrefix
from partitune.simulation.run import Run, Step

#: Counts of a run that a recording may hold.
_COUNTS = ("prefix_cache_queries", "prefix_cache_hits", "preemptions")


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded run."""

    name: str
    engine: str  # name and version of what was recorded
    settings: SchedulerSettings
    costs: LinearCosts
    requests: tuple[Request, ...]
    steps: tuple[Step, ...]
    makespan_s: float
    stage_busy_s: tuple[float, ...]
    counts: Mapping[str, int]  # those of `_COUNTS` that were recorded


def verify(file: Path) -> list[Agreement]:
    """Simulate every record of a file and compare.

    Raises:
        SpecError: the file is not a recording; names file and key.
    """
    return [compare(recording) for recording in read(file)]


def compare(recording: Recording) -> Agreement:
    """Simulate one record and look for the first difference."""
    run = simulate(recording.requests, recording.settings, recording.costs, Overheads(), record_steps=True)
    return Agreement(f"{recording.name} ({recording.engine})", _difference(recording, run))


def _difference(recording: Recording, run: Run) -> str | None:
    counts = (
        f"{key} recorded {count}, simulated {getattr(run, key)}"
        for key, count in recording.counts.items()
        if getattr(run, key) != count
    )
    return (
        step_difference(recording.steps, run)
        or total_difference(recording.makespan_s, recording.stage_busy_s, run)
        or next(counts, None)
    )


def read(path: Path) -> list[Recording]:
    """The records of a file.

    Raises:
        SpecError: unreadable, not JSON, or a key missing, unknown or of the wrong kind; names file, record and key.
    """
    return read_records(path, _FILE, _Record.recording)


class _Prefix(Strict):
    group: str
    tokens: int = Field(ge=0)


class _Request(Strict):
    id: str
    arrival: float = Field(ge=0)
    prompt_tokens: PositiveInt
    output_tokens: PositiveInt
    stops_early: bool = False
    priority: int = 0
    prefix: _Prefix | None = None

    def request(self) -> Request:
        """The request as the simulator understands it."""
        prefix = None if self.prefix is None else SharedPrefix(self.prefix.group, self.prefix.tokens)
        return Request(
            self.id, self.arrival, self.prompt_tokens, self.output_tokens, self.stops_early, self.priority, prefix
        )


class _Record(Strict):
    """One entry of the file, as it is spelled there."""

    name: str
    desc: str
    engine: str
    regime: Regime
    async_scheduling: bool
    pp: PositiveInt
    queue_slots: PositiveInt
    max_num_batched_tokens: PositiveInt
    max_num_seqs: PositiveInt
    block_size: PositiveInt
    num_blocks: PositiveInt
    long_prefill_token_threshold: int = Field(ge=0)
    max_model_len: PositiveInt
    enable_prefix_caching: bool = False
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    prefill_schedule_interval: PositiveInt = 1
    watermark: float = Field(default=0.0, ge=0, lt=1)
    stage_time: StageTimeEntry
    requests: list[_Request] = Field(min_length=1)
    steps: list[StepEntry]
    makespan: float
    stage_busy: list[float]
    prefix_cache_queries: int | None = None
    prefix_cache_hits: int | None = None
    preemptions: int | None = None

    def recording(self) -> Recording:
        """The record as the simulator understands it."""
        check_stages(self.stage_time, self.stage_busy, self.pp)
        settings = SchedulerSettings(
            regime=self.regime,
            stages=self.pp,
            scheduling_policy=SchedulingPolicy(self.scheduling_policy),
            **self.model_dump(include=_SAME),
        )
        return Recording(
            name=self.name,
            engine=self.engine,
            settings=settings,
            costs=self.stage_time.costs(),
            requests=tuple(request.request() for request in self.requests),
            steps=tuple(step.step() for step in self.steps),
            makespan_s=self.makespan,
            stage_busy_s=tuple(self.stage_busy),
            counts={key: count for key in _COUNTS if (count := getattr(self, key)) is not None},
        )


#: Settings that are spelled alike in a record.
_SAME = {setting.name for setting in fields(SchedulerSettings)} & set(_Record.model_fields) - {
    "regime",
    "scheduling_policy",
}
_FILE = TypeAdapter(Annotated[list[_Record], Field(min_length=1)])
