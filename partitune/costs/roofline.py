"""The default cost model: measured kernels where there are any, else a roofline fitted to such measurements.

Decision: layers of one kind cost the same on one GPU, so a batch costs a handful of block times (blocks.py), which are
spread over the layers. What a layer has besides its blocks is here: norms and residuals, the all-reduce after each
block under tensor parallelism, and on the ends of the pipeline embedding, head and sampler. The floor set by the host's
kernel launches is a property of a stage, not of a layer (a slow layer hides a fast one's launches): see stages.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from partitune.costs.blocks import (
    ELEMENTWISE_BANDWIDTH,
    ELEMENTWISE_FIXED_S,
    AttentionTime,
    FfnTime,
    Seconds,
    default_expert_kernel,
)
from partitune.costs.collectives import TensorParallelGroup
from partitune.costs.context_ranks import ContextRanks
from partitune.costs.cost_model import Batch, Floats
from partitune.costs.exchange import ExpertExchange
from partitune.costs.fitted import Origin, curve
from partitune.costs.measured.operations import Kernels, MeasuredEngine, kernels_on
from partitune.costs.measured.tables import PACKAGE, installed_release
from partitune.costs.stages import BlockSeconds, BoundStages, HandOff, StageCounts
from partitune.errors import SpecError
from partitune.hardware.gpus import Gpu
from partitune.hardware.placement import Placement
from partitune.models.architecture import Architecture, Attention, AttentionBlock, Ffn, FfnBlock

#: Vectors of hidden_size a fused residual-add and norm moves per token: reads two, writes two.
_VECTORS_PER_NORM = 4
#: Assumed: passes over the fp32 logits by temperature, softmax and the choice of a token, and their launches.
_SAMPLER_PASSES = 4
_SAMPLER_FIXED_S = 5e-5

#: Host seconds a layer while the step holds prompt tokens and so runs outside a full CUDA graph. Measured only for
#: Kimi-K3: 180 ms for 93 layers whatever the (short) prompt, SGLang TP8 on B300 (sglang PR 34299, 129 tokens).
_HOST_LAYER_KDA_S = 180e-3 / 93
#: Assumed for everything else, in the style of one eager all-reduce, which costs 20 us where the graph needs 5: a dozen
#: launches an attention block, some more for routed experts.
_HOST_ATTENTION_S = 100e-6
_HOST_DENSE_S = 50e-6
_HOST_MOE_S = 200e-6


class _GpuCosts:
    """All block times of one model on one kind of GPU."""

    def __init__(
        self,
        architecture: Architecture,
        gpu: Gpu,
        placement: Placement,
        attention: Sequence[AttentionBlock],
        ffn: Sequence[FfnBlock],
        expert_kernel: str,
        kernels: Kernels | None,
    ) -> None:
        hidden, layout, tp = architecture.hidden_size, placement.layout, placement.tp
        self.kernels = kernels
        self.group = TensorParallelGroup(gpu, tp, kernels, nccl=layout.all_reduce_backend == "nccl")
        self._context = ContextRanks(gpu, layout, attention)
        self._attention = [AttentionTime(block, hidden, gpu, layout, kernels) for block in attention]
        self._ffn = [FfnTime(block, hidden, gpu, layout, expert_kernel, kernels) for block in ffn]
        self._exchange = [
            ExpertExchange(
                placement, gpu, block.expert_width or hidden, architecture.dtype_bytes, block.experts_per_token
            )
            if block.kind is Ffn.MOE
            else None
            for block in ffn
        ]
        self._hidden_bytes = hidden * architecture.dtype_bytes
        self._vector_s = self._hidden_bytes / (ELEMENTWISE_BANDWIDTH * gpu.bandwidth_bytes_s)
        self._head, origin = curve("gemm/bf16", gpu)
        self._edges, self._tp, self._logits_s = architecture.edges, tp, 4.0 / gpu.bandwidth_bytes_s
        self._measured_head = kernels.gemm(-(-self._edges.vocab_size // tp), hidden, "bf16") if kernels else None
        self.origins: set[Origin] = {*self.group.origins, *(() if self._measured_head else (origin,))}
        self.origins.update(*(mixer.origins for mixer in self._attention), *(ffn.origins for ffn in self._ffn))

    def blocks(self, batch: Batch) -> BlockSeconds:
        """Seconds of every distinct block, its all-reduce or exchange of tokens included."""
        whole, batch = batch, self._context.share_of(batch)
        reduce_s = self._reduce(batch)
        vector_s = batch.tokens * self._vector_s
        gathered = self._context.gathering_s(whole)
        return BlockSeconds(
            tuple(
                _NOTHING if mixer.absent else _sum(_sum(mixer(batch), reduce_s), Seconds(0.0, extra_s))
                for mixer, extra_s in zip(self._attention, gathered, strict=True)
            ),
            tuple(
                _NOTHING if ffn.absent else _sum(ffn(batch), self._around(exchange, batch, reduce_s))
                for ffn, exchange in zip(self._ffn, self._exchange, strict=True)
            ),
            ELEMENTWISE_FIXED_S + _VECTORS_PER_NORM * vector_s,
            vector_s,
        )

    @staticmethod
    def _around(exchange: ExpertExchange | None, batch: Batch, reduce_s: Seconds) -> Seconds:
        """What comes after a feed-forward block: the all-reduce, or an exchange of tokens in its place or with it."""
        if exchange is None:
            return reduce_s
        moved = Seconds(0.0, exchange(batch.tokens))
        return _sum(moved, reduce_s) if exchange.all_reduces() else moved

    def _reduce(self, batch: Batch) -> Seconds:
        """One all-reduce of the hidden states of a batch."""
        graph = not batch.prefill_tokens
        seconds = self.group.all_reduce_s(batch.tokens * self._hidden_bytes, graph=graph)
        return Seconds(seconds, 0.0) if graph and self.group.measured_in_graph else Seconds(0.0, seconds)

    def embedding(self, batch: Batch) -> Seconds:
        """Look-up of the new tokens; under TP the vocabulary is cut, so one all-reduce."""
        if not batch.tokens:
            return _NOTHING
        return _sum(self._reduce(batch), Seconds(0.0, ELEMENTWISE_FIXED_S + batch.tokens * self._vector_s))

    def head(self, rows: int) -> Seconds:
        """LM head alone for `rows` sampled rows."""
        if not rows:
            return _NOTHING
        if self._measured_head:
            return Seconds(self._measured_head(rows), 0.0)
        weights = self._edges.head_bytes / self._tp
        return Seconds(0.0, self._head(weights, weights * rows))  # 16-bit weights: 2 FLOPs a parameter are 1 a byte

    def end(self, batch: Batch) -> Seconds:
        """Final norm, head, gathering of the logits and sampler."""
        if not batch.tokens:
            return _NOTHING
        fitted = ELEMENTWISE_FIXED_S + _VECTORS_PER_NORM * batch.tokens * self._vector_s
        if not batch.sampled:
            return Seconds(0.0, fitted)
        logits = batch.sampled * self._edges.vocab_size
        fitted += self.group.all_gather_s(2.0 * logits)
        fitted += _SAMPLER_FIXED_S + _SAMPLER_PASSES * logits * self._logits_s
        return _sum(self.head(batch.sampled), Seconds(0.0, fitted))


_NOTHING = Seconds(0.0, 0.0)


def _sum(first: Seconds, second: Seconds) -> Seconds:
    return Seconds(first.measured + second.measured, first.fitted + second.fitted)


class RooflineCosts:
    """Stage times of one model on one placement; a `CostModel`.

    Args:
        architecture: the model.
        placement: GPUs, links and nodes of the stages.
        expert_kernel: which routed-expert kernel the engine runs (`blocks.expert_kernels()`); default by dtype.
        measured_engine: the engine whose measured kernels are used where there are any; None: the roofline alone.

    Raises:
        SpecError: the expert kernel has no constants.
    """

    def __init__(
        self,
        architecture: Architecture,
        placement: Placement,
        *,
        expert_kernel: str | None = None,
        measured_engine: MeasuredEngine | None = None,
    ) -> None:
        self.architecture, self.placement = architecture, placement
        self.expert_kernel = expert_kernel or default_expert_kernel(architecture)
        attention = list(dict.fromkeys(layer.attention for layer in architecture.layers))
        ffn = list(dict.fromkeys(layer.ffn for layer in architecture.layers))
        gpus = list(dict.fromkeys(placement.gpus))
        arguments = (placement, attention, ffn, self.expert_kernel)
        self._measured_engine = measured_engine
        self._gpus = [
            _GpuCosts(architecture, gpu, *arguments, kernels_on(gpu, measured_engine) if measured_engine else None)
            for gpu in gpus
        ]
        self._gpu_of_stage = [gpus.index(gpu) for gpu in placement.gpus]
        self._attention_of_layer = np.array([attention.index(layer.attention) for layer in architecture.layers])
        self._ffn_of_layer = np.array([ffn.index(layer.ffn) for layer in architecture.layers])
        self._norms = np.array([_norms(layer.attention, layer.ffn) for layer in architecture.layers])
        self._bank_reads = np.array([_bank_reads(architecture, layer) for layer in range(len(architecture.layers))])
        self._host = np.array(_host_layer_s(architecture))
        #: per distinct GPU the batch asked for last: a planner asks for every stage in turn
        self._latest: list[tuple[Batch, Floats] | None] = [None] * len(gpus)

    @property
    def source(self) -> str:
        """One line: what the times rest on and what is extrapolated or assumed."""
        parts = []
        names = sorted({costs.kernels.name for costs in self._gpus if costs.kernels})
        if names:
            parts.append(f"kernels measured in {PACKAGE} {installed_release()} ({', '.join(names)})")
        elif self._measured_engine and installed_release() is None:
            parts.append(f"no measured kernels: {PACKAGE} is not installed (pip install 'partitune[silicon]')")
        parts.append("roofline fitted to kernel tables of aiconfigurator-core 0.12.0 (vLLM 0.24, SGLang 0.5.14)")
        origins = {origin for costs in self._gpus for origin in costs.origins}
        if names:
            parts[-1] = f"{'the rest' if origins else 'edges'}: {parts[-1]}"
        borrowed = sorted({f"{o.operation} from {o.system}" for o in origins if not o.measured})
        if borrowed:
            parts.append(f"extrapolated: {', '.join(borrowed)}")
        known = any(layer.attention.kind is Attention.KDA for layer in self.architecture.layers)
        parts.append(f"sampler assumed, host launches {'measured on Kimi-K3 (SGLang)' if known else 'assumed'}")
        return "; ".join(parts)

    def layer_s(self, stage: int, batch: Batch) -> Floats:
        """GPU seconds of every layer if `stage` ran it: shape [layers], read-only. Without the host floor."""
        gpu = self._gpu_of_stage[stage]
        latest = self._latest[gpu]
        if latest is None or latest[0] != batch:
            latest = self._latest[gpu] = (batch, self._layers_on(gpu, batch))
        return latest[1]

    def _layers_on(self, gpu: int, batch: Batch) -> Floats:
        blocks = self._gpus[gpu].blocks(batch)
        attention = np.array([sum(block) for block in blocks.attention])[self._attention_of_layer]
        ffn = np.array([sum(block) for block in blocks.ffn])[self._ffn_of_layer]
        norms = blocks.norm_s * self._norms + blocks.vector_s * self._bank_reads
        seconds = np.asarray(attention + ffn + (norms if batch.tokens else 0.0), dtype=np.float64)
        seconds.flags.writeable = False
        return seconds

    def host_layer_s(self, batch: Batch) -> Floats:
        """Host seconds of every layer, shape [layers]: 0 for a step of decodes only, which runs in a CUDA graph.

        A stage takes at least the sum over its layers.
        """
        return self._host.copy() if batch.prefill_tokens else np.zeros_like(self._host)

    def edge_s(self, stage: int, batch: Batch) -> float:
        """Seconds outside the layers: embedding on the first stage, norm + head + sampler on the last."""
        return sum(self.edge(stage, batch))

    def edge(self, stage: int, batch: Batch) -> Seconds:
        """The same by what it rests on."""
        costs = self._gpus[self._gpu_of_stage[stage]]
        first = costs.embedding(batch) if stage == 0 else _NOTHING
        return _sum(first, costs.end(batch) if stage == self.placement.stages - 1 else _NOTHING)

    def head_s(self, rows: int) -> float:
        """Seconds of the LM head alone on the last stage."""
        return sum(self._gpus[self._gpu_of_stage[-1]].head(rows))

    def stage_costs(self, partition: Sequence[int]) -> BoundStages:
        """Bind a partition (layers per stage, in order).

        Raises:
            SpecError: wrong number of stages or layers.
        """
        if len(partition) != self.placement.stages or sum(partition) != len(self.architecture.layers):
            raise SpecError(
                f"partition: {','.join(map(str, partition))} has {len(partition)} stages and {sum(partition)} layers; "
                f"expected {self.placement.stages} and {len(self.architecture.layers)}"
            )
        starts = [sum(partition[:stage]) for stage in range(len(partition) + 1)]
        counts = [self._counts(stage, *span) for stage, span in enumerate(pairwise(starts))]
        ranks = self.placement.tp * self.placement.layout.pcp
        hand_offs = [
            HandOff(link, self.architecture.handoff_bytes(start, 1), ranks, self.group(stage))
            for stage, (link, start) in enumerate(zip(self.placement.links, starts[1:-1], strict=True), start=1)
        ]
        return BoundStages(counts, hand_offs, self._blocks, self.edge)

    def _blocks(self, batch: Batch) -> list[BlockSeconds]:
        return [costs.blocks(batch) for costs in self._gpus]

    def group(self, stage: int) -> TensorParallelGroup:
        """The tensor ranks of `stage`, as what all-reduces and all-gathers take among them."""
        return self._gpus[self._gpu_of_stage[stage]].group

    def _counts(self, stage: int, start: int, stop: int) -> StageCounts:
        """What the layers `start` ... `stop` - 1 hold when `stage` runs them."""
        span = slice(start, stop)
        return StageCounts(
            self._gpu_of_stage[stage],
            tuple(Counter(self._attention_of_layer[span].tolist()).items()),
            tuple(Counter(self._ffn_of_layer[span].tolist()).items()),
            int(self._norms[span].sum()),
            int(self._bank_reads[span].sum()),
            float(self._host[span].sum()),
        )


def _norms(attention: AttentionBlock, ffn: FfnBlock) -> int:
    return (attention.kind is not Attention.NONE) + (ffn.kind is not Ffn.NONE)


def _bank_reads(architecture: Architecture, layer: int) -> int:
    """Residual vectors a layer mixes in besides its own: K3 reads the whole bank before each block.

    vLLM 0.32 `models/kimi_k3/nvidia/model.py`: ceil(layer / 12) blocks, before attention and before the FFN.
    """
    if architecture.residual_block is None:
        return 0
    return 2 * -(-layer // architecture.residual_block)


def _host_layer_s(architecture: Architecture) -> list[float]:
    if any(layer.attention.kind is Attention.KDA for layer in architecture.layers):
        return [_HOST_LAYER_KDA_S] * len(architecture.layers)
    ffn_s = {Ffn.DENSE: _HOST_DENSE_S, Ffn.MOE: _HOST_MOE_S, Ffn.NONE: 0.0}
    return [
        (_HOST_ATTENTION_S if layer.attention.kind is not Attention.NONE else 0.0) + ffn_s[layer.ffn.kind]
        for layer in architecture.layers
    ]
