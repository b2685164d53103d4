"""How many bytes one token takes in a layer's cache, for every type of cache that vLLM has on CUDA.

Decision: each type is a layout of its own, not a share of sixteen bits: scales lie between the values, a latent is
packed with its rotated part in 16 bits, and an indexer's keys are FP8 whatever the cache is. A type that no attention
back end of the layer takes, or whose kernels run on other hardware only, is refused here with that reason.

Source: vLLM 0.33.0 `v1/attention/backends/triton_attn.py`, `flashinfer.py`, `turboquant_attn.py` (customize_spec),
`utils/torch_utils.py` (nvfp4_kv_cache_full_dim), `model_executor/layers/quantization/turboquant/config.py`,
`model_executor/layers/attention/mla_attention.py` (get_kv_cache_spec, _canonicalize_sparse_mla_kv_cache_dtype),
`platforms/cuda.py` (_get_backend_priorities), `model_executor/models/config.py` (GlmMoeDsaForCausalLM); 0.32.0 the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.versions import Version, parse_version
from partitune.errors import InfeasibleSpace, SpecError
from partitune.hardware.gpus import Gpu
from partitune.models.architecture import Attention, AttentionBlock

#: What the cache holds where the model's own type is kept.
SIXTEEN_BITS = frozenset({"auto", "float16", "bfloat16"})
_FP8 = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2"})
#: Bytes of a whole latent entry packed by FlashMLA's writers: 512 FP8 values, 4 float32 scales, 64 rotated 16-bit ones;
#: 512 FP4 values, 32 FP8 scales and 64 rotated FP8 ones.
_PACKED_LATENT = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
_PACKED_WIDTH = 576
#: Bits of a key and of a value under TurboQuant; 8-bit keys have no norm beside them.
_TURBOQUANT = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
_OTHER_HARDWARE = {
    "fp8_inc": "Intel Gaudi",
    "ultraquant_4bit": "AMD GPUs",
    "octave_k3v4": "AMD GPUs",
    "octave_k3v3": "AMD GPUs",
    "octave_k3v3_compact": "AMD GPUs",
}
_FLOAT32 = 4
#: Layers on either end that stay in 16 bits under TurboQuant.
_BOUNDARY = 2
_GLM_IN_FP8 = Version(0, 32)  # not in 0.31.0 `model_executor/models/config.py`


def cache_type(deployment: Deployment, flags: Mapping[str, FlagValue]) -> str:
    """The type that the engine gives the cache under effective `flags`: GLM-5's is FP8 on data-centre Blackwell."""
    given = str(flags["kv_cache_dtype"])
    glm = deployment.architecture.architecture == "GlmMoeDsaForCausalLM"
    recent = parse_version(deployment.version) >= _GLM_IN_FP8
    return "fp8_e4m3" if given == "auto" and glm and recent and _tcgen05(deployment.gpu) else given


def takes_another_type(deployment: Deployment, flags: Mapping[str, FlagValue]) -> bool:
    """True where some layer's cache is not of the model's own 16 bits."""
    auto = cache_type(deployment, flags) in SIXTEEN_BITS
    return not auto or (_card(deployment.gpu) and str(flags["kv_cache_dtype"]) == "auto")


def token_bytes(block: AttentionBlock, dtype: str, tp: int, gpu: Gpu) -> int:
    """Bytes of one token in the cache of one layer on one of `tp` ranks, an indexer's keys included.

    Args:
        block: a mixer that keeps KV per token, or none (0 bytes).
        dtype: as `cache_type` says.
        tp: tensor ranks.
        gpu: what the engine runs on, as kernels of some types are of one generation only.

    Raises:
        InfeasibleSpace: no attention back end takes this type for such a layer.
    """
    index = block.index_bytes_per_token
    if block.kv_bytes_per_token == index:
        return index
    if block.packed_kv:
        if dtype in ("auto", "fp8", "fp8_ds_mla"):
            return round(block.kv_bytes_per_token_rank(tp))
        raise _refused(dtype, "of the packed entries of DeepSeek-V4 only auto, fp8 and fp8_ds_mla are modelled")
    if dtype in _OTHER_HARDWARE:
        raise _refused(dtype, f"its kernels run on {_OTHER_HARDWARE[dtype]} only")
    if block.kind in (Attention.MLA, Attention.SPARSE) and block.shards == 1:
        return _latent_bytes(block, dtype, gpu) + index
    return _grouped_bytes(block, dtype, tp, gpu) + index


def _latent_bytes(block: AttentionBlock, dtype: str, gpu: Gpu) -> int:
    """One entry of latent attention; sparse attention on FlashMLA packs it, where FlashInfer does not come first."""
    width = (block.kv_bytes_per_token - block.index_bytes_per_token) // 2
    sparse = block.kind is Attention.SPARSE
    if sparse and not _tcgen05(gpu) and (dtype in ("fp8", "fp8_e4m3") or (dtype == "auto" and _card(gpu))):
        dtype = "fp8_ds_mla"
    if dtype in SIXTEEN_BITS:
        return 2 * width
    if dtype in ("fp8", "fp8_e4m3"):
        return width
    if dtype not in _PACKED_LATENT:
        raise _refused(dtype, "no back end of latent attention takes it")
    if not sparse or width != _PACKED_WIDTH:
        raise _refused(dtype, "it packs the entries of sparse attention of DeepSeek-V3.2's widths only")
    if dtype == "nvfp4_ds_mla" and not _tcgen05(gpu):
        raise _refused(dtype, "FlashMLA reads it on data-centre Blackwell only")
    return _PACKED_LATENT[dtype]


def _grouped_bytes(block: AttentionBlock, dtype: str, tp: int, gpu: Gpu) -> int:
    """Keys and values of the heads of one rank."""
    elements = (block.kv_bytes_per_token - block.index_bytes_per_token) / 2
    heads = block.shards / min(tp, block.shards)
    if dtype in SIXTEEN_BITS or dtype in _FP8:
        return round(elements / min(tp, block.shards) * (2 if dtype in SIXTEEN_BITS else 1))
    pair = round(elements / block.shards)
    key = block.key_width or pair // 2
    if dtype in _PACKED_LATENT:
        raise _refused(dtype, "it packs latent attention, and this model has keys and values")
    if block.kind is Attention.SPARSE:
        raise _refused(dtype, "no back end of block-sparse attention takes it")
    if dtype in _TURBOQUANT:
        return round(heads * _turboquant_bytes(dtype, key))
    if dtype.startswith("nvfp4") and 2 * key != pair:
        raise _refused(dtype, "vLLM asserts that key and value heads are equally wide")
    if dtype == "nvfp4_4over6" and not _tcgen05(gpu):
        raise _refused(dtype, "FlashInfer writes it on data-centre Blackwell only")
    if dtype not in _HEAD_BYTES:
        raise _refused(dtype, "its layout is not known to partitune")
    return round(heads * _HEAD_BYTES[dtype](key, pair - key))


#: Type -> bytes of one head by the widths of its key and its value; a scale of four bytes on either side.
_HEAD_BYTES: Mapping[str, Callable[[int, int], int]] = {
    "int8_per_token_head": lambda key, value: key + value + 2 * _FLOAT32,
    "fp8_per_token_head": lambda key, value: key + value + 2 * _FLOAT32,
    "int4_per_token_head": lambda key, value: key // 2 + value // 2 + 2 * _FLOAT32,
    "nvfp4": lambda key, value: sum(width // 2 + width // 16 for width in (key, value)),
    "nvfp4_4over6": lambda key, value: sum(width // 2 + width // 16 for width in (key, value)),
}


def _turboquant_bytes(dtype: str, width: int) -> int:
    """Key and value of one head in a slot of even size: codes, a norm beside keys, scale and zero beside values."""
    key_bits, value_bits = _TURBOQUANT[dtype]
    key = width if key_bits == 8 else -(-width * key_bits // 8) + 2
    slot = key + -(-width * value_bits // 8) + 4
    return slot + slot % 2


def sixteen_bit_layers(deployment: Deployment, flags: Mapping[str, FlagValue]) -> frozenset[int]:
    """Layers whose cache keeps the model's own type under effective `flags`.

    Those that `kv_cache_dtype_skip_layers` names, and under TurboQuant two on either end of a model without states
    (`TurboQuantConfig.get_boundary_skip_layers`).

    Raises:
        SpecError: the flag names what is no layer.
    """
    names = str(flags.get("kv_cache_dtype_skip_layers", "")).replace(",", " ").split()
    attentions = [layer.attention for layer in deployment.architecture.layers]
    count = len(attentions)
    windows = {i for i, each in enumerate(attentions) if each.kind is Attention.SLIDING and "sliding_window" in names}
    numbers = [name for name in names if name != "sliding_window"]
    if wrong := [name for name in numbers if not name.isdigit() or int(name) >= count]:
        raise SpecError(
            f"kv_cache_dtype_skip_layers: {wrong[0]!r} is no layer; allowed: 0 ... {count - 1}, or sliding_window"
        )
    boundary = min(_BOUNDARY, count // 2)
    ends = flags["kv_cache_dtype"] in _TURBOQUANT and not deployment.architecture.is_hybrid
    kept = {*range(boundary), *range(count - boundary, count)} if ends else set()
    return frozenset(kept | windows | set(map(int, numbers)))


def _refused(dtype: str, reason: str) -> InfeasibleSpace:
    return InfeasibleSpace(f"kv_cache_dtype: {dtype!r} cannot be planned: {reason}")


def _tcgen05(gpu: Gpu) -> bool:
    return gpu.generation.value.data_centre_blackwell


def _card(gpu: Gpu) -> bool:
    return gpu.generation.value.capability == 12
