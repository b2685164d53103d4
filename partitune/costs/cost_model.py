"""What a cost model answers, whatever it rests on.

Decision: costs are asked per layer, not per stage, because layers of one kind cost the same and a partition only says
how many of each a stage owns: one vector of layer seconds per (stage, batch) serves the simulator, the exact solver and
the per-stage table. Everything is seconds and bytes; every answer can say where it came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one scheduler step asks of every stage."""

    prefill_tokens: int = 0  # new prompt tokens, over all chunks
    prefill_pairs: float = 0.0  # sum over chunks of new * (past + (new + 1) / 2): query-key pairs
    decode_tokens: int = 0  # sequences that decode one token
    decode_context: int = 0  # sum of their contexts
    sampled: int = 0  # rows that pass head and sampler (finished prompts and decodes)
    padding: int = 0  # rows a CUDA graph adds to the decodes: every GEMM and hand-off has them, attention does not

    @property
    def tokens(self) -> int:
        """Rows that every layer computes."""
        return self.prefill_tokens + self.decode_tokens + self.padding


def prefill(tokens: int, past: int = 0, sequences: int = 1, *, last_chunk: bool = True) -> Batch:
    """A batch of `sequences` equal prompt chunks of `tokens` new tokens after `past` tokens."""
    pairs = sequences * tokens * (past + (tokens + 1) / 2)
    return Batch(prefill_tokens=sequences * tokens, prefill_pairs=pairs, sampled=sequences if last_chunk else 0)


def decode(sequences: int, context: int) -> Batch:
    """A batch of `sequences` decodes at equal `context`."""
    return Batch(decode_tokens=sequences, decode_context=sequences * context, sampled=sequences)


class Seconds(NamedTuple):
    """A time by what it rests on."""

    measured: float  # kernels measured at this shape on this GPU
    fitted: float  # the fitted roofline, and assumptions

    def plus(self, other: Seconds) -> Seconds:
        """Both, one after the other."""
        return Seconds(self.measured + other.measured, self.fitted + other.fitted)


class StageSeconds(NamedTuple):
    """Seconds of computation of one stage by what they rest on; their sum is its time."""

    measured: float  # kernels measured at this shape on this GPU
    fitted: float  # the fitted roofline, and assumptions
    host: float  # waiting for the host to launch kernels

    def shares(self) -> dict[str, float]:
        """Share of each in the stage's time."""
        whole = sum(self)
        return {name: seconds / whole for name, seconds in self._asdict().items()}


class StageCosts(Protocol):
    """Costs of one partition on one placement: what the simulator asks at every step."""

    @property
    def stages(self) -> int:
        """How many stages the partition has."""

    def compute_s(self, batch: Batch) -> Sequence[float]:
        """Seconds of computation per stage, host-launch floor, TP all-reduce, embedding, head included."""

    def transfer_s(self, tokens: int) -> Sequence[float]:
        """Seconds of hand-off per boundary (stages - 1 values) for a step of `tokens` tokens."""


class SourcedStageCosts(StageCosts, Protocol):
    """Costs of one partition that can say what they rest on."""

    def sources(self, batch: Batch) -> tuple[StageSeconds, ...]:
        """`compute_s` of every stage by what it rests on."""


class CostModel(Protocol):
    """Costs of one model on one placement, before any partition is chosen."""

    @property
    def source(self) -> str:
        """One line: what the times rest on (`roofline fitted to …`)."""

    @property
    def kernels(self) -> Mapping[str, str]:
        """Work (`experts`, `attention`, `all-reduce`) -> the kernels that its times are those of."""

    def layer_s(self, stage: int, batch: Batch) -> Floats:
        """GPU seconds of every layer if `stage` ran it: shape [layers]."""

    def host_layer_s(self, batch: Batch) -> Floats:
        """Host seconds of every layer, shape [layers]: a stage takes at least their sum. Zero inside a CUDA graph."""

    def edge_s(self, stage: int, batch: Batch) -> float:
        """Seconds that `stage` spends outside its layers: embedding on the first, norm, head, sampler on the last."""

    def stage_costs(self, partition: Sequence[int]) -> SourcedStageCosts:
        """Bind a partition (layers per stage, in order).

        Raises:
            SpecError: wrong number of stages or layers.
        """
