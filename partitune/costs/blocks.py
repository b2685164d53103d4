"""Time of one attention block and of one feed-forward block on one GPU, as functions of the batch.

Decision: a layer is not measured whole; its two blocks are composed from parts, because the same two or three blocks
repeat through a model and a batch may mix prompts and decodes. GEMMs see all tokens of the step, attention sees prompt
pairs and decode contexts apart. Every part is a measured kernel where one was measured for this very shape
(measured/blocks.py), else a curve fitted to such tables (fitted.py); what no table covers is a named assumption here.
"""

from __future__ import annotations

import math
from dataclasses import replace

from partitune.costs.cost_model import Batch, Seconds
from partitune.costs.fitted import Origin, curve, distinct_experts, fits
from partitune.costs.measured.blocks import measured_attention, measured_ffn
from partitune.costs.measured.grids import Grid
from partitune.costs.measured.operations import Kernels
from partitune.errors import SpecError
from partitune.hardware.gpus import Gpu
from partitune.hardware.parallelism import Exchange, Layout
from partitune.models.architecture import STATE_KINDS, Architecture, Attention, AttentionBlock, Ffn, FfnBlock

#: FLOPs per head, new token and context token when MLA decodes over the compressed KV (512 + 64 wide keys, 512 values;
#: every published MLA model has these widths).
_ABSORBED_FLOPS_PER_HEAD_PAIR = 2.0 * (576 + 512)
#: FLOPs per head, new token and width of a decompressed MLA head in prefill (192-wide keys, 128-wide values): what its
#: element-wise copies scale with.
_DECOMPRESSED_FLOPS_PER_HEAD_PAIR = 2.0 * (192 + 128)
#: FLOPs per head to decompress one past token of MLA for a later chunk (512 wide latent to 128 + 128).
_DECOMPRESS_FLOPS_PER_HEAD = 2.0 * 512 * 256
#: Bytes of an indexer key per context token (DeepSeek-V3.2: 128 fp8 values and a scale), read for the whole context.
_INDEXER_KEY_BYTES = 132
#: Element-wise kernels reach this share of the memory bandwidth (aiconfigurator-core 0.12.0 `systems/*.yaml`,
#: mem_bw_empirical_scaling_factor).
ELEMENTWISE_BANDWIDTH = 0.8
#: Start of an element-wise kernel (norm, residual add, embedding): aiconfigurator-core 0.12.0 `systems/*.yaml`,
#: mem_empirical_constant_latency.
ELEMENTWISE_FIXED_S = 3e-6
#: Times the activations of a routed token cross memory (permute, two GEMMs, activation, weighted sum); chosen for the
#: smallest errors over moe.csv, and the reason why an expert block does not shrink with 1/tp.
EXPERT_PASSES = 6
#: Up to so many tokens shared experts run on a second stream beside the routed ones: vLLM 0.32 `envs.py`
#: VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD; the tables were taken kernel by kernel. Assumed of SGLang as well.
_SHARED_BESIDE_ROUTED = 256
_GEMMS_PER_ATTENTION = 2  # qkv and output
#: By dtype of weights; all others compute in bf16.
_GEMM_OF_DTYPE = {"fp8": "fp8_block", "nvfp4": "nvfp4"}
_KERNEL_OF_EXPERT_DTYPE = {
    "fp8": "fp8_block",
    "int4": "w4a16_marlin",
    "mxfp4": "w4a16_marlin",
    "nvfp4": "w4a8_mxfp4_mxfp8",
}


def default_expert_kernel(architecture: Architecture) -> str:
    """The routed-expert kernel vLLM 0.24 picks: Marlin for 4-bit weights, except gpt-oss, which has its own.

    SGLang on Blackwell runs `w4a8_mxfp4_mxfp8` for mxfp4 weights; its caller names it.
    """
    if architecture.architecture.startswith("GptOss"):
        return "w4a16_mxfp4"
    dtypes = (layer.ffn.expert_dtype for layer in architecture.layers if layer.ffn.kind is Ffn.MOE)
    return _KERNEL_OF_EXPERT_DTYPE.get(next(dtypes, ""), "bf16")


def _small_kernels(block: AttentionBlock | FfnBlock) -> int:
    """Launches of a block that no table and no curve holds: each takes as long as it takes to start.

    Attention: rotary embedding and the write to the cache (an MLA block was measured with both), or the gated norm of a
    state. Feed-forward: the activation, the choice of experts, the activation of shared experts. Eight-bit GEMMs:
    the quantisation of what they read.
    """
    quantised = block.dtype in ("fp8", "nvfp4")
    if isinstance(block, AttentionBlock):
        if block.kind in (Attention.FULL, Attention.SLIDING):
            return 2 + 2 * quantised
        return 1 if block.kind in STATE_KINDS else 0
    if block.kind is Ffn.DENSE:
        return 1 + 2 * quantised
    shared = any(matrix.name.startswith("shared_experts.") for matrix in block.matrices)
    return 1 + shared * (1 + 2 * quantised) if block.kind is Ffn.MOE else 0


def rank_bytes(block: AttentionBlock | FfnBlock, tp: int) -> float:
    """Weight bytes of the block (routed experts apart) on one TP rank: the replicated part whole, the rest divided."""
    return (block.weight_bytes - block.replicated_bytes) / tp + block.replicated_bytes


class _Projections:
    """The GEMMs of a block on one rank."""

    def __init__(self, block: AttentionBlock | FfnBlock, gpu: Gpu, tp: int, launches: int) -> None:
        self.curve, self.origin = curve(f"gemm/{_GEMM_OF_DTYPE.get(block.dtype, 'bf16')}", gpu)
        self.bytes = rank_bytes(block, tp)
        share = self.bytes / block.weight_bytes if block.weight_bytes else 0.0
        self.flops_per_token = block.flops_per_token * share
        self.launches = launches

    def __call__(self, tokens: int) -> float:
        if not self.bytes:
            return 0.0
        return self.launches * self.curve.fixed_s + self.curve.variable_s(self.bytes, self.flops_per_token * tokens)


class AttentionTime:
    """Seconds of one token mixer on one TP rank."""

    def __init__(
        self, block: AttentionBlock, hidden_size: int, gpu: Gpu, layout: Layout, kernels: Kernels | None
    ) -> None:
        self._fitted = fitted = _FittedAttention(block, gpu, layout.tp, layout.dcp)
        #: In another type of cache a measured mixer takes as much less as the fitted one: tables have 16-bit caches.
        sixteen_bits = replace(block, cached_bytes=None)
        self._plain = None if block == sixteen_bits else _FittedAttention(sixteen_bits, gpu, layout.tp, layout.dcp)
        # No table has a cache whose tokens are dealt out over ranks.
        kernels = None if layout.dcp > 1 and block.kv_bytes_per_token else kernels
        projections, mixer = measured_attention(block, hidden_size, layout.tp, kernels)
        self.absent = block.kind is Attention.NONE
        self._small_s = _small_kernels(block) * ELEMENTWISE_FIXED_S
        # There the fitted curve is truer for prompts of latent attention than the table, which was taken with 16-bit
        # kernels, at 128K tokens 1.5 times as slow as DeepSeek-R1-FP4 runs on GB300 (vllm issue 41682).
        self._fitted_prompts = block.kind is Attention.MLA and gpu.generation.value.data_centre_blackwell
        self._project, self._mix = projections or fitted.project, mixer or fitted
        self._project_measured, self._mix_measured = projections is not None, mixer is not None
        self.origins: tuple[Origin, ...] = () if projections else (fitted.project.origin,)
        self.origins += () if mixer else fitted.origins

    def __call__(self, batch: Batch) -> Seconds:
        """Seconds of the mixer and its projections for what a rank computes of `batch`, by what they rest on."""
        if self.absent or not batch.tokens:
            return Seconds(0.0, 0.0)
        if batch.prefill_tokens and self._fitted_prompts:
            return Seconds(0.0, self._fitted.project(batch.tokens) + self._fitted(batch) + self._small_s)
        projected, mixed = self._project(batch.tokens), self._mix(batch)
        measured = projected * self._project_measured + mixed * self._mix_measured
        if self._plain and self._mix_measured:
            mixed = max(0.0, mixed + self._fitted(batch) - self._plain(batch))
        return Seconds(measured, projected + mixed - measured + self._small_s)


class _FittedAttention:
    """The mixer of a block by the fitted curves; `project` is its GEMMs."""

    def __init__(self, block: AttentionBlock, gpu: Gpu, tp: int, dcp: int) -> None:
        self._block, self._tp = block, tp
        latent = block.kind in (Attention.MLA, Attention.SPARSE) and block.shards == 1
        # The fixed start of an MLA module covers its small projections, so only one GEMM launch is added.
        self.project = _Projections(block, gpu, tp, 1 if latent else _GEMMS_PER_ATTENTION)
        self._heads = block.heads / tp if latent else 0.0
        # With the tokens dealt out, a rank works for the heads of `dcp` ranks on its share of the context.
        cached = block.cached_bytes
        self._kv_bytes = (block.kv_bytes_per_token_rank(tp) if cached is None else cached) / dcp
        self._state_bytes = block.state_bytes / tp if cached is None else cached
        families = ("mla", "mla") if latent else _STATE_FAMILIES.get(block.kind, ("gqa", "gqa"))
        self._prefill, first = curve(f"{families[0]}_prefill", gpu)
        self._decode, second = curve(f"{families[1]}_decode", gpu)
        self.origins: tuple[Origin, ...] = (first, second)

    def __call__(self, batch: Batch) -> float:
        """Seconds of the mixer alone: prompts and decodes share one start."""
        seconds = fixed = 0.0
        if batch.prefill_tokens:
            fixed = self._prefill.fixed_s
            seconds += self._prefill_s(batch)
        if batch.decode_tokens:
            fixed = max(fixed, self._decode.fixed_s)
            seconds += self._decode_s(batch)
        return seconds + fixed

    def _prefill_s(self, batch: Batch) -> float:
        block, tokens = self._block, batch.prefill_tokens
        if block.kind in STATE_KINDS:
            return self._prefill.variable_s(tokens * self._state_bytes, tokens)
        per_pair = block.flops_per_pair / self._tp
        copied = self._heads * _DECOMPRESSED_FLOPS_PER_HEAD_PAIR or per_pair
        flops = _attended(block, batch.prefill_pairs, tokens) * per_pair
        # Every rank runs the whole indexer.
        seconds = self._prefill.variable_s(tokens * copied, flops + batch.prefill_pairs * block.indexer_flops_per_pair)
        if block.kind is Attention.MLA:
            # A later chunk decompresses its past again. A batch does not say how many chunks it holds: one is assumed.
            past = max(0.0, batch.prefill_pairs / tokens - (tokens + 1) / 2)
            seconds += self.project.curve.variable_s(0.0, past * self._heads * _DECOMPRESS_FLOPS_PER_HEAD)
        return seconds

    def _decode_s(self, batch: Batch) -> float:
        block, context = self._block, float(batch.decode_context)
        if block.kind in STATE_KINDS:
            return self._decode.variable_s(2.0 * batch.decode_tokens * self._state_bytes, 0.0)
        attended = _attended(block, context, batch.decode_tokens)
        read = attended * self._kv_bytes + (context * _INDEXER_KEY_BYTES if block.indexer_flops_per_pair else 0.0)
        flops = attended * self._heads * _ABSORBED_FLOPS_PER_HEAD_PAIR + context * block.indexer_flops_per_pair
        return self._decode.variable_s(read, flops)


#: Which tables stand for (prefill, decode) of the fixed-state mixers; lightning attention and Mamba's decode have none.
_STATE_FAMILIES = {
    Attention.KDA: ("kda", "kda"),
    Attention.GDN: ("gdn", "gdn"),
    Attention.MAMBA: ("mamba", "gdn"),
    Attention.LIGHTNING: ("gdn", "gdn"),
}


def at_most(value: float, limit: float) -> float:
    """The smaller of the two without a kink (power mean of exponent -4); both must be positive or value 0."""
    if value <= 0.0:
        return 0.0
    ratio = value / limit
    return value / math.sqrt(math.sqrt(1.0 + ratio**4))


def _attended(block: AttentionBlock, pairs: float, tokens: int) -> float:
    """Query-key pairs that a block really works on: all, those inside its window, or those it chose."""
    limit = block.window if block.kind is Attention.SLIDING else block.topk
    return at_most(pairs, float(tokens * limit)) if limit else pairs


class FfnTime:
    """Seconds of one feed-forward block on one TP rank: dense or shared part, and routed experts."""

    def __init__(
        self, block: FfnBlock, hidden_size: int, gpu: Gpu, layout: Layout, expert_kernel: str, kernels: Kernels | None
    ) -> None:
        self.absent, moe = block.kind is Ffn.NONE, block.kind is Ffn.MOE
        #: Where tokens are cut over the tensor ranks, a rank passes its share of them through whole shared experts.
        self._portions = layout.tp if moe and layout.sequence_parallel_moe else 1
        tp = layout.tp // self._portions
        fitted = _Projections(block, gpu, tp, 1 if moe else 2)
        sizes = (tp, layout.expert_cut, layout.expert_ranks)
        common, self._shared, routed = measured_ffn(block, *sizes, kernels, expert_kernel)
        self._common, self._common_measured = common or fitted, common is not None
        self.origins: tuple[Origin, ...] = () if common or not block.weight_bytes else (fitted.origin,)
        self._routed: _FittedExperts | Grid | None = None
        self._expert_tokens, self._imbalance = _tokens_at_experts(layout), layout.expert_imbalance
        if moe:
            experts = _FittedExperts(block, hidden_size, gpu, layout, expert_kernel)
            self._routed = routed or experts
            self.origins += () if routed else (experts.origin,)
        self._routed_measured = routed is not None
        self._small_s = _small_kernels(block) * ELEMENTWISE_FIXED_S

    def __call__(self, batch: Batch) -> Seconds:
        """Seconds for `batch`, the exchange of tokens apart (collectives.py)."""
        tokens = -(-batch.tokens // self._portions)
        if self.absent or not tokens:
            return Seconds(0.0, 0.0)
        common = self._common(tokens)
        routed = self._imbalance * self._routed(self._expert_tokens * batch.tokens) if self._routed else 0.0
        if self._shared:
            shared = self._shared(tokens)
            common += max(0.0, shared - routed) if tokens <= _SHARED_BESIDE_ROUTED else shared
        measured = common * self._common_measured + routed * self._routed_measured
        return Seconds(measured, common + routed - measured + self._small_s)


def _tokens_at_experts(layout: Layout) -> int:
    """Tokens that the experts of a stage see for one of a data rank's: those of its peers, who step with it.

    Routed by every tensor rank for itself, a token comes once from each (vLLM 0.32 `config/parallel.py`,
    use_sequence_parallel_moe).
    """
    twice = layout.exchange is Exchange.ROUTED and not layout.sequence_parallel_moe
    return layout.dp * layout.pcp * (layout.tp if twice else 1)


class _FittedExperts:
    """Routed experts by the fitted curve, as a function of the tokens."""

    def __init__(self, block: FfnBlock, hidden_size: int, gpu: Gpu, layout: Layout, kernel: str) -> None:
        if f"moe/{kernel}" not in fits():
            known = ", ".join(sorted(name.removeprefix("moe/") for name in fits() if name.startswith("moe/")))
            raise SpecError(f"costs: expert kernel {kernel!r} has no constants; known are {known}")
        self._block, self._ranks = block, layout.stage_gpus
        self._curve, self.origin = curve(f"moe/{kernel}", gpu)
        # A rank with experts of its own moves only the tokens that visit these.
        visits = block.experts_per_token / layout.expert_ranks
        moved = 2.0 * EXPERT_PASSES * visits * (block.expert_width or hidden_size)
        self._moved_s_per_token = moved / (ELEMENTWISE_BANDWIDTH * gpu.bandwidth_bytes_s)

    def __call__(self, tokens: int) -> float:
        block = self._block
        hit = distinct_experts(block.experts, block.experts_per_token, tokens)
        flops = tokens * block.routed_flops_per_token / self._ranks
        return self._curve(hit * block.expert_bytes / self._ranks, flops) + tokens * self._moved_s_per_token
