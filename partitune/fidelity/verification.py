"""Hold the simulator and the KV planning against recordings of the real engine, and say where they part.

Decision: a number of agreeing records is worth nothing without the first disagreement in full, so both are printed, and
any disagreement is exit code 1. A file of schedules is read as those of the engine that its first record names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, TypeAdapter, ValidationError

from partitune.engines.sglang.scheduler.recording import SglangAgreement, verify_sglang
from partitune.engines.vllm.kv_recording import compare_kv, read_kv_recording
from partitune.engines.vllm.scheduler.recording import Agreement, verify


@dataclass(frozen=True, slots=True)
class Verified:
    """One file of recordings, checked."""

    file: str
    records: int
    agreeing: int
    first_difference: str  # empty when all agree

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
    found = []
    for file in files:
        checked = _verify(Path(file))
        wrong = [one for one in checked if not one.agrees]
        first = f"{wrong[0].name} ({wrong[0].engine}): {wrong[0].difference}" if wrong else ""
        found.append(Verified(file, len(checked), len(checked) - len(wrong), first))
    return found


def verify_kv(files: Sequence[str]) -> list[Verified]:
    """Plan the KV cache of every record. Raises SpecError for a file that is not a recording."""
    found = []
    for file in files:
        agreement = compare_kv(read_kv_recording(Path(file)))
        found.append(Verified(file, agreement.records, agreement.agreeing, agreement.first_difference))
    return found


class _Record(BaseModel):
    """What tells the recordings apart."""

    engine: str


_NAMES = TypeAdapter(list[_Record])


def _verify(path: Path) -> Sequence[Agreement | SglangAgreement]:
    try:
        named = _NAMES.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        named = []  # whoever reads the file next says what is wrong with it
    return verify_sglang(path) if named and named[0].engine.startswith("sglang") else verify(path)
