"""Recordings of what a real engine did, in whatever engine: reading them, and the first place where we part.

Decision: a recording is read strictly (unknown shapes are errors, never skipped), every step is compared and not the
totals, and the first difference is reported with both values: so "the same as the engine" is something a user can check
on the version at hand.
"""

from __future__ import annotations

import gzip
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError, conlist

from partitune.costs.cost_model import Batch
from partitune.errors import OutOfMemory, SpecError
from partitune.simulation.request import Request
from partitune.simulation.run import Run

#: Recordings are rounded to six digits; sums of a thousand steps may differ by that much.
TOLERANCE_S = 1e-4
_GZIPPED = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Agreement:
    """One record against what we make of it."""

    where: str  # which record
    difference: str | None  # the first one; None: all agrees
    kind: str = ""  # what it is a record of
    steps: int = 0  # that were compared

    @property
    def agrees(self) -> bool:
        """True when nothing differs in this record."""
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
        """How many stages the times are for."""
        return len(self.scale)

    def compute_s(self, batch: Batch) -> Sequence[float]:
        """Seconds that every stage computes `batch`, whatever its tokens are."""
        work = self.base_s + self.per_token_s * batch.tokens
        return [scale * work for scale in self.scale]

    def transfer_s(self, tokens: int) -> Sequence[float]:
        """Seconds that `tokens` take over every boundary between two stages."""
        return [self.handoff_base_s + self.handoff_per_token_s * tokens] * (self.stages - 1)


def recording_text(path: Path) -> bytes:
    """The JSON of a recording, which may be gzipped, whatever the file is called.

    Raises:
        SpecError: unreadable, or gzipped and broken.
    """
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(_GZIPPED) else data
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SpecError(f"{path}: cannot unpack the recording: {error}") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot read the recording: {error.strerror}") from None


class Record(BaseModel, ABC):
    """One record of a file, as it is spelled there: what an engine did, and what we make of the same."""

    model_config = ConfigDict(strict=True, frozen=True)

    @abstractmethod
    def check(self) -> None:
        """Hold its values against one another, and against what can be simulated at all.

        Raises:
            SpecError: they contradict one another, or the engine refuses them.
        """

    @abstractmethod
    def agreement(self) -> Agreement:
        """What comes of doing the same here."""

    @classmethod
    def read(cls, path: Path) -> list[Self]:
        """Every record of a JSON file, gzipped or not, a list of at least one, each checked.

        Raises:
            SpecError: unreadable, not JSON, or a key missing, unknown or of the wrong kind; names file, record and key.
        """
        text = recording_text(path)
        try:
            records = TypeAdapter(conlist(cls, min_length=1)).validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(str(part) for part in first["loc"])
            raise SpecError(f"{path}: {key}: {first['msg']}" if key else f"{path}: {first['msg']}") from None
        for index, record in enumerate(records):
            try:
                record.check()
            except SpecError as error:
                raise SpecError(f"{path}: {index}: {error}") from None
        return records

    @classmethod
    def verify(cls, path: Path) -> list[Agreement]:
        """One agreement for every record of a file. Raises SpecError as `read`."""
        return [record.agreement() for record in cls.read(path)]


class Strict(BaseModel):
    """One entry of a file, as it is spelled there."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class RequestEntry(Strict):
    """One request, as every engine has it."""

    id: str
    arrival_s: float = Field(alias="arrival", ge=0)
    prompt_tokens: PositiveInt
    output_tokens: PositiveInt

    def request(self) -> Request:
        """The request as the simulator understands it."""
        return Request(**dict(self))


class StepEntry(Strict):
    """One step, or one turn of a slot: what `Step` holds."""

    dispatch_s: float = Field(alias="dispatch")
    start_s: float | None = Field(alias="start")
    end_s: float = Field(alias="end")
    tokens: dict[str, PositiveInt]


class HandoffEntry(Strict):
    """Seconds of a hand-off by tokens."""

    base: float = Field(ge=0)
    per_token: float = Field(ge=0)


class StageTimeEntry(HandoffEntry):
    """Seconds of a stage by tokens."""

    scale: list[float] = Field(min_length=1)


class Schedule(Record, extra="forbid"):
    """One recorded run: what the records of every engine have. An engine's own adds its settings."""

    name: str
    desc: str
    engine: str  # name and version of what was recorded
    pp: PositiveInt
    stage_time: StageTimeEntry
    requests: Sequence[RequestEntry] = Field(min_length=1)
    steps: list[StepEntry]
    makespan: float
    stage_busy: list[float]

    @abstractmethod
    def settings(self) -> object:
        """The scheduler that was recorded. Raises SpecError for what the engine refuses."""

    @abstractmethod
    def simulate(self) -> Run:
        """The same run, simulated, with its steps."""

    @abstractmethod
    def difference(self, run: Run) -> str | None:
        """The first place where `run` parts from what was recorded; None: nowhere."""

    def check(self) -> None:
        """Raises SpecError where a list of one entry a stage has another number of them, or `settings` are refused."""
        for key, values in (("stage_time.scale", self.stage_time.scale), ("stage_busy", self.stage_busy)):
            if len(values) != self.pp:
                raise SpecError(f"{key}: has {len(values)} entries, pp is {self.pp}")
        self.settings()

    def agreement(self) -> Agreement:
        """What comes of simulating the same run."""
        try:
            difference = self.difference(self.simulate())
        except OutOfMemory as error:
            difference = f"recorded {len(self.steps)} steps to the end, simulated: {error}"
        where = f"{self.name} ({self.engine})"
        return Agreement(where, difference, f"{self.engine}: {self.kind}", len(self.steps))

    @property
    def kind(self) -> str:
        """What the record is one of several of: the first word of its name."""
        return self.name.partition("-")[0]

    def costs(self, handoff: HandoffEntry | None = None) -> LinearCosts:
        """The stage times; without `handoff` the next stage has a batch at once."""
        stage, handoff = self.stage_time, handoff or HandoffEntry(base=0, per_token=0)
        return LinearCosts(tuple(stage.scale), stage.base, stage.per_token, handoff.base, handoff.per_token)

    def alike(self, settings: type[Any]) -> dict[str, Any]:
        """The values of those fields of `settings` that the record spells alike."""
        names = [field.name for field in fields(settings) if field.name in type(self).model_fields]
        return {name: getattr(self, name) for name in names}

    def step_difference(
        self, run: Run, place: Callable[[int], str] = "step {}".format, noun: str = "steps"
    ) -> str | None:
        """The first step that was simulated at another time or with other tokens than recorded; None: all agree.

        `place` names a step by its number, `noun` what the engine calls several.
        """
        for number, (recorded, simulated) in enumerate(zip(self.steps, run.steps, strict=False)):
            for key in ("dispatch_s", "start_s", "end_s"):
                was, now = getattr(recorded, key), getattr(simulated, key)
                if (was is None) != (now is None) or (was is not None and abs(was - now) > TOLERANCE_S):
                    return f"{place(number)}: {key} recorded {was}, simulated {now}"
            if recorded.tokens != simulated.tokens:
                return f"{place(number)}: tokens recorded {recorded.tokens}, simulated {dict(simulated.tokens)}"
        if len(self.steps) != len(run.steps):
            return f"recorded {len(self.steps)} {noun}, simulated {len(run.steps)}"
        return None

    def total_difference(self, run: Run) -> str | None:
        """Makespan, or the first stage's busy time, that differs; None: all agree."""
        if abs(self.makespan - run.makespan_s) > TOLERANCE_S:
            return f"makespan recorded {self.makespan}, simulated {run.makespan_s}"
        for stage, (was, now) in enumerate(zip(self.stage_busy, run.compute_s, strict=True)):
            if abs(was - now) > TOLERANCE_S:
                return f"stage {stage}: busy recorded {was}, simulated {now}"
        return None
