"""Recordings of what a real engine did, in whatever engine: reading them, and the first place where we part.

Decision: a recording is read strictly (unknown shapes are errors, never skipped), every step is compared and not the
totals, and the first difference is reported with both values: so "the same as the engine" is something a user can check
on the version at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError

from partitune.costs.cost_model import Batch
from partitune.errors import SpecError
from partitune.simulation.run import Run, Step

#: Recordings are rounded to six digits; sums of a thousand steps may differ by that much.
TOLERANCE_S = 1e-4
Entry = TypeVar("Entry")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Agreement:
    """One record against what we make of it."""

    where: str  # which record
    difference: str | None  # the first one; None: all agrees

    @property
    def agrees(self) -> bool:
        """True when nothing differs."""
        return self.difference is None


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


def read_records(path: Path, file: TypeAdapter[list[Entry]], understood: Callable[[Entry], Value]) -> list[Value]:
    """Every entry of a JSON file, checked by `file` and then understood.

    Raises:
        SpecError: unreadable, not JSON, or a key missing, unknown or of the wrong kind; names file, record and key.
    """
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
            recordings.append(understood(record))
        except SpecError as error:
            raise SpecError(f"{path}: {index}: {error}") from None
    return recordings


class Strict(BaseModel):
    """One entry of a file, as it is spelled there."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class StepEntry(Strict):
    """One step, or one turn of a slot."""

    dispatch: float
    start: float | None
    end: float
    tokens: dict[str, PositiveInt]

    def step(self) -> Step:
        """The step as the simulator records it."""
        return Step(self.dispatch, self.start, self.end, self.tokens)


class HandoffEntry(Strict):
    """Seconds of a hand-off by tokens."""

    base: float = Field(ge=0)
    per_token: float = Field(ge=0)


class StageTimeEntry(HandoffEntry):
    """Seconds of a stage by tokens."""

    scale: list[float] = Field(min_length=1)

    def costs(self, handoff: HandoffEntry | None = None) -> LinearCosts:
        """The stage times; without `handoff` the next stage has a batch at once."""
        handoff = handoff or HandoffEntry(base=0, per_token=0)
        return LinearCosts(tuple(self.scale), self.base, self.per_token, handoff.base, handoff.per_token)


def check_stages(stage_time: StageTimeEntry, stage_busy: Sequence[float], stages: int) -> None:
    """Raise SpecError where a list with one entry a stage has another number of them."""
    for key, values in (("stage_time.scale", stage_time.scale), ("stage_busy", stage_busy)):
        if len(values) != stages:
            raise SpecError(f"{key}: has {len(values)} entries, pp is {stages}")
