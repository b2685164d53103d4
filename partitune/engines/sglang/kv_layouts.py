"""How many bytes one token takes in a layer's part of SGLang's pool, for every type of cache.

Decision: as for vLLM each type is a layout of its own, and what SGLang asserts about a type is said as its reason.
Sparse latent attention is packed only where its own back end reads it so (FlashMLA on Hopper); TRT-LLM on Blackwell
reads plain rows. The FP8 workspace of NVFP4 on Blackwell cards is one layer's, so that it comes once a stage.

Source: SGLang 0.5.23 `srt/model_executor/pool_configurator.py` (_compute_cell_size, _compute_dsa_indexer_cell_size),
`srt/mem_cache/kv_cache_configurator.py` (calculate_mla_kv_cache_dim), `srt/mem_cache/memory_pool.py`
(get_minimax_sparse_index_dtype), `srt/layers/quantization/fp4_kv_cache_quant_method.py` (compute_cell_size),
`srt/arg_groups/overrides.py` (_dsa_kv_cache_dtype_default, _deepseek_v4_kv_cache_dtype), `kv_cache_hook.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from partitune.engines.deployment import Deployment
from partitune.errors import InfeasibleSpace
from partitune.hardware.gpus import Gpu
from partitune.models.architecture import Attention, AttentionBlock

#: In the order of the engine's help.
KV_CACHE_TYPES = ("auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "bfloat16", "nvfp4", "fp4_mx_block16")
_SIXTEEN_BITS = frozenset({"auto", "bf16", "bfloat16"})
_FP8 = frozenset({"fp8_e5m2", "fp8_e4m3"})
_FP4 = frozenset({"nvfp4", "fp4_mx_block16"})
#: A latent entry as FlashMLA reads it: 512 FP8 values, 4 float32 scales, 64 rotated 16-bit values.
_PACKED_LATENT = 656


class TokenBytes(NamedTuple):
    """What one token takes of a layer on one rank."""

    dealt: float  # keys and values, which decode context ranks deal out
    whole: int  # an indexer's keys, on every rank
    workspace: float = 0.0  # once a stage, not once a layer


def token_bytes(deployment: Deployment, block: AttentionBlock, dtype: str) -> TokenBytes:
    """Bytes of one token of a layer that keeps KV per token (0 for others), under `dtype`.

    Raises:
        InfeasibleSpace: the engine refuses this type for such a layer.
    """
    index = block.index_bytes_per_token
    elements = (block.kv_bytes_per_token - index) / 2 / min(deployment.tp, block.shards)
    if not elements:
        return TokenBytes(0.0, index)
    if block.packed_kv:
        if dtype not in ("auto", "fp8_e4m3"):
            raise _refused(dtype, "of the packed entries of DeepSeek-V4 only auto and fp8_e4m3 are modelled")
        return TokenBytes(2 * elements, index)
    if block.shards > 1 or block.kind not in (Attention.MLA, Attention.SPARSE):
        return _grouped_bytes(block, elements, dtype, deployment.gpu)
    if block.kind is Attention.SPARSE:
        return TokenBytes(_sparse_bytes(deployment, elements, dtype), index)
    return TokenBytes(_latent_bytes(elements, dtype, deployment.gpu), index)


def _grouped_bytes(block: AttentionBlock, elements: float, dtype: str, gpu: Gpu) -> TokenBytes:
    """Keys and values: `elements` of them on one rank."""
    index, sparse = block.index_bytes_per_token, block.kind is Attention.SPARSE
    if sparse and dtype == "fp8_e4m3" and gpu.generation.value.capability == 9:
        index //= 2  # there the Triton decode reads index keys of the cache's own type
    if dtype in _SIXTEEN_BITS:
        return TokenBytes(2 * elements, index)
    if dtype in _FP8:
        return TokenBytes(elements, index)
    if sparse:
        raise _refused(dtype, "block-sparse attention has no scales beside its entries")
    if dtype == "mxfp8":
        if not _blackwell(gpu):
            raise _refused(dtype, "it needs a Blackwell GPU")
        return TokenBytes(elements + elements // 32, index)
    if dtype in _FP4:
        return _fp4_bytes(elements, dtype, gpu)
    raise _refused(dtype, f"allowed: {', '.join(KV_CACHE_TYPES)}")


def _sparse_bytes(deployment: Deployment, elements: float, dtype: str) -> float:
    """Latent entries of DeepSeek sparse attention: FP8 by default on Blackwell, packed where FlashMLA reads them."""
    gpu = deployment.gpu
    if dtype == "auto":
        dtype = "fp8_e4m3" if _blackwell(gpu) else "bfloat16"
    if dtype in _SIXTEEN_BITS:
        return 2 * elements
    if dtype != "fp8_e4m3":
        raise _refused(dtype, "DeepSeek sparse attention takes bfloat16 and fp8_e4m3 only")
    glm = deployment.architecture.architecture == "GlmMoeDsaForCausalLM"
    plain = gpu.generation.value.data_centre_blackwell or (_blackwell(gpu) and not glm)
    return elements if plain else _PACKED_LATENT


def _latent_bytes(elements: float, dtype: str, gpu: Gpu) -> float:
    if dtype in _SIXTEEN_BITS:
        return 2 * elements
    if dtype in _FP8:
        return elements
    if dtype in _FP4:
        _refuse_without_blackwell(dtype, gpu)
        return elements // 2 + elements // 16
    raise _refused(dtype, "FA4 reads it of keys and values, not of latent attention")


def _fp4_bytes(elements: float, dtype: str, gpu: Gpu) -> TokenBytes:
    """Keys and values in four bits with a scale every 16; cards prefill from an FP8 copy of one layer."""
    _refuse_without_blackwell(dtype, gpu)
    copied = elements if dtype == "nvfp4" and not gpu.generation.value.data_centre_blackwell else 0.0
    return TokenBytes(elements // 2 + elements // 16, 0, copied)


def _refuse_without_blackwell(dtype: str, gpu: Gpu) -> None:
    if dtype == "nvfp4" and not _blackwell(gpu):
        raise _refused(dtype, "it needs a Blackwell GPU")


def _blackwell(gpu: Gpu) -> bool:
    return gpu.generation.value.capability in (10, 12)


def _refused(dtype: str, reason: str) -> InfeasibleSpace:
    return InfeasibleSpace(f"kv_cache_dtype: SGLang does not start with {dtype!r} here: {reason}")
