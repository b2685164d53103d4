"""Recorded schedules: does the simulator do what the engine's own scheduler did?

Decision: a recording is checked step by step, not by its totals, because two wrong schedules can end at the same time.
The file is a JSON list; each record holds the settings, the requests, the stage time
`scale[stage] * (base + per_token * tokens)` it was recorded under, and every step the real scheduler made. Hand-off,
sampling and engine time are zero in a recording.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError

from partitune.costs.cost_model import Batch
from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.engine_core import simulate
from partitune.engines.vllm.scheduler.inputs import SchedulerSettings, SchedulingPolicy
from partitune.errors import SpecError
from partitune.simulation.overheads import Overheads
from partitune.simulation.request import Request, SharedPrefix
from partitune.simulation.run import Run, Step

#: Recordings are rounded to six digits; sums of a thousand steps may differ by that much.
TOLERANCE_S = 1e-4
Entry = TypeVar("Entry")
Made = TypeVar("Made")
#: Counts of a run that a recording may hold.
_COUNTS = ("prefix_cache_queries", "prefix_cache_hits", "preemptions")


@dataclass(frozen=True, slots=True)
class LinearCosts:
    """Stage times `scale[stage] * (base_s + per_token_s * tokens)`, hand-offs `base + per token` at every boundary."""

    scale: tuple[float, ...]
    base_s: float
    per_token_s: float
    handoff_base_s: float = 0.0
    handoff_per_token_s: float = 0.0

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.scale)

    def compute_s(self, batch: Batch) -> Sequence[float]:
        """Seconds per stage."""
        work = self.base_s + self.per_token_s * batch.tokens
        return [scale * work for scale in self.scale]

    def transfer_s(self, tokens: int) -> Sequence[float]:
        """Seconds per boundary."""
        return [self.handoff_base_s + self.handoff_per_token_s * tokens] * (self.stages - 1)


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


@dataclass(frozen=True, slots=True)
class Agreement:
    """One recording against the simulator."""

    name: str
    engine: str
    regime: Regime
    steps: int  # in the recording
    difference: str | None  # the first one; None: all steps, the makespan and the busy times agree

    @property
    def agrees(self) -> bool:
        """True when nothing differs."""
        return self.difference is None


def verify(path: Path) -> list[Agreement]:
    """Simulate every record of a file and compare.

    Raises:
        SpecError: the file is not a recording; names file and key.
    """
    return [compare(recording) for recording in read(path)]


def compare(recording: Recording) -> Agreement:
    """Simulate one record and look for the first difference."""
    run = simulate(recording.requests, recording.settings, recording.costs, Overheads(), record_steps=True)
    return Agreement(
        recording.name,
        recording.engine,
        recording.settings.regime,
        len(recording.steps),
        _difference(recording, run),
    )


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


def step_difference(
    steps: Sequence[Step], run: Run, place: Callable[[int], str] = "step {}".format, noun: str = "steps"
) -> str | None:
    """The first step that was simulated at another time or with other tokens than recorded; None: all agree.

    `place` names a step by its number, `noun` what the engine calls several.
    """
    for number, (recorded, simulated) in enumerate(zip(steps, run.steps, strict=False)):
        for key in ("dispatch_s", "start_s", "end_s"):
            was, now = getattr(recorded, key), getattr(simulated, key)
            if (was is None) != (now is None) or (was is not None and abs(was - now) > TOLERANCE_S):
                return f"{place(number)}: {key} recorded {was}, simulated {now}"
        if recorded.tokens != simulated.tokens:
            return f"{place(number)}: tokens recorded {dict(recorded.tokens)}, simulated {dict(simulated.tokens)}"
    if len(steps) != len(run.steps):
        return f"recorded {len(steps)} {noun}, simulated {len(run.steps)}"
    return None


def total_difference(makespan_s: float, stage_busy_s: Sequence[float], run: Run) -> str | None:
    """Makespan, or the first stage's busy time, that differs; None: all agree."""
    if abs(makespan_s - run.makespan_s) > TOLERANCE_S:
        return f"makespan recorded {makespan_s}, simulated {run.makespan_s}"
    for stage, (was, now) in enumerate(zip(stage_busy_s, run.compute_s, strict=True)):
        if abs(was - now) > TOLERANCE_S:
            return f"stage {stage}: busy recorded {was}, simulated {now}"
    return None


def read(path: Path) -> list[Recording]:
    """The records of a file.

    Raises:
        SpecError: unreadable, not JSON, or a key missing, unknown or of the wrong kind; names file, record and key.
    """
    return read_records(path, _FILE, _Record.recording)


def read_records(path: Path, file: TypeAdapter[list[Entry]], made: Callable[[Entry], Made]) -> list[Made]:
    """Every entry of a JSON file, checked by `file`, as `made` understands it. Raises SpecError as `read` does."""
    try:
        records = file.validate_json(path.read_bytes())
    except OSError as error:
        raise SpecError(f"{path}: cannot read the recording: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SpecError(f"{path}: {key}: {first['msg']}" if key else f"{path}: {first['msg']}") from None
    recordings = []
    for index, record in enumerate(records):
        try:
            recordings.append(made(record))
        except SpecError as error:
            raise SpecError(f"{path}: {index}: {error}") from None
    return recordings


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Prefix(_Strict):
    group: str
    tokens: int = Field(ge=0)


class _Request(_Strict):
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


class _Step(_Strict):
    dispatch: float
    start: float | None
    end: float
    tokens: dict[str, PositiveInt]


class _StageTime(_Strict):
    base: float = Field(ge=0)
    per_token: float = Field(ge=0)
    scale: list[float] = Field(min_length=1)


class _Record(_Strict):
    """One entry of the file, as it is spelled there."""

    name: str
    desc: str
    engine: str
    regime: Literal["R1", "R2", "R3", "R4"]
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
    stage_time: _StageTime
    requests: list[_Request] = Field(min_length=1)
    steps: list[_Step]
    makespan: float
    stage_busy: list[float]
    prefix_cache_queries: int | None = None
    prefix_cache_hits: int | None = None
    preemptions: int | None = None

    def recording(self) -> Recording:
        """The record as the simulator understands it."""
        for key, values in (("stage_time.scale", self.stage_time.scale), ("stage_busy", self.stage_busy)):
            if len(values) != self.pp:
                raise SpecError(f"{key}: has {len(values)} entries, pp is {self.pp}")
        settings = SchedulerSettings(
            regime=Regime(self.regime),
            stages=self.pp,
            queue_slots=self.queue_slots,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            max_model_len=self.max_model_len,
            enable_prefix_caching=self.enable_prefix_caching,
            scheduling_policy=SchedulingPolicy(self.scheduling_policy),
            prefill_schedule_interval=self.prefill_schedule_interval,
            watermark=self.watermark,
        )
        time = self.stage_time
        return Recording(
            name=self.name,
            engine=self.engine,
            settings=settings,
            costs=LinearCosts(tuple(time.scale), time.base, time.per_token),
            requests=tuple(request.request() for request in self.requests),
            steps=tuple(Step(step.dispatch, step.start, step.end, step.tokens) for step in self.steps),
            makespan_s=self.makespan,
            stage_busy_s=tuple(self.stage_busy),
            counts={key: count for key in _COUNTS if (count := getattr(self, key)) is not None},
        )


_FILE = TypeAdapter(Annotated[list[_Record], Field(min_length=1)])
