"""Hold the simulator and the KV planning against recordings of the real engine, and say where they part.

Decision: a number of agreeing records is worth nothing without the first disagreement in full, so both are printed, and
any disagreement is exit code 1. A file of schedules is read as those of the engine that its first record names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, TypeAdapter, ValidationError

from partitune.engines.engine import Engine
from partitune.engines.recordings import Agreement, recording_text
from partitune.engines.registry import ENGINES
from partitune.errors import SpecError


@dataclass(frozen=True, slots=True)
class Kind:
    """Records of one engine and kind."""

    name: str
    records: int
    agreeing: int
    steps: int  # that were compared


@dataclass(frozen=True, slots=True)
class Verified:
    """One file of recordings, checked."""

    file: str
    records: int
    agreeing: int
    first_difference: str  # empty when all agree
    kinds: tuple[Kind, ...] = ()

    @property
    def agrees(self) -> bool:
        """True when every record agrees."""
        return self.agreeing == self.records

    @property
    def text(self) -> str:
        """One line, and the first disagreement below it."""
        line = f"{self.file}: {self.agreeing} of {self.records} agree"
        return line if self.agrees else f"{line}\n  first disagreement: {self.first_difference}"


def verify_schedules(files: Sequence[str]) -> list[Verified]:
    """Simulate every recorded schedule. Raises SpecError for a file that is not a recording."""
    return [_verify(file, "schedules") for file in files]


def verify_kv(files: Sequence[str]) -> list[Verified]:
    """Plan the KV cache of every record. Raises SpecError for a file that is not a recording."""
    return [_verify(file, "KV caches") for file in files]


def _verify(file: str, recorded: str) -> Verified:
    recordings = _recorded_engine(Path(file)).recordings
    if recorded not in recordings:
        raise SpecError(f"{file}: no {recorded} of this engine were recorded")
    agreements = recordings[recorded].verify(Path(file))
    differing = [agreement for agreement in agreements if not agreement.agrees]
    first = f"{differing[0].where}: {differing[0].difference}" if differing else ""
    return Verified(file, len(agreements), len(agreements) - len(differing), first, _kinds(agreements))


def _kinds(agreements: Sequence[Agreement]) -> tuple[Kind, ...]:
    kinds = []
    for name in dict.fromkeys(agreement.kind for agreement in agreements):
        those = [agreement for agreement in agreements if agreement.kind == name]
        kinds.append(Kind(name, len(those), sum(each.agrees for each in those), sum(each.steps for each in those)))
    return tuple(kinds)


def by_kind(files: Sequence[Verified]) -> list[Kind]:
    """The records of several files by engine and kind, ordered by name, and all of them last."""
    sums: dict[str, Kind] = {}
    for kind in sorted((kind for file in files for kind in file.kinds), key=lambda each: each.name):
        for name in (kind.name, "all"):
            so_far = sums.get(name, Kind(name, 0, 0, 0))
            sums[name] = Kind(
                name, so_far.records + kind.records, so_far.agreeing + kind.agreeing, so_far.steps + kind.steps
            )
    total = sums.pop("all")
    return [*sums.values(), total]


class _Record(BaseModel):
    """What tells the recordings apart."""

    engine: str


_RECORDS = TypeAdapter(list[_Record])


def _recorded_engine(path: Path) -> Engine:
    """The engine that the first record names; where none does, the first one known, which says what is wrong."""
    try:
        recorded = _RECORDS.validate_json(recording_text(path))[0].engine
    except (SpecError, ValidationError, IndexError):
        recorded = ""
    known = list(ENGINES.values())
    return next((engine for engine in known if recorded.startswith(engine.name)), known[0])
