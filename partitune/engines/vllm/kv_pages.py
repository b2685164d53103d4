"""From a start to what each layer keeps per block on one GPU of vLLM.

Decision: one place knows how vLLM picks block sizes. Plain attention takes blocks of 16 tokens; latent attention 64
(FlashMLA; other kernels take 16 or 32, which changes rounding only). In a hybrid the block of the attention layers is
raised until its page is at least as large as the fixed state, and the state is padded to that page; where states are
exported inside a chunk it is a multiple of what their kernel asks for.

Layers that keep 16 bits beside a smaller type make the block longer, so that the page of the small ones holds 16 tokens
of theirs; windows fill that page with as many tokens as it holds. Not covered: DeepSeek-V4's packed layout and its
compressed layers beside windows.

Source: vLLM 0.33.0 `platforms/interface.py` (`_align_hybrid_block_size`,
`_align_heterogeneous_kv_block_size`), `v1/attention/backends/mla/flashmla.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import lcm

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.flags import whole_number
from partitune.engines.vllm.defaults import effective_flags
from partitune.engines.vllm.kv_choices import blocks_outermost, keeps_windows
from partitune.engines.vllm.kv_groups import Cache, CacheModel, LayerCache
from partitune.engines.vllm.kv_layouts import cache_type, sixteen_bit_layers, token_bytes
from partitune.engines.vllm.pipelining import regime
from partitune.engines.vllm.state_exports import state_export
from partitune.engines.vllm.state_types import state_bytes
from partitune.errors import InfeasibleSpace
from partitune.models.architecture import STATE_KINDS, Attention, AttentionBlock

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
        state_blocks=2 + state_export(deployment).checkpoint_blocks if flags["mamba_cache_mode"] == "align" else 1,
        blocks_outermost=blocks_outermost(deployment.flags),
    )


def _layer_caches(deployment: Deployment, flags: Mapping[str, FlagValue]) -> tuple[LayerCache | None, ...]:
    """Cache of every layer on one tensor rank, under effective `flags`.

    With decode context parallelism the tokens of a block are dealt out over ranks: a page stays as large and holds so
    many times the tokens (0.32 `v1/core/kv_cache_utils.py` resolve_dcp_kv_block_size). Fixed states are not dealt out.
    """
    attentions = [layer.attention for layer in deployment.architecture.layers]
    latent = any(attention.kind in _LATENT for attention in attentions)
    block = whole_number(flags, "block_size", 0) or (_LATENT_BLOCK if latent else _BLOCK)
    states = (state_bytes(each, flags) // deployment.tp for each in attentions if each.kind in STATE_KINDS)
    state_page = max(states, default=0)
    sizes = layer_token_bytes(deployment, flags)
    largest = max(sizes, default=0)
    small = _smaller_type(deployment, flags, sizes)
    if state_page and largest:
        alignment = max(block, _HYBRID_LATENT_ALIGNMENT) if latent else block
        alignment = lcm(alignment, state_export(deployment).block_multiple)
        block = max(block, alignment * -(-state_page // (alignment * largest)))
        state_page = block * largest
    elif small < largest:
        block = max(block, block * -(-largest * _BLOCK // (block * small)))
    window_page = block * small if small < largest else 0
    if not keeps_windows(deployment):
        attentions = [
            replace(each, kind=Attention.FULL) if each.kind is Attention.SLIDING else each for each in attentions
        ]
    per_layer, dcp = zip(attentions, sizes, strict=True), deployment.layout.dcp
    return tuple(_cache(attention, block, dcp, state_page, window_page, size) for attention, size in per_layer)


def _smaller_type(deployment: Deployment, flags: Mapping[str, FlagValue], sizes: Sequence[int]) -> int:
    """Bytes of a token in the type that the flag names where some layers keep 16 bits; else those of the largest."""
    kept = sixteen_bit_layers(deployment, flags)
    return min((size for index, size in enumerate(sizes) if kept and size and index not in kept), default=max(sizes))


def layer_cache_bytes(deployment: Deployment, flags: Mapping[str, FlagValue]) -> tuple[float, ...]:
    """Bytes of one token, or of the fixed state, in the cache of every layer on one tensor rank.

    Raises:
        SpecError: as `layer_token_bytes` and `state_bytes` do.
    """
    tokens = layer_token_bytes(deployment, flags)
    attentions = (layer.attention for layer in deployment.architecture.layers)
    return tuple(
        state_bytes(each, flags) / deployment.tp if each.kind in STATE_KINDS else size
        for each, size in zip(attentions, tokens, strict=True)
    )


def layer_token_bytes(deployment: Deployment, flags: Mapping[str, FlagValue]) -> tuple[int, ...]:
    """Bytes of one token in the cache of every layer on one tensor rank; 0 for those that keep none.

    Raises:
        InfeasibleSpace: a type that no back end takes for a layer, or layers left in 16 bits beside fixed states.
    """
    tp, gpu, architecture = deployment.tp, deployment.gpu, deployment.architecture
    dtype, kept = cache_type(deployment, flags), sixteen_bit_layers(deployment, flags)
    if kept and architecture.is_hybrid:
        raise InfeasibleSpace("kv_cache_dtype_skip_layers: how a state shares pages of two types is not modelled")
    return tuple(
        token_bytes(layer.attention, "auto" if index in kept else dtype, tp, gpu)
        for index, layer in enumerate(architecture.layers)
    )


def _cache(
    attention: AttentionBlock, block: int, dcp: int, state_page: int, window_page: int, token_bytes: int
) -> LayerCache | None:
    """Cache of one layer; a window fills `window_page` where layers of two types share pages (0: they do not)."""
    if attention.kind is Attention.NONE:
        return None
    if attention.kind in STATE_KINDS:
        return LayerCache(Cache.STATE, state_page, block)
    if attention.kind is Attention.SLIDING:
        tokens = max(_BLOCK, window_page // token_bytes // _BLOCK * _BLOCK) if window_page else block
        return LayerCache(Cache.WINDOW, window_page or block * token_bytes, tokens, attention.window)
    return LayerCache(Cache.TOKENS, block * token_bytes, block * dcp)
