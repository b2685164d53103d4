"""The small times that a simulated run is given beside the work of its stages, and what it leaves behind.

Decision: everything the per-stage table, the metrics and the comparison with a recording need, and nothing that has to
be recomputed per step; the step list is optional because it outweighs all the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partitune.costs.cost_model import Batch
from partitune.simulation.request import Request
from partitune.simulation.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds beside the stages' own work, one value that every engine's scheduler takes.

    All zero is the engine of the recorded schedules, which took no time: the code that predicts a server replays them.
    """

    engine_step_s: float = 0.0  # engine core: schedule, serialise, dispatch and update of one non-empty step
    empty_step_s: float = 0.0  # engine core: after a step in which nothing was scheduled
    sample_s: float = 0.0  # last stage: sampler beyond what the stage costs hold
    broadcast_s: float = 0.0  # sampled tokens from the last stage to the others (async-v1, async-v2, sync-v2)
    d2h_s: float = 0.0  # sampled tokens from the last stage's GPU to the engine core
    engine_request_s: float = 0.0  # engine core: as engine_step_s, for every request in the step

    def engine_s(self, requests: int) -> float:
        """Seconds of the engine core for a step that holds `requests` requests."""
        return self.engine_step_s + self.engine_request_s * requests


@dataclass(frozen=True, slots=True)
class Step:
    """One scheduler step. An empty step (no tokens) starts nowhere and ends when it is dispatched."""

    dispatch_s: float
    start_s: float | None  # on stage 0
    end_s: float  # on the last stage
    tokens: Mapping[str, int]  # request id -> tokens


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """What the client of one request sees, in seconds since the run began."""

    id: str
    prompt_tokens: int
    output_tokens: int
    sent_s: float  # after waiting for a free slot of the closed loop
    first_token_s: float
    finish_s: float


def client_view(
    token_s: Iterable[tuple[Request, float, Sequence[float]]],
) -> tuple[tuple[RequestTimes, ...], NDArray[np.float64]]:
    """What the clients see, and every gap between two tokens, from (request, when it was sent, its tokens' times)."""
    times, gaps = [], [np.zeros(0)]
    for request, sent_s, tokens in token_s:
        sizes = request.prompt_tokens, request.output_tokens
        times.append(RequestTimes(request.id, *sizes, sent_s, tokens[0], tokens[-1]))
        gaps.append(np.diff(tokens))
    return tuple(times), np.concatenate(gaps)


@dataclass(frozen=True, slots=True)
class Run:
    """What one simulated run took, in seconds of virtual time and in counts."""

    requests: tuple[RequestTimes, ...]  # in the order given
    inter_token_s: NDArray[np.float64]  # every gap between two tokens of one request, unordered
    makespan_s: float  # until the last stage ends its last batch
    compute_s: tuple[float, ...]  # per stage
    transfer_s: tuple[float, ...]  # per stage, receiving and sending
    batches: int  # non-empty steps
    empty_steps: int
    decode_steps: int  # steps with at least one decode row
    decode_tokens: int  # decode rows over all steps
    batch_tokens: int  # tokens over all steps
    preemptions: int
    in_pipeline_s: float  # sum over batches of start on stage 0 to end on the last stage
    steps: tuple[Step, ...] = ()  # only when asked for
    prefix_cache_queries: int = 0  # prompt tokens looked up, of requests admitted for the first time
    prefix_cache_hits: int = 0  # those of them that were cached
    timeline: Timeline | None = None  # only when asked for
    work: tuple[tuple[Batch, int], ...] = ()  # different batches, and how often each ran

    @property
    def wait_s(self) -> tuple[float, ...]:
        """Per stage: neither computing nor handing over."""
        busy = zip(self.compute_s, self.transfer_s, strict=True)
        return tuple(self.makespan_s - compute - transfer for compute, transfer in busy)

    @property
    def duration_s(self) -> float:
        """Until the last token reached its client."""
        return max((request.finish_s for request in self.requests), default=0.0)

    @property
    def mean_in_flight_batches(self) -> float:
        """Batches between stage 0 and the last stage, on average over the run; at most the number of stages."""
        return self.in_pipeline_s / self.makespan_s if self.makespan_s else 0.0
