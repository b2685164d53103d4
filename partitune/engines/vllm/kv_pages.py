"""From a start to what each layer keeps per block on one GPU of vLLM.

Decision: one place knows how vLLM picks block sizes. Plain attention takes blocks of 16 tokens; latent attention 64
(FlashMLA; other kernels take 16 or 32, which changes rounding only). In a hybrid the block of the attention layers is
raised until its page is at least as large as the fixed state, and the state is padded to that page.

Not covered: DeepSeek-V4's packed layout and its compressed layers beside windows; an indexer's key cache is FP8 under
every cache type and is scaled here with the rest (it is a tenth of a sparse layer's page).

Source: vLLM 0.32.0 `platforms/interface.py` (`_align_hybrid_block_size`), `config/cache.py`,
`v1/attention/backends/mla/flashmla.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.flags import whole_number
from partitune.engines.vllm.defaults import effective_flags
from partitune.engines.vllm.kv_planning import Cache, CacheModel, LayerCache
from partitune.engines.vllm.pipelining import regime
from partitune.errors import SpecError
from partitune.models.architecture import STATE_KINDS, Attention, AttentionBlock

#: Bytes of one cached element against the model's own 16 bits (vLLM 0.32.0 `config/cache.py`).
_DTYPE_SHARE = {"auto": 1.0, "float16": 1.0, "bfloat16": 1.0, "fp8": 0.5, "fp8_e4m3": 0.5, "fp8_e5m2": 0.5}
_LATENT = frozenset({Attention.MLA, Attention.SPARSE})
_BLOCK, _LATENT_BLOCK = 16, 64
_HYBRID_LATENT_ALIGNMENT = 128  # TRT-LLM and FlashInfer MLA decode kernels


def cache_model(deployment: Deployment) -> CacheModel:
    """What the KV planner is given: pages per layer on one GPU, the longest request and the tokens in flight.

    Raises:
        SpecError: a cache type whose layout is not known here, or a start that the engine refuses.
    """
    flags = effective_flags(deployment)
    longest = whole_number(flags, "max_model_len", 0)
    slots = regime(deployment).regime.queue_slots(deployment.stages)
    return CacheModel(
        _layer_caches(deployment, flags),
        max_model_len=longest if longest > 0 else deployment.architecture.max_position,
        max_in_flight_tokens=slots * int(flags["max_num_batched_tokens"]),
        state_blocks=2 if flags["mamba_cache_mode"] == "align" else 1,
    )


def _layer_caches(deployment: Deployment, flags: Mapping[str, FlagValue]) -> tuple[LayerCache | None, ...]:
    """Cache of every layer on one tensor rank, under effective `flags`.

    With decode context parallelism the tokens of a block are dealt out over ranks: a page stays as large and holds so
    many times the tokens (0.32 `v1/core/kv_cache_utils.py` resolve_dcp_kv_block_size). Fixed states are not dealt out.
    """
    tp, dtype = deployment.tp, str(flags["kv_cache_dtype"])
    if dtype not in _DTYPE_SHARE:
        raise SpecError(
            f"kv_cache_dtype: KV planning does not know the layout of {dtype!r}; it knows {', '.join(_DTYPE_SHARE)}"
        )
    share = _DTYPE_SHARE[dtype]
    attentions = [layer.attention for layer in deployment.architecture.layers]
    latent = any(attention.kind in _LATENT for attention in attentions)
    block = whole_number(flags, "block_size", 0) or (_LATENT_BLOCK if latent else _BLOCK)
    state_page = max((each.state_bytes // tp for each in attentions if each.kind in STATE_KINDS), default=0)
    token_bytes = [round(attention.kv_bytes_per_token_rank(tp) * share) for attention in attentions]
    largest = max(token_bytes, default=0)
    if state_page and largest:
        alignment = max(block, _HYBRID_LATENT_ALIGNMENT) if latent else block
        block = max(block, alignment * -(-state_page // (alignment * largest)))
        state_page = block * largest
    sizes, dcp = zip(attentions, token_bytes, strict=True), deployment.layout.dcp
    return tuple(_cache(attention, block, dcp, state_page, size) for attention, size in sizes)


def _cache(attention: AttentionBlock, block: int, dcp: int, state_page: int, token_bytes: int) -> LayerCache | None:
    if attention.kind is Attention.NONE:
        return None
    if attention.kind in STATE_KINDS:
        return LayerCache(Cache.STATE, state_page, block)
    if attention.kind is Attention.SLIDING:
        return LayerCache(Cache.WINDOW, block * token_bytes, block, attention.window)
    return LayerCache(Cache.TOKENS, block * token_bytes, block * dcp)
