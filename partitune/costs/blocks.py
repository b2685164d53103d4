"""Time of one attention block and of one feed-forward block on one GPU, as functions of the batch.

Decision: a layer is not measured whole; its two blocks are composed from fitted kernels (fitted.py), because the same
two or three blocks repeat through a model and a batch may mix prompts and decodes. GEMMs see all tokens of the step,
attention sees prompt pairs and decode contexts apart. What no table covers is written here as a named assumption.
"""

from __future__ import annotations

from partitune.cluster.hardware import Gpu
from partitune.costs.fitted import Origin, curve, fits
from partitune.costs.interface import Batch
from partitune.costs.kernels import Curve, at_most, distinct_experts
from partitune.errors import SpecError
from partitune.model.architecture import STATE_KINDS, Architecture, Attention, AttentionBlock, Ffn, FfnBlock

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
#: Times the activations of a routed token cross memory (permute, two GEMMs, activation, weighted sum); chosen for the
#: smallest errors over moe.csv, and the reason why an expert block does not shrink with 1/tp.
EXPERT_PASSES = 6
_GEMMS_PER_ATTENTION = 2  # qkv and output
_GEMM_OF_DTYPE = {"bf16": "bf16", "fp8": "fp8_block", "nvfp4": "nvfp4"}  # int4 and mxfp4 weights compute in bf16
_KERNEL_OF_EXPERT_DTYPE = {
    "bf16": "bf16",
    "fp8": "fp8_block",
    "int4": "w4a16_marlin",
    "mxfp4": "w4a16_marlin",
    "nvfp4": "w4a8_mxfp4_mxfp8",
}


def expert_kernels() -> tuple[str, ...]:
    """Names of the routed-expert kernels that have constants."""
    return tuple(sorted(name.removeprefix("moe/") for name in fits() if name.startswith("moe/")))


def default_expert_kernel(architecture: Architecture) -> str:
    """The routed-expert kernel vLLM 0.24 picks: Marlin for 4-bit weights, except gpt-oss, which has its own.

    SGLang on Blackwell runs `w4a8_mxfp4_mxfp8` for mxfp4 weights; its caller names it.
    """
    if architecture.architecture.startswith("GptOss"):
        return "w4a16_mxfp4"
    dtypes = [layer.ffn.expert_dtype for layer in architecture.layers if layer.ffn.kind is Ffn.MOE]
    return _KERNEL_OF_EXPERT_DTYPE.get(dtypes[0], "bf16") if dtypes else "bf16"


def rank_bytes(block: AttentionBlock | FfnBlock, tp: int) -> float:
    """Weight bytes of the block (routed experts apart) on one TP rank: the replicated part whole, the rest divided."""
    return (block.weight_bytes - block.replicated_bytes) / tp + block.replicated_bytes


class _Projections:
    """The GEMMs of a block on one rank."""

    __slots__ = ("bytes", "curve", "flops_per_token", "launches", "origin")

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

    __slots__ = ("_block", "_decode", "_heads", "_kv_bytes", "_prefill", "_project", "_state_bytes", "_tp", "origins")

    def __init__(self, block: AttentionBlock, gpu: Gpu, tp: int) -> None:
        self._block, self._tp = block, tp
        latent = block.kind in (Attention.MLA, Attention.SPARSE) and block.shards == 1
        # The fixed start of an MLA module covers its small projections, so only one GEMM launch is added.
        self._project = _Projections(block, gpu, tp, 1 if latent else _GEMMS_PER_ATTENTION)
        self._heads = block.heads / tp if latent else 0.0
        self._kv_bytes = block.kv_bytes_per_token_rank(tp)
        self._state_bytes = block.state_bytes / tp
        families = ("mla", "mla") if latent else _STATE_FAMILIES.get(block.kind, ("gqa", "gqa"))
        self._prefill, first = curve(f"{families[0]}_prefill", gpu)
        self._decode, second = curve(f"{families[1]}_decode", gpu)
        self.origins: tuple[Origin, ...] = (self._project.origin, first, second)

    def __call__(self, batch: Batch) -> float:
        """Seconds for `batch`."""
        if self._block.kind is Attention.NONE or not batch.tokens:
            return 0.0
        seconds = self._project(batch.tokens)
        fixed = 0.0
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
            seconds += self._project.curve.variable_s(0.0, past * self._heads * _DECOMPRESS_FLOPS_PER_HEAD)
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


def _attended(block: AttentionBlock, pairs: float, tokens: int) -> float:
    """Query-key pairs that a block really works on: all, those inside its window, or those it chose."""
    limit = block.window if block.kind is Attention.SLIDING else block.topk
    return at_most(pairs, float(tokens * limit)) if limit else pairs


class FfnTime:
    """Seconds of one feed-forward block on one TP rank: dense or shared part, and routed experts."""

    __slots__ = ("_block", "_experts", "_moved_s_per_token", "_project", "_tp", "origins")

    def __init__(self, block: FfnBlock, hidden_size: int, gpu: Gpu, tp: int, expert_kernel: str) -> None:
        self._block, self._tp = block, tp
        moved = 2.0 * EXPERT_PASSES * block.experts_per_token * (block.expert_width or hidden_size)
        self._moved_s_per_token = moved / (ELEMENTWISE_BANDWIDTH * gpu.bandwidth_bytes_s)
        self._project = _Projections(block, gpu, tp, 1 if block.kind is Ffn.MOE else 2)
        self._experts: Curve | None = None
        self.origins: tuple[Origin, ...] = (self._project.origin,) if block.weight_bytes else ()
        if block.kind is Ffn.MOE:
            if f"moe/{expert_kernel}" not in fits():
                known = ", ".join(expert_kernels())
                raise SpecError(f"costs: expert kernel {expert_kernel!r} has no constants; known are {known}")
            self._experts, origin = curve(f"moe/{expert_kernel}", gpu)
            self.origins += (origin,)

    def __call__(self, batch: Batch) -> float:
        """Seconds for `batch`."""
        block, tokens = self._block, batch.tokens
        if block.kind is Ffn.NONE or not tokens:
            return 0.0
        seconds = self._project(tokens)
        if self._experts is not None:
            hit = distinct_experts(block.experts, block.experts_per_token, tokens)
            flops = tokens * block.routed_flops_per_token / self._tp
            seconds += self._experts(hit * block.expert_bytes / self._tp, flops) + tokens * self._moved_s_per_token
        return seconds
