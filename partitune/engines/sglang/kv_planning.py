"""SGLang's KV pool: how it shrinks over stages.

Decision: what is free is the least of any stage, and every stage divides it by its own cell; the pool is the smallest
of what comes of that. Layers with a window have a pool of their own in some classes, `swa_full_tokens_ratio` as long as
that of the others; without the radix cache and with a stated number of requests it is as long as these can need. Only
the longer pool is looked at when requests are admitted. Not counted: the 1 GiB of a transport over CUDA VMM that
multi-node GB200 and GB300 take for images.

Source: SGLang 0.5.23 `srt/mem_cache/kv_cache_configurator.py` (_profile_available_bytes, _handle_max_mamba_cache,
mm_runtime_reservation_gb), `srt/model_executor/pool_configurator.py`, `srt/configs/model_config.py`
(is_hybrid_swa_model).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partitune.costs.cost_model import Floats
from partitune.engines.deployment import Deployment
from partitune.engines.flags import whole_number
from partitune.engines.memory import KvCache
from partitune.engines.sglang.defaults import effective_flags
from partitune.engines.sglang.kv_layouts import token_bytes
from partitune.engines.sglang.weights import builds_tower
from partitune.errors import InfeasibleSpace, OutOfMemory
from partitune.hardware.gpus import GIB
from partitune.models.architecture import STATE_KINDS, Attention, AttentionBlock
from partitune.partition import Partition

_STATE_TYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
_STATE_TO_KV = 0.9  # mamba_full_memory_ratio where no flag says so
_WINDOW_TO_FULL = 0.8  # swa_full_tokens_ratio likewise
_IMAGE_BYTES = 100 << 20  # SGLANG_VLM_CACHE_SIZE_MB
_EVICTION_INTERVAL = 128  # SGLANG_SWA_EVICTION_INTERVAL: tokens between two looks at what left the window
#: Classes of the catalog and their likes whose layers with a window have a pool of their own.
_WINDOW_POOLS = frozenset({
    "GptOssForCausalLM", "GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM", "IQuestQ1ForCausalLM",
    "MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM", "Llama4ForConditionalGeneration", "Step3p5ForCausalLM",
    "Step3p7ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "LagunaForCausalLM",
    "MellumForCausalLM", "InklingForConditionalGeneration",
})  # fmt: skip


class _Layers(NamedTuple):
    """Bytes on one rank, one entry a layer."""

    full: Floats  # of a token, where every token is kept
    window: Floats  # of a token, in the pool of windows
    state: Floats  # of a sequence
    workspace: float  # of a token, once a stage


class _Windows(NamedTuple):
    """How the pool of windows is sized: `ratio` tokens for each of the other pool, or `fixed` tokens."""

    ratio: float
    fixed: int


def kv_cache(deployment: Deployment, partition: Sequence[int], free_bytes: Sequence[int]) -> KvCache:
    """Pool of one partition: the least free memory over the largest cell; a block is a page."""
    flags = effective_flags(deployment)
    page = whole_number(flags, "page_size", 1)
    ranges = Partition(partition).ranges
    layers, windows = _layer_bytes(deployment), _windows(deployment)
    cells = [_cell(layers, windows, i, j) for i, j in ranges]
    fixed = [windows.fixed * int(layers.window[i:j].sum()) for i, j in ranges]
    states = [int(layers.state[i:j].sum()) for i, j in ranges]
    if not any(cells) or (min(cells) == 0 and not any(states)):
        raise InfeasibleSpace(
            f"stage {cells.index(0)} owns no layer that keeps KV per token; SGLang cannot size its pool"
        )
    images = _for_images(deployment)
    free = min(free_bytes) - images
    slots = _state_slots(deployment, free, max(states))
    held = (slots + 1) * max(states) if max(states) else 0  # one slot more is padding
    # A hybrid's stage without attention sets no limit of its own.
    alone = [
        max(int((free - held - kept) // cell), 0) // page if cell else None
        for cell, kept in zip(cells, fixed, strict=True)
    ]
    pages = min(*(own for own in alone if own is not None), whole_number(flags, "max_total_tokens", 1 << 62) // page)
    stage_pages = tuple(max(other for other in alone if other is not None) if own is None else own for own in alone)
    longest = whole_number(flags, "context_length", deployment.architecture.max_position)
    if pages == 0:
        raise OutOfMemory(
            f"the tightest stage has {min(free_bytes) / GIB:.2f} GiB for KV and state: not one page fits",
            excess=float(max(map(sum, zip(cells, fixed, strict=True))) * page - (free - held)),
        )
    return KvCache(
        num_blocks=pages,
        block_size=page,
        tokens=pages * page,
        concurrency=pages * page / longest,
        stage_blocks=stage_pages,
        stage_block_bytes=tuple(round(cell * page) for cell in cells),
        stranded_bytes=tuple(
            int(own - images - pages * page * cell - kept) - (slots + 1) * state
            for own, cell, kept, state in zip(free_bytes, cells, fixed, states, strict=True)
        ),
        group_layers=tuple(int((layers.full[i:j] + layers.window[i:j] > 0).sum()) for i, j in ranges),
        groups=1,
        state_slots=slots if any(states) else None,
    )


def _cell(layers: _Layers, windows: _Windows, first: int, stop: int) -> float:
    """Bytes of one token of the pool on a stage; where all layers have windows, theirs is the only one."""
    full, window = float(layers.full[first:stop].sum()), float(layers.window[first:stop].sum())
    if not full:
        return window
    return full + windows.ratio * window + layers.workspace


def kv_blocks(deployment: Deployment, free_bytes: Floats) -> Floats:
    """Pages that a stage could hold by itself; the pool is smaller when another stage has less free memory."""
    page = whole_number(effective_flags(deployment), "page_size", 1)
    layers, windows = _layer_bytes(deployment), _windows(deployment)
    full, window, states = (_spans(each) for each in (layers.full, layers.window, layers.state))
    cells = np.where(full > 0, full + windows.ratio * window + layers.workspace, window)
    share = 1 / (1 + _state_to_kv(deployment)) if layers.state.any() else 1.0
    free = np.maximum(free_bytes - _for_images(deployment), 0.0) * share - windows.fixed * window[None]
    pages = np.floor(np.maximum(free, 0.0) / (np.maximum(cells, 1) * page)[None])
    # A stage of a hybrid with states alone sets no limit of its own; one that keeps nothing has none at all.
    without = np.where(states > 0, np.inf, 0.0)
    return np.where(cells[None] > 0, pages, without[None])


def _spans(per_layer: Floats) -> Floats:
    """Sums over layers first ... stop - 1, for every (first, stop)."""
    until = np.concatenate(([0], np.cumsum(per_layer)))
    return np.asarray(until[None, :] - until[:, None])


def _for_images(deployment: Deployment) -> int:
    """Bytes that are kept free for what a model that reads images allocates later."""
    architecture = deployment.architecture
    reads = architecture.edges.vision_bytes and builds_tower(architecture, deployment.flags)
    return _IMAGE_BYTES if reads else 0


def _windows(deployment: Deployment) -> _Windows:
    """How long the pool of windows is."""
    flags = effective_flags(deployment)
    ratio = flags.get("swa_full_tokens_ratio")
    chunk, page = whole_number(flags, "chunked_prefill_size", 0), whole_number(flags, "page_size", 1)
    running = whole_number(flags, "max_running_requests", 0)
    widths = [layer.attention.window or 0 for layer in deployment.architecture.layers]
    if not (flags.get("disable_radix_cache") and running and chunk > 0 and max(widths)):
        return _Windows(_WINDOW_TO_FULL if ratio is None else float(ratio), 0)
    in_flight = 1 if deployment.stages > 1 or flags.get("disable_overlap_schedule") else 2
    most = (max(widths) + _EVICTION_INTERVAL + 2 * page) * running + in_flight * chunk + page
    return _Windows(0.0, -(-most // page) * page)


def _layer_bytes(deployment: Deployment) -> _Layers:
    """Bytes of every layer on one rank.

    Decode context parallelism deals the tokens out: a rank keeps one of `dcp`, and the keys of an indexer whole.
    """
    architecture, flags = deployment.architecture, effective_flags(deployment)
    blocks = [layer.attention for layer in architecture.layers]
    dtype, dcp = str(flags["kv_cache_dtype"]), deployment.layout.dcp
    kept = [token_bytes(deployment, block, dtype) for block in blocks]
    tokens = np.array([round(each.dealt / dcp) + each.whole for each in kept], dtype=np.float64)
    apart = architecture.served_class in _WINDOW_POOLS and not flags.get("disable_hybrid_swa_memory")
    slides = np.array([apart and block.kind is Attention.SLIDING for block in blocks])
    states = [state_bytes(deployment, block) // deployment.tp for block in blocks]
    workspace = max((each.workspace for each in kept), default=0.0)
    return _Layers(
        np.where(slides, 0.0, tokens), np.where(slides, tokens, 0.0), np.array(states, dtype=np.float64), workspace
    )


def rank_cache_bytes(deployment: Deployment) -> tuple[float, ...]:
    """Bytes of one token, or of the state, of every layer on one rank, before tokens are dealt out to context ranks."""
    dtype = str(effective_flags(deployment)["kv_cache_dtype"])
    blocks = [layer.attention for layer in deployment.architecture.layers]
    kept = (token_bytes(deployment, block, dtype) for block in blocks)
    states = (state_bytes(deployment, block) / deployment.tp for block in blocks)
    return tuple(each.dealt + each.whole + state for each, state in zip(kept, states, strict=True))


def state_bytes(deployment: Deployment, block: AttentionBlock) -> int:
    """Bytes of one sequence's state in one layer: the recurrent part in `mamba_ssm_dtype`, else in 32 bits.

    A config that says bfloat16 itself is read as one that says nothing (`srt/configs/mamba_utils.py`).
    """
    if block.kind not in STATE_KINDS:
        return 0
    given = _STATE_TYPES.get(str(deployment.flags.get("mamba_ssm_dtype")), 4)
    return block.state_bytes_in(given if block.state_elements else None, None)


def _state_to_kv(deployment: Deployment) -> float:
    given = deployment.flags.get("mamba_full_memory_ratio")
    return _STATE_TO_KV if given is None else float(given)


def _state_slots(deployment: Deployment, free: int, state_bytes: int) -> int:
    """Slots for fixed states, the same on every stage: so many as the fullest stage (`state_bytes` a slot) can have."""
    if state_bytes == 0:
        return 0
    flags = effective_flags(deployment)
    running = whole_number(flags, "max_running_requests", 0)
    if flags.get("disable_radix_cache") and running and flags.get("max_mamba_cache_size") is None:
        return running
    ratio = _state_to_kv(deployment)
    most = int((free * ratio / (1 + ratio) - state_bytes) // state_bytes)
    return whole_number(flags, "max_mamba_cache_size", most)
