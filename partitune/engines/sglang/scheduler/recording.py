"""Recorded SGLang schedules: does the simulator do what the engine's own loop and scheduler did?

Decision: as for vLLM, every slot's turn is compared, not the totals; and since SGLang's loop was recorded with its
hand-offs, ring and CPU times, those are part of a record. `benchmarks/record_sglang_schedules.py` writes the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveInt, TypeAdapter

from partitune.engines.recordings import (
    TOLERANCE_S,
    Agreement,
    HandoffEntry,
    LinearCosts,
    StageTimeEntry,
    StepEntry,
    Strict,
    check_stages,
    read_records,
    step_difference,
    total_difference,
)
from partitune.engines.sglang.scheduler.chunks import ChunkLaw
from partitune.engines.sglang.scheduler.engine_core import simulate_sglang
from partitune.engines.sglang.scheduler.settings import SglangSettings
from partitune.errors import SpecError
from partitune.simulation.overheads import Overheads
from partitune.simulation.request import Request
from partitune.simulation.run import Run, Step


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded run."""

    name: str
    engine: str
    settings: SglangSettings
    costs: LinearCosts
    overheads: Overheads
    requests: tuple[Request, ...]
    steps: tuple[Step, ...]  # one per turn of a slot, up to the last with work
    makespan_s: float
    stage_busy_s: tuple[float, ...]
    first_token_s: Mapping[str, float]  # request id -> when stage 0 has processed its first token
    finish_s: Mapping[str, float]
    retractions: int

    def simulate(self) -> Run:
        """The same run, simulated."""
        return simulate_sglang(self.requests, self.settings, self.costs, self.overheads, record_steps=True)


def verify(file: Path) -> list[Agreement]:
    """Simulate every record of a file and compare.

    Raises:
        SpecError: the file is not a recording; names file and key.
    """
    return [compare(recording) for recording in read(file)]


def compare(recording: Recording) -> Agreement:
    """Simulate one record and look for the first difference."""
    run = recording.simulate()
    slots = recording.settings.slots
    return Agreement(
        f"{recording.name} ({recording.engine})",
        step_difference(recording.steps, run, lambda turn: f"turn {turn} (slot {turn % slots})", "turns")
        or _request_difference(recording, run)
        or _retraction_difference(recording, run)
        or total_difference(recording.makespan_s, recording.stage_busy_s, run),
    )


def _request_difference(recording: Recording, run: Run) -> str | None:
    for times in run.requests:
        for key, was, now in (
            ("first token", recording.first_token_s[times.id], times.first_token_s),
            ("finish", recording.finish_s[times.id], times.finish_s),
        ):
            if abs(was - now) > TOLERANCE_S:
                return f"request {times.id}: {key} recorded {was}, simulated {now}"
    return None


def _retraction_difference(recording: Recording, run: Run) -> str | None:
    if recording.retractions == run.preemptions:
        return None
    return f"recorded {recording.retractions} retractions, simulated {run.preemptions}"


def read(path: Path) -> list[Recording]:
    """The records of a file.

    Raises:
        SpecError: unreadable, not JSON, or a key missing, unknown or of the wrong kind; names file, record and key.
    """
    return read_records(path, _FILE, _Record.recording)


class _Request(Strict):
    id: str
    arrival: float = Field(ge=0)
    prompt_tokens: PositiveInt
    output_tokens: PositiveInt


class _Record(Strict):
    """One entry of the file, as it is spelled there; settings have SGLang's names."""

    name: str
    desc: str
    engine: str
    pp: PositiveInt
    async_batch_depth: int = Field(ge=0)
    max_running_requests: PositiveInt
    pp_max_micro_batch_size: PositiveInt | None
    chunked_prefill_size: PositiveInt | None
    max_prefill_tokens: PositiveInt
    prefill_max_requests: PositiveInt | None
    prefill_decode_interval: PositiveInt | None
    enable_mixed_chunk: bool
    dynamic_chunking: Annotated[list[float], Field(min_length=2, max_length=2)] | None  # a, b of the fit
    schedule_conservativeness: float
    page_size: PositiveInt
    num_tokens: PositiveInt
    max_model_len: PositiveInt
    radix_cache: bool
    ignore_eos: bool
    comm_overlap: bool
    skip_pure_chunked_output: bool
    ring_s: float
    d2h_s: float
    sample_s: float
    engine_step_s: float
    empty_step_s: float
    stage_time: StageTimeEntry
    handoff: HandoffEntry
    requests: list[_Request] = Field(min_length=1)
    steps: list[StepEntry]
    makespan: float
    stage_busy: list[float]
    first_token: dict[str, float]
    finish: dict[str, float]
    retractions: int

    def recording(self) -> Recording:
        """The record as the simulator understands it."""
        check_stages(self.stage_time, self.stage_busy, self.pp)
        ids = {request.id for request in self.requests}
        for key, times in (("first_token", self.first_token), ("finish", self.finish)):
            if times.keys() != ids:
                raise SpecError(f"{key}: must name every request once")
        return Recording(
            name=self.name,
            engine=self.engine,
            settings=self._settings(),
            costs=self.stage_time.costs(self.handoff),
            overheads=Overheads(
                engine_step_s=self.engine_step_s,
                empty_step_s=self.empty_step_s,
                sample_s=self.sample_s,
                broadcast_s=self.ring_s,
                d2h_s=self.d2h_s,
            ),
            requests=tuple(Request(r.id, r.arrival, r.prompt_tokens, r.output_tokens) for r in self.requests),
            steps=tuple(step.step() for step in self.steps),
            makespan_s=self.makespan,
            stage_busy_s=tuple(self.stage_busy),
            first_token_s=self.first_token,
            finish_s=self.finish,
            retractions=self.retractions,
        )

    def _settings(self) -> SglangSettings:
        fit = self.dynamic_chunking
        return SglangSettings(
            stages=self.pp,
            pp_async_batch_depth=self.async_batch_depth,
            dynamic_chunks=None if fit is None else ChunkLaw(fit[0], fit[1]),
            prefill_decode_interval=self.prefill_decode_interval or 0,
            **self.model_dump(include=_SAME),
        )


#: Settings that are spelled alike in a record.
_SAME = {setting.name for setting in fields(SglangSettings)} & set(_Record.model_fields) - {"prefill_decode_interval"}
_FILE = TypeAdapter(Annotated[list[_Record], Field(min_length=1)])
