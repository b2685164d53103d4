"""Costs of one partition: what the simulator asks at every step, tens of microseconds the first time, then remembered.

Decision: a stage's time is `max(host, GPU)`: the host launches kernels of all its layers in order, so the sums compete,
not the layers one by one. A hand-off is one message per rank, each rank its 1/tp slice over its own NIC (vLLM 0.32
`distributed/parallel_state.py` isend_tensor_dict), followed by an all-gather inside the receiving TP group. The model
hands in what it knows (what the stages hold, block times of a batch), and is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from partitune.costs.collectives import TensorParallelGroup
from partitune.costs.cost_model import Batch, Seconds, StageSeconds
from partitune.hardware.links import Link

_REMEMBERED = 100_000  # batches and token counts kept; both dictionaries are emptied when full


class StageCounts(NamedTuple):
    """What the layers of one stage hold."""

    gpu: int  # index among the distinct GPUs
    blocks: tuple[tuple[int, int], ...]  # (index among the blocks of a batch, how many)
    host_s: float


class HandOff(NamedTuple):
    """What crosses one boundary, and what receives it."""

    link: Link
    token_bytes: float  # of the whole activation
    ranks: int  # that send a slice each
    receiver: TensorParallelGroup

    def seconds(self, tokens: int) -> float:
        """Seconds for a step of `tokens` tokens."""
        if not tokens:
            return 0.0
        message = self.token_bytes * tokens
        return self.link.transfer_s(message / self.ranks) + self.receiver.all_gather_s(message)


class BoundStages:
    """`StageCosts` of one partition.

    Args:
        counts: what each stage holds.
        hand_offs: one a boundary.
        blocks: seconds of each distinct block under a batch, for each distinct GPU.
        edge: seconds outside the layers of a stage under a batch.
    """

    __slots__ = ("_blocks", "_compute", "_counts", "_edge", "_hand_offs", "_transfer")

    def __init__(
        self,
        counts: Sequence[StageCounts],
        hand_offs: Sequence[HandOff],
        blocks: Callable[[Batch], Sequence[Sequence[Seconds]]],
        edge: Callable[[int, Batch], Seconds],
    ) -> None:
        self._counts, self._hand_offs, self._blocks, self._edge = counts, hand_offs, blocks, edge
        self._compute: dict[Batch, tuple[float, ...]] = {}
        self._transfer: dict[int, tuple[float, ...]] = {}

    @property
    def stages(self) -> int:
        """How many stages the partition has."""
        return len(self._counts)

    def compute_s(self, batch: Batch) -> tuple[float, ...]:
        """Seconds of computation per stage, host floor, all-reduces, embedding, head and sampler included."""
        known = self._compute.get(batch)
        if known is None:
            if len(self._compute) >= _REMEMBERED:
                self._compute.clear()
            known = self._compute[batch] = tuple(map(sum, self.sources(batch)))
        return known

    def sources(self, batch: Batch) -> tuple[StageSeconds, ...]:
        """The same, per stage, by what it rests on."""
        if not batch.tokens:
            return (StageSeconds(0.0, 0.0, 0.0),) * self.stages
        per_gpu = self._blocks(batch)
        seconds = []
        for stage, counts in enumerate(self._counts):
            measured = fitted = 0.0
            for block, count in counts.blocks:
                seconds_of = per_gpu[counts.gpu][block]
                measured += count * seconds_of.measured
                fitted += count * seconds_of.fitted
            edge = self._edge(stage, batch)
            measured, fitted = measured + edge.measured, fitted + edge.fitted
            host = max(0.0, counts.host_s - measured - fitted) if batch.prefill_tokens else 0.0
            seconds.append(StageSeconds(measured, fitted, host))
        return tuple(seconds)

    def transfer_s(self, tokens: int) -> tuple[float, ...]:
        """Seconds of hand-off per boundary (stages - 1 values) for a step of `tokens` tokens."""
        known = self._transfer.get(tokens)
        if known is None:
            if len(self._transfer) >= _REMEMBERED:
                self._transfer.clear()
            known = self._transfer[tokens] = tuple(hand_off.seconds(tokens) for hand_off in self._hand_offs)
        return known
