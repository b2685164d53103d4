"""Costs of one partition: what the simulator asks at every step, tens of microseconds the first time, then remembered.

Decision: a stage's time is `max(host, GPU)`: the host launches kernels of all its layers in order, so the sums compete,
not the layers one by one. A hand-off is one message per rank, each rank its 1/tp slice over its own NIC (vLLM 0.32
`distributed/parallel_state.py` isend_tensor_dict), followed by an all-gather inside the receiving TP group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from partitune.costs.cost_model import Batch
from partitune.partition import Partition

if TYPE_CHECKING:  # the model makes its stages; the import is for the type only
    from partitune.costs.roofline import RooflineCosts

_REMEMBERED = 100_000  # batches and token counts kept; both dictionaries are emptied when full


class StageSeconds(NamedTuple):
    """Seconds of computation of one stage by what they rest on; their sum is its time."""

    measured: float  # kernels measured at this shape on this GPU
    fitted: float  # the fitted roofline, and assumptions
    host: float  # waiting for the host to launch kernels

    def shares(self) -> dict[str, float]:
        """Share of each in the stage's time."""
        whole = sum(self)
        return {name: seconds / whole for name, seconds in self._asdict().items()}


class BoundStages:
    """`StageCosts` of one partition."""

    __slots__ = ("_compute", "_counts", "_links", "_model", "_slice", "_transfer", "_vectors", "partition")

    def __init__(self, model: RooflineCosts, partition: Sequence[int]) -> None:
        self.partition = Partition(partition)
        self._model = model
        ranges = self.partition.ranges
        self._counts = [model.counts(stage, first, end) for stage, (first, end) in enumerate(ranges)]
        self._links = model.placement.links
        #: bytes of the whole activation per token and boundary
        self._vectors = [model.architecture.handoff_bytes(first, 1) for first, _ in ranges[1:]]
        self._compute: dict[Batch, tuple[float, ...]] = {}
        self._transfer: dict[int, tuple[float, ...]] = {}

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.partition)

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
        per_gpu = self._model.blocks(batch)
        seconds = []
        for stage, counts in enumerate(self._counts):
            blocks = per_gpu[counts.gpu]
            measured, fitted = 0.0, counts.norms * blocks.norm_s + counts.bank_reads * blocks.vector_s
            for found, owned in ((blocks.attention, counts.attention), (blocks.ffn, counts.ffn)):
                for block, count in owned:
                    measured += count * found[block].measured
                    fitted += count * found[block].fitted
            if stage in (0, self.stages - 1):
                edge = self._model.edge(stage, batch)
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
            tp = self._model.placement.tp * self._model.placement.layout.pcp
            known = self._transfer[tokens] = tuple(
                link.transfer_s(vectors * tokens / tp) + self._model.group(receiver).all_gather_s(vectors * tokens)
                if tokens
                else 0.0
                for receiver, (link, vectors) in enumerate(zip(self._links, self._vectors, strict=True), start=1)
            )
        return known
