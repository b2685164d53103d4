"""What a stage holds on each of its GPUs, and what is left for KV: term by term, so that a person can argue with it.

Decision: the terms follow vLLM 0.32's own accounting (`v1/worker/gpu_worker.py` determine_available_memory): weights,
then a profile run of max_num_batched_tokens tokens and, on the last stage, a sampler run of max_num_seqs rows, then the
CUDA-graph estimate; KV gets ceil(total * utilisation) less all that. Weights and hand-off buffers are exact; the rest
are estimates, listed below with their grounds. Two verdicts: loading needs the weights and a working copy of one layer
to fit the card, which no utilisation setting protects; serving needs something left for KV. A reserve (memory others
hold) lowers the budget only where utilisation would have reached it; vLLM would not start there, so the stage says
which utilisation does. SGLang (`static_share`) cuts the card in two before it loads: weights and KV in a share of the
memory free then (the least of any stage), what a batch needs in the rest (0.5.23 `mem_cache/kv_cache_configurator.py`
_profile_available_bytes). What an engine builds on more stages than need it is a setting (`ReplicatedEmbeddings`); the
engines' rooms know which. A solver asks for every (stage, first, stop), so the same terms come as arrays too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from partitune.costs.blocks import rank_bytes
from partitune.costs.cost_model import Floats
from partitune.hardware.gpus import GIB
from partitune.hardware.parallelism import Exchange, Layout
from partitune.hardware.placement import Placement
from partitune.models.architecture import Architecture, Ffn, Layer
from partitune.partition import Partition

#: CUDA context, kernels, allocator slack: 0.6 GiB (typical of an idle engine process). Estimate.
_RUNTIME_BYTES = 0.6 * GIB
#: NCCL buffers of one group of ranks: 342 MB (aiconfigurator-core 0.12.0 `systems/*.yaml` nccl_mem).
_NCCL_BYTES = 358_612_992.0
#: One layer in one captured graph. Estimate: 0.5 GiB for Llama-8B and 1.8 GiB for Llama-70B over 67 sizes.
_GRAPH_BYTES_PER_LAYER = 0.3e6
#: Vectors of hidden_size per token of the vision profile: the encoder's output, its cache and one temporary. Estimate.
_VISION_VECTORS = 3
#: Bytes per logit in the sampler run: 16-bit logits, their fp32 copy and one fp32 temporary.
_BYTES_PER_LOGIT = 2 + 4 + 4


@dataclass(frozen=True, slots=True)
class ReplicatedEmbeddings:
    """What an engine builds on stages that do not need it, by model class and release."""

    embedding: bool = False  # on every stage, not only the first (and the last of a tied one)
    head: bool = False  # on every stage, not only the last
    tower: bool = False  # on every stage, not only the first


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """Engine settings that decide memory."""

    max_num_batched_tokens: int
    max_num_seqs: int
    gpu_memory_utilization: float = 0.92  # vLLM's default since 0.19 (config/cache.py)
    share_flag: str = "gpu_memory_utilization"  # the engine's flag that says so
    #: SGLang: the utilisation is of what is free at start, and holds weights and KV only; a batch works beside it.
    static_share: bool = False
    graph_sizes: int = 0  # batch sizes for which CUDA graphs are captured
    drafter: bool = False  # the checkpoint's MTP module is loaded: on the last stage
    drafter_embedding: bool = False  # the drafter there reads the target's embedding
    vision: bool = True  # the vision tower, where the checkpoint has one, is loaded: on the first stage
    copies: ReplicatedEmbeddings = ReplicatedEmbeddings()
    redundant_experts: int = 0  # copies of routed experts in every layer, spread like the experts themselves
    offloaded_bytes: int = 0  # weights of layers that every GPU leaves in the host's memory


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes per GPU of one stage, term by term."""

    stage: int
    gpu: str
    total_bytes: int  # what the driver reports
    reserved_bytes: int  # held by others
    #: The engine may use: ceil(total * utilisation), and never what is reserved. With a static share: runtime, weights
    #: and KV.
    budget_bytes: int
    layer_weight_bytes: float  # of what lies on the GPU
    edge_weight_bytes: float  # embedding, head and norm, drafter, vision tower
    activation_bytes: float  # peak of the profile run
    receive_bytes: float  # persistent buffer for the hand-off, and the residual bank of K3
    logits_bytes: float  # sampler run of max_num_seqs rows; last stage only
    vision_bytes: float  # profile run of the vision encoder; first stage only
    graph_bytes: float  # CUDA graphs
    runtime_bytes: float  # context and communicators
    load_copy_bytes: float  # one layer more while weights are read and repacked (assumed), gone afterwards
    in_flight_bytes: float  # fresh receive tensors of one step: outside the engine's budget, inside the card
    settings: MemorySettings
    #: The largest utilisation that starts here; None when the configured one does. vLLM 0.32 request_memory
    #: (`v1/worker/utils.py`) refuses to start when less is free than it asks for, its own runtime already counted.
    utilization_to_set: float | None = None

    @property
    def weight_bytes(self) -> float:
        """Bytes of layers and edges together."""
        return self.layer_weight_bytes + self.edge_weight_bytes

    @property
    def batch_bytes(self) -> float:
        """What working on batches takes, in-flight tensors apart."""
        peak = max(self.activation_bytes, self.logits_bytes, self.vision_bytes)
        return peak + self.receive_bytes + self.graph_bytes

    @property
    def kv_bytes(self) -> float:
        """What is left of the budget for KV; negative where the stage does not fit."""
        in_budget = 0.0 if self.settings.static_share else self.batch_bytes
        return self.budget_bytes - (self.weight_bytes + self.runtime_bytes + in_budget)

    @property
    def load_peak_bytes(self) -> float:
        """The most that loading takes."""
        return self.weight_bytes + self.load_copy_bytes + self.runtime_bytes

    @property
    def serve_peak_bytes(self) -> float:
        """The most that serving takes beside KV."""
        return self.weight_bytes + self.runtime_bytes + self.batch_bytes + self.in_flight_bytes

    @property
    def load_missing_bytes(self) -> float:
        """How far loading misses the card."""
        return max(0.0, self.load_peak_bytes - (self.total_bytes - self.reserved_bytes))

    @property
    def serve_missing_bytes(self) -> float:
        """How far serving misses: no KV left in the budget, or in-flight tensors beyond what the card has over."""
        spare = self.total_bytes - self.reserved_bytes - self.budget_bytes
        if self.settings.static_share:
            return max(0.0, -self.kv_bytes, self.in_flight_bytes + self.batch_bytes - spare)
        return max(0.0, -self.kv_bytes, self.in_flight_bytes - spare - max(0.0, self.kv_bytes))

    @property
    def fits(self) -> bool:
        """True where the stage loads and has room for KV."""
        return not self.load_missing_bytes and not self.serve_missing_bytes and self.kv_bytes > 0

    @property
    def verdict(self) -> str:
        """One sentence: fits with how much, or what is missing and when."""
        name = f"stage {self.stage} ({self.gpu})"
        if self.load_missing_bytes:
            return f"{name}: weights miss the card by {self.load_missing_bytes / GIB:.1f} GiB while loading"
        if not self.fits:
            what = "too little beside weights and KV" if self.kv_bytes > 0 else "nothing left for KV"
            return f"{name}: {self.serve_missing_bytes / GIB:.1f} GiB short of serving, {what}"
        at_most = self.utilization_to_set
        lower = "" if at_most is None else f"; starts only with {self.settings.share_flag} {at_most} or less"
        return f"{name}: fits, {self.kv_bytes / GIB:.1f} GiB for KV{lower}"


class MemoryModel:
    """Memory of every stage of one model on one placement under one setting."""

    def __init__(self, architecture: Architecture, placement: Placement, settings: MemorySettings) -> None:
        self.architecture, self.placement, self.settings = architecture, placement, settings
        layers, layout = architecture.layers, placement.layout
        self._layer_bytes = [layer_rank_bytes(layer, layout, settings.redundant_experts) for layer in layers]
        self._weights = np.concatenate([[0.0], np.cumsum(self._layer_bytes)])
        tokens = -(-settings.max_num_batched_tokens // layout.pcp)  # of one rank
        self._token_bytes = tokens * architecture.hidden_size * architecture.dtype_bytes
        widths = [_widest(layer, architecture.hidden_size, layout) / architecture.hidden_size for layer in layers]
        #: Peak of the profile run by widest layer: hidden states, residual and one temporary, and its intermediates.
        self._peaks = [(3.0 + width) * self._token_bytes for width in widths]

    def stage(self, stage: int, first: int, stop: int) -> StageMemory:
        """Memory of `stage` when it holds layers `first` ... `stop` - 1 (0-based)."""
        gpu, reserved = self.placement.gpus[stage], self.placement.reserved_bytes[stage]
        handoff = self.architecture.handoff_vectors(first) * self._token_bytes if stage else 0.0
        return StageMemory(
            stage=stage,
            gpu=gpu.name,
            total_bytes=gpu.memory_bytes,
            reserved_bytes=reserved,
            budget_bytes=self._budget(stage),
            layer_weight_bytes=max(
                0.0, float(self._weights[stop] - self._weights[first]) - self.settings.offloaded_bytes
            ),
            edge_weight_bytes=self._edge_weights(stage),
            activation_bytes=max(self._peaks[first:stop], default=3.0 * self._token_bytes),
            receive_bytes=handoff + self._bank(stop),
            logits_bytes=self._logits(stage),
            vision_bytes=self._vision(stage),
            graph_bytes=self._graphs(stop - first),
            runtime_bytes=self._runtime(),
            load_copy_bytes=max(self._layer_bytes[first:stop], default=0.0),
            in_flight_bytes=handoff,
            settings=self.settings,
            utilization_to_set=self._utilization_to_set(stage),
        )

    def partition(self, partition: tuple[int, ...]) -> tuple[StageMemory, ...]:
        """Memory of every stage of a partition (layers per stage, in order)."""
        return tuple(self.stage(stage, *layers) for stage, layers in enumerate(Partition(partition).ranges))

    def kv_tensor(self) -> Floats:
        """`StageMemory.kv_bytes` for every (stage, first, stop), shape [stages, layers + 1, layers + 1].

        -inf where stop <= first, and where the stage does not fit: then no partition may use it.
        """
        layers, stages = len(self.architecture.layers), self.placement.layout.pp
        boundaries = np.arange(layers + 1)
        held_layers = boundaries - boundaries[:, np.newaxis]  # stop - first
        weights = np.maximum(self._weights - self._weights[:, np.newaxis] - self.settings.offloaded_bytes, 0.0)
        largest = _largest_of_spans(self._layer_bytes)
        activations = _largest_of_spans(self._peaks)
        banks = np.array([self._bank(stop) for stop in range(layers + 1)])
        handoffs = np.array([[self.architecture.handoff_vectors(first)] for first in range(layers + 1)])
        tensor = np.empty((stages, layers + 1, layers + 1))
        alike: dict[object, int] = {}  # inner stages of one GPU and reserve differ in nothing
        for stage, kind in enumerate(zip(self.placement.gpus, self.placement.reserved_bytes, strict=True)):
            twin = alike.setdefault((kind, stage == 0, stage == stages - 1), stage)
            if twin != stage:
                tensor[stage] = tensor[twin]
                continue
            transient = np.maximum(activations, max(self._logits(stage), self._vision(stage)))
            handoff = handoffs * (self._token_bytes if stage else 0)
            held = weights + self._edge_weights(stage) + self._runtime()
            budget, room = self._budget(stage), self._free(stage)
            batch = transient + handoff + banks + self._graphs(1) * held_layers
            if self.settings.static_share:
                kv, beside, spare = budget - held, batch + handoff, room - budget
            else:
                kv = budget - (held + batch)
                beside, spare = handoff, room - budget + kv
            fits = (kv > 0) & (held + largest <= room) & (beside <= spare) & (held_layers > 0)
            tensor[stage] = np.where(fits, kv, -np.inf)
        return tensor

    def _free(self, stage: int) -> int:
        """Bytes of a card of `stage` that nobody else holds."""
        return self.placement.gpus[stage].memory_bytes - self.placement.reserved_bytes[stage]

    def _wanted(self, stage: int) -> int:
        share = self.settings.gpu_memory_utilization
        if self.settings.static_share:
            least = min(map(self._free, range(self.placement.layout.pp))) - self._runtime()
            return self._free(stage) - math.ceil(least * (1 - share))
        return math.ceil(self.placement.gpus[stage].memory_bytes * share)

    def _budget(self, stage: int) -> int:
        return min(self._wanted(stage), self._free(stage))

    def _utilization_to_set(self, stage: int) -> float | None:
        free = self._free(stage) - self._runtime()
        if self.settings.static_share or self._wanted(stage) <= free:
            return None  # a static share is of what is free, and asks for no more
        # Rounded down to what a person types: one thousandth of an H200 is 0.14 GiB.
        return max(0.0, math.floor(1000 * free / self.placement.gpus[stage].memory_bytes) / 1000)

    def _edge_weights(self, stage: int) -> float:
        edges, tp, setting = self.architecture.edges, self.placement.layout.tp, self.settings
        first, last = stage == 0, stage == self.placement.layout.pp - 1
        embedding = first or setting.copies.embedding or (last and setting.drafter_embedding)
        total = edges.embedding_bytes / tp if embedding else 0.0
        if last or setting.copies.head:
            # A tied head is the embedding: one copy where a stage holds both, its own copy otherwise.
            total += 0.0 if edges.tied and embedding else edges.head_bytes / tp
        if last:
            total += self.architecture.hidden_size * self.architecture.dtype_bytes
            total += edges.drafter_bytes / tp if setting.drafter else 0.0
        if setting.vision and (first or setting.copies.tower):
            total += edges.vision_bytes / tp
        return total

    def _vision(self, stage: int) -> float:
        """Peak of the encoder's profile run, on the first stage (vLLM 0.32 `v1/worker/gpu/model_runner.py`)."""
        seen = stage == 0 and self.settings.vision and self.architecture.edges.vision_bytes
        return _VISION_VECTORS * float(self._token_bytes) if seen else 0.0

    def _logits(self, stage: int) -> float:
        if stage != self.placement.layout.pp - 1:
            return 0.0
        return float(self.settings.max_num_seqs * self.architecture.edges.vocab_size * _BYTES_PER_LOGIT)

    def _bank(self, stop: int) -> float:
        """K3's residual bank of a stage that ends before layer `stop` (vLLM 0.32 kimi_k3/nvidia/model.py:1331)."""
        block = self.architecture.residual_block
        return 0.0 if block is None else -(-stop // block) * self._token_bytes

    def _graphs(self, layers: int) -> float:
        return layers * self.settings.graph_sizes * _GRAPH_BYTES_PER_LAYER

    def _runtime(self) -> float:
        layout = self.placement.layout
        # The ranks that share experts are a group of their own where they are more than the tensor ranks.
        experts = layout.stage_gpus > layout.tp and self.architecture.has_experts
        groups = (layout.tp > 1) + (layout.pp > 1) + experts
        return _RUNTIME_BYTES + groups * _NCCL_BYTES


def _largest_of_spans(per_layer: list[float]) -> Floats:
    """The largest value within layers first ... stop - 1 for every (first, stop), 0 where there is none."""
    layers = len(per_layer)
    spans = np.zeros((layers + 1, layers + 1))
    spans[:layers, 1:] = np.maximum.accumulate(np.triu(np.broadcast_to(per_layer, (layers, layers))), axis=1)
    return spans


def layer_rank_bytes(layer: Layer, layout: Layout, redundant_experts: int = 0) -> float:
    """Weights of a layer on one rank; norms are whole on each, routed experts spread over all ranks of the stage.

    Where tokens are cut over the tensor ranks before the experts, every rank holds the shared experts whole (vLLM 0.32
    `model_executor/models/deepseek_v2.py`, disable_tp). Copies of experts are physical experts like the others (vLLM
    0.33 `layers/fused_moe/layer.py` determine_expert_counts; SGLang 0.5.23 `models/deepseek_v2.py`).
    """
    moe = layer.ffn.kind is Ffn.MOE
    whole = layout.sequence_parallel_moe and moe
    blocks = rank_bytes(layer.attention, layout.tp) + rank_bytes(layer.ffn, 1 if whole else layout.tp)
    copies = redundant_experts * layer.ffn.expert_bytes if moe else 0.0
    routed = (layer.ffn.routed_bytes + copies) / layout.stage_gpus
    if moe and layout.balancing_slots is not None:
        routed = layer.ffn.routed_bytes + layout.balancing_slots * layer.ffn.expert_bytes
    return blocks + routed + 2.0 * layer.other_params


def _widest(layer: Layer, hidden_size: int, layout: Layout) -> float:
    """Widest intermediates of a layer on one rank, in elements per token of this rank.

    A block of p parameters over hidden_size is p / hidden_size elements wide altogether. Routed experts keep gate and
    up of every visited expert, and its output (vLLM `fused_moe` workspaces); the tokens of all data ranks pass by.
    """
    attention = layer.attention.params / hidden_size / layout.tp
    if layer.ffn.kind is not Ffn.MOE:
        return max(attention, layer.ffn.params / hidden_size / layout.tp)
    width = layer.ffn.expert_width or hidden_size
    inner = layer.ffn.expert_params / (3 * width)
    seen = layout.dp * layout.pcp
    visits = seen * layer.ffn.experts_per_token / layout.expert_ranks
    gathered = seen * width if layout.exchange is Exchange.GATHER else 0
    return max(attention, visits * (2 * inner / layout.expert_cut + width) + gathered)
