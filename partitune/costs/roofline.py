"""The default cost model: measured kernels where there are any, else a roofline fitted to such measurements.

Decision: layers of one kind cost the same on one GPU, so a batch costs a handful of block times (blocks.py), which are
spread over the layers. What a layer has besides its blocks is here: norms and residuals, the all-reduce after each
block under tensor parallelism, and on the ends of the pipeline embedding, head and sampler. The floor set by the host's
kernel launches is a property of a stage, not of a layer (a slow layer hides a fast one's launches): see stages.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from partitune.costs.blocks import (
    ELEMENTWISE_BANDWIDTH,
    ELEMENTWISE_FIXED_S,
    AttentionTime,
    FfnTime,
    default_expert_kernel,
)
from partitune.costs.collectives import ContextRanks, ExpertExchange, TensorParallelGroup
from partitune.costs.cost_model import Batch, Floats, Seconds
from partitune.costs.fitted import Origin, curve
from partitune.costs.host_reads import HostReads, Offloaded
from partitune.costs.kernel_names import kernel_names
from partitune.costs.measured.operations import MeasuredEngine, kernels_on
from partitune.costs.measured.tables import PACKAGE, installed_release
from partitune.costs.stages import BoundStages, HandOff, StageCounts
from partitune.errors import SpecError
from partitune.hardware.gpus import Gpu
from partitune.hardware.links import link_to_host
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

_NOTHING = Seconds(0.0, 0.0)
#: Places in what `_GpuCosts.blocks` returns: what a norm takes, and what one more residual vector takes.
_NORM, _VECTOR, _FIRST_BLOCK = range(3)


class _GpuCosts:
    """All block times of one model on one kind of GPU."""

    def __init__(
        self,
        architecture: Architecture,
        placement: Placement,
        gpu: Gpu,
        attention: Sequence[AttentionBlock],
        ffn: Sequence[FfnBlock],
        expert_kernel: str,
        engine: MeasuredEngine | None,
    ) -> None:
        hidden, layout, self._tp = architecture.hidden_size, placement.layout, placement.layout.tp
        self.kernels = kernels = kernels_on(gpu, engine) if engine else None
        self.group = TensorParallelGroup(
            gpu,
            self._tp,
            kernels,
            nccl=layout.all_reduce_backend == "nccl",
            nodes=placement.tensor_nodes,
            link=placement.tensor_link,
        )
        self._context = ContextRanks(gpu, layout, attention)
        self._attention = [AttentionTime(block, hidden, gpu, layout, kernels) for block in attention]
        self._ffn = [FfnTime(block, hidden, gpu, layout, expert_kernel, kernels) for block in ffn]
        dtype_bytes = architecture.dtype_bytes
        self._exchange = [
            ExpertExchange(placement, gpu, (block.expert_width or hidden) * dtype_bytes, block.experts_per_token)
            if block.kind is Ffn.MOE
            else None
            for block in ffn
        ]
        self._hidden_bytes = hidden * dtype_bytes
        self._vector_s = self._hidden_bytes / (ELEMENTWISE_BANDWIDTH * gpu.bandwidth_bytes_s)
        self._head, origin = curve("gemm/bf16", gpu)
        self._edges, self._logits_s = architecture.edges, 4.0 / gpu.bandwidth_bytes_s
        self._measured_head = kernels.gemm(-(-self._edges.vocab_size // self._tp), hidden, "bf16") if kernels else None
        self.origins: set[Origin] = {*self.group.origins, *(() if self._measured_head else (origin,))}
        self.origins.update(*(mixer.origins for mixer in self._attention), *(ffn.origins for ffn in self._ffn))

    def blocks(self, batch: Batch) -> list[Seconds]:
        """Seconds of a norm, of one more residual vector, and of every distinct block, attention first.

        A block holds its all-reduce or exchange of tokens, a norm its launches.
        """
        whole, batch = batch, self._context.share_of(batch)
        reduced, vector_s = self._reduce(batch), batch.tokens * self._vector_s
        seconds = [Seconds(0.0, ELEMENTWISE_FIXED_S + _VECTORS_PER_NORM * vector_s), Seconds(0.0, vector_s)]
        for mixer, gathered_s in zip(self._attention, self._context.gathering_s(whole), strict=True):
            seconds.append(_NOTHING if mixer.absent else mixer(batch).plus(reduced).plus(Seconds(0.0, gathered_s)))
        for ffn, exchange in zip(self._ffn, self._exchange, strict=True):
            # An exchange of tokens comes in place of the all-reduce or with it.
            after = Seconds(0.0, exchange(batch.tokens)) if exchange else reduced
            if exchange and exchange.all_reduces:
                after = after.plus(reduced)
            seconds.append(_NOTHING if ffn.absent else ffn(batch).plus(after))
        return seconds

    def _reduce(self, batch: Batch) -> Seconds:
        """One all-reduce of the hidden states of a batch."""
        return self.group.all_reduce(batch.tokens * self._hidden_bytes, graph=not batch.prefill_tokens)

    def embedding(self, batch: Batch) -> Seconds:
        """Look-up of the new tokens; under TP the vocabulary is cut, so one all-reduce."""
        if not batch.tokens:
            return _NOTHING
        return self._reduce(batch).plus(Seconds(0.0, ELEMENTWISE_FIXED_S + batch.tokens * self._vector_s))

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
        if self._measured_head:
            return Seconds(self._measured_head(batch.sampled), fitted)
        weights = self._edges.head_bytes / self._tp
        return Seconds(0.0, self._head(weights, weights * batch.sampled) + fitted)  # 16 bits: 1 FLOP a byte and row


class RooflineCosts:
    """Stage times of one model on one placement; a `CostModel`.

    Args:
        architecture: the model.
        placement: GPUs, links and nodes of the stages.
        expert_kernel: which routed-expert kernel the engine runs (`moe/…` of fitted_constants.json); default by dtype.
        measured_engine: the engine whose measured kernels are used where there are any; None: the roofline alone.
        offloaded: weights that every step reads from the host; None: all lie on the GPUs.

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
        offloaded: Offloaded | None = None,
    ) -> None:
        self.architecture, self.placement = architecture, placement
        self._host_reads = HostReads(architecture, placement.layout, offloaded) if offloaded else None
        self.expert_kernel = expert_kernel or default_expert_kernel(architecture)
        self._measured_engine, layers = measured_engine, architecture.layers
        attention = list(dict.fromkeys(layer.attention for layer in layers))
        ffn = list(dict.fromkeys(layer.ffn for layer in layers))
        gpus = list(dict.fromkeys(placement.gpus))
        self._gpus = [
            _GpuCosts(architecture, placement, gpu, attention, ffn, self.expert_kernel, measured_engine) for gpu in gpus
        ]
        self._gpu_of_stage = [gpus.index(gpu) for gpu in placement.gpus]
        first_ffn = _FIRST_BLOCK + len(attention)
        self._attention_of_layer = np.array([_FIRST_BLOCK + attention.index(layer.attention) for layer in layers])
        self._ffn_of_layer = np.array([first_ffn + ffn.index(layer.ffn) for layer in layers])
        self._norms = np.array(
            [(layer.attention.kind is not Attention.NONE) + (layer.ffn.kind is not Ffn.NONE) for layer in layers]
        )
        # Residual vectors a layer mixes in besides its own: K3 reads the whole bank before attention and before FFN,
        # ceil(layer / 12) blocks (vLLM 0.32 `models/kimi_k3/nvidia/model.py`).
        numbers, block = np.arange(len(layers)), architecture.residual_block
        self._bank_reads = 2 * -(-numbers // block) if block else np.zeros_like(numbers)
        self._host = np.array(_host_layer_s(architecture))
        #: per distinct GPU the batch asked for last: a planner asks for every stage in turn
        self._latest: list[tuple[Batch, Floats] | None] = [None] * len(gpus)

    @property
    def kernels(self) -> Mapping[str, str]:
        """Work -> the kernels that its times are those of."""
        return kernel_names(self.architecture, self.placement, self.expert_kernel, self._measured_engine)

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
        if self._host_reads:
            links = sorted({link_to_host(gpu).name for gpu in self.placement.gpus})
            parts.append(f"weights in the host read over {', '.join(links)}, at the least")
        if self.placement.tensor_link:
            parts.append(f"all-reduces over nodes put together: gathers inside one, {self.placement.tensor_link.name}")
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
        seconds = np.array([sum(block) for block in self._gpus[gpu].blocks(batch)])
        layers: Floats = seconds[self._attention_of_layer] + seconds[self._ffn_of_layer]
        if batch.tokens:
            layers = layers + (seconds[_NORM] * self._norms + seconds[_VECTOR] * self._bank_reads)
        layers.flags.writeable = False
        return layers

    def host_layer_s(self, batch: Batch) -> Floats:
        """Host seconds of every layer, shape [layers]: 0 for a step of decodes only, which runs in a CUDA graph.

        A stage takes at least the sum over its layers.
        """
        return self._host.copy() if batch.prefill_tokens else np.zeros_like(self._host)

    def edge_s(self, stage: int, batch: Batch) -> float:
        """Seconds outside the layers: embedding on the first stage, head and sampler on the last, the host on each."""
        return sum(self._edge(stage, batch))

    def _edge(self, stage: int, batch: Batch) -> Seconds:
        costs = self._gpus[self._gpu_of_stage[stage]]
        seconds = costs.embedding(batch) if stage == 0 else _NOTHING
        if stage == self.placement.layout.pp - 1:
            seconds = seconds.plus(costs.end(batch))
        if self._host_reads is None:
            return seconds
        return seconds.plus(Seconds(0.0, self._host_reads.seconds(self.placement.gpus[stage], batch.tokens)))

    def stage_costs(self, partition: Sequence[int]) -> BoundStages:
        """Bind a partition (layers per stage, in order).

        Raises:
            SpecError: wrong number of stages or layers.
        """
        if len(partition) != self.placement.layout.pp or sum(partition) != len(self.architecture.layers):
            raise SpecError(
                f"partition: {','.join(map(str, partition))} has {len(partition)} stages and {sum(partition)} layers; "
                f"expected {self.placement.layout.pp} and {len(self.architecture.layers)}"
            )
        starts = [sum(partition[:stage]) for stage in range(len(partition) + 1)]
        counts = [self._counts(stage, *span) for stage, span in enumerate(pairwise(starts))]
        ranks = self.placement.layout.tp * self.placement.layout.pcp
        hand_offs = [
            HandOff(link, self.architecture.handoff_bytes(start, 1), ranks, self._gpus[self._gpu_of_stage[stage]].group)
            for stage, (link, start) in enumerate(zip(self.placement.links, starts[1:-1], strict=True), start=1)
        ]
        return BoundStages(counts, hand_offs, lambda batch: [gpu.blocks(batch) for gpu in self._gpus], self._edge)

    def _counts(self, stage: int, start: int, stop: int) -> StageCounts:
        """What the layers `start` ... `stop` - 1 hold when `stage` runs them."""
        span = slice(start, stop)
        blocks = Counter([*self._attention_of_layer[span].tolist(), *self._ffn_of_layer[span].tolist()])
        around = {_NORM: int(self._norms[span].sum()), _VECTOR: int(self._bank_reads[span].sum())}
        return StageCounts(
            self._gpu_of_stage[stage], tuple({**around, **blocks}.items()), float(self._host[span].sum())
        )


def _host_layer_s(architecture: Architecture) -> list[float]:
    if any(layer.attention.kind is Attention.KDA for layer in architecture.layers):
        return [_HOST_LAYER_KDA_S] * len(architecture.layers)
    ffn_s = {Ffn.DENSE: _HOST_DENSE_S, Ffn.MOE: _HOST_MOE_S, Ffn.NONE: 0.0}
    return [
        (_HOST_ATTENTION_S if layer.attention.kind is not Attention.NONE else 0.0) + ffn_s[layer.ffn.kind]
        for layer in architecture.layers
    ]
