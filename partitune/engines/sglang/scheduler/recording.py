"""Recorded SGLang schedules: does the simulator do what the engine's own loop and scheduler did?

Decision: as for vLLM, every slot's turn is compared, not the totals; and since SGLang's loop was recorded with its
hand-offs, ring and CPU times, those are part of a record. `benchmarks/record_sglang_schedules.py` writes the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, PositiveInt

from partitune.engines.recordings import TOLERANCE_S, HandoffEntry, RequestEntry, Schedule, Strict
from partitune.engines.sglang.scheduler.chunks import ChunkLaw
from partitune.engines.sglang.scheduler.engine_core import simulate_sglang
from partitune.engines.sglang.scheduler.settings import SglangSettings
from partitune.engines.sglang.scheduler.unnamed_prefixes import with_prefixes
from partitune.errors import SpecError
from partitune.simulation.request import Request, SharedPrefix
from partitune.simulation.run import Overheads, Run


class PrefixEntry(Strict):
    """The first tokens of a prompt, the same for every request that names the group."""

    group: str
    tokens: PositiveInt


class TextEntry(RequestEntry):
    """One request, and with whom it shares its beginning."""

    prefix: Sequence[PrefixEntry] = ()
    continues: str | None = None

    def request(self) -> Request:
        """The request as the simulator understands it."""
        prefix = tuple(SharedPrefix(entry.group, entry.tokens) for entry in self.prefix)
        return Request(**dict(self) | {"prefix": prefix})


class Recording(Schedule):
    """One recorded run; settings have SGLang's names, and a step is a turn of a slot, up to the last with work."""

    requests: Sequence[TextEntry] = Field(min_length=1)
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
    schedule_policy: str = "fcfs"
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
    handoff: HandoffEntry
    first_token: dict[str, float]  # request id -> when stage 0 has processed its first token
    finish: dict[str, float]
    retractions: int

    def settings(self) -> SglangSettings:
        """The scheduler that was recorded. Raises SpecError for what the engine refuses."""
        same = self.alike(SglangSettings)
        same["prefill_decode_interval"] = self.prefill_decode_interval or 0
        law = None if self.dynamic_chunking is None else ChunkLaw(*self.dynamic_chunking)
        return SglangSettings(stages=self.pp, pp_async_batch_depth=self.async_batch_depth, dynamic_chunks=law, **same)

    def check(self) -> None:
        """Raises SpecError as of every record, and where the requests are others in one place than in another."""
        ids = {request.id for request in self.requests}
        for key, times in (("first_token", self.first_token), ("finish", self.finish)):
            if times.keys() != ids:
                raise SpecError(f"{key}: must name every request once")
        super().check()

    def simulate(self) -> Run:
        """The same run through our scheduler, with the recorded CPU times, ring and hand-offs."""
        overheads = Overheads(broadcast_s=self.ring_s, **self.alike(Overheads))
        requests = [entry.request() for entry in self.requests]
        if self.radix_cache and not any(request.prefix or request.continues for request in requests):
            requests = with_prefixes(requests, [step.tokens for step in self.steps])
        return simulate_sglang(requests, self.settings(), self.costs(self.handoff), overheads, record_steps=True)

    def difference(self, run: Run) -> str | None:
        """The first turn, request, count or total that differs; None: all agree."""
        slots = self.settings().slots
        return (
            self.step_difference(run, lambda turn: f"turn {turn} (slot {turn % slots})", "turns")
            or self._request_difference(run)
            or self.total_difference(run)
        )

    def _request_difference(self, run: Run) -> str | None:
        for times in run.requests:
            for key, was, now in (
                ("first token", self.first_token[times.id], times.first_token_s),
                ("finish", self.finish[times.id], times.finish_s),
            ):
                if abs(was - now) > TOLERANCE_S:
                    return f"request {times.id}: {key} recorded {was}, simulated {now}"
        if self.retractions != run.preemptions:
            return f"recorded {self.retractions} retractions, simulated {run.preemptions}"
        return None
