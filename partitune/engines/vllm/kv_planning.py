"""vLLM's KV-cache planning, exactly: how many blocks a partition leaves, and which stage decides.

Decision: this is arithmetic, so it is copied in behaviour and held against recordings of the engine, not estimated.
All stages share one block table, so the whole model is grouped once (`kv_groups`), each group is projected on each
stage, a block costs a stage the bytes of its fullest group, and the number of blocks is the least over stages. That is
a staircase: for Kimi-K3 one more attention layer on one stage costs a quarter of the cache.

Source: vLLM 0.32.0 `v1/core/kv_cache_utils.py` and `v1/kv_cache_interface.py` (0.33.0: `kv_cache_planning.py`), CUDA.
Not covered: drafters, hidden-state extraction, DeepSeek-V4's rows of several widths.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from partitune.engines.memory import KvCache
from partitune.engines.vllm.kv_groups import Cache, CacheModel, Group, LayerCache, group_layers
from partitune.errors import InfeasibleSpace, OutOfMemory
from partitune.hardware.gpus import GIB
from partitune.partition import Partition


def range_blocks(model: CacheModel, free_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Blocks that stage s alone could hold when it owns layers i..j-1.

    Args:
        model: caches of all layers.
        free_bytes: per GPU, after weights and activations; shape [stages, layers + 1, layers + 1].

    Returns:
        Whole blocks, same shape; 0 where nothing is free or those layers keep no cache (the engine cannot start there).
    """
    layers = len(model.layers)
    block_bytes = np.zeros((layers + 1, layers + 1), dtype=np.int64)  # of layers i..j-1; 0 below the diagonal
    for group in group_layers(model):
        pages = np.zeros(layers, dtype=np.int64)
        pages[list(group.layers)] = [cache.page_bytes for cache in group.caches]
        prefix = np.concatenate(([0], np.cumsum(pages)))
        np.maximum(block_bytes, prefix[None, :] - prefix[:, None], out=block_bytes)
    blocks = np.floor(np.maximum(free_bytes, 0.0) / np.maximum(block_bytes, 1)[None])
    return np.where(block_bytes[None] > 0, blocks, 0.0)


def blocks_per_request(model: CacheModel, tokens: int) -> int:
    """Blocks that one request of `tokens` tokens holds at most, prompt and output together, over all groups."""
    return sum(_group_blocks(group.caches[0], model, tokens) for group in group_layers(model))


def kv_cache(
    model: CacheModel, partition: Sequence[int], free_bytes: Sequence[int], *, blocks_override: int | None = None
) -> KvCache:
    """What vLLM allocates for `partition` when stage s has `free_bytes[s]` left on each of its GPUs.

    `blocks_override` is `--num-gpu-blocks-override`: the engine then plans with that many blocks whatever is free.

    Raises:
        InfeasibleSpace: a stage owns no layer with a cache (the engine divides by zero).
        OutOfMemory: a stage cannot hold one request of max_model_len; names the longest that fits, graded in bytes.
    """
    groups = group_layers(model)
    block_bytes, fullest = _stage_blocks(groups, partition)
    if blocks_override is not None:
        free_bytes = [blocks_override * size for size in block_bytes]
    stage_blocks = tuple(int(free) // size for free, size in zip(free_bytes, block_bytes, strict=True))
    num_blocks, needed = min(stage_blocks), blocks_per_request(model, model.max_model_len)
    if num_blocks <= needed:
        stage = stage_blocks.index(num_blocks)
        need, have = block_bytes[stage] * (needed + 1), int(free_bytes[stage])
        raise OutOfMemory(
            f"stage {stage} has {have / GIB:.2f} GiB for KV and one request of {model.max_model_len} tokens needs "
            f"{need / GIB:.2f} GiB there; the longest that fits has {longest_request(model, num_blocks)}",
            excess=float(need - have),
        )
    concurrency = num_blocks / needed
    token_blocks = [group.caches[0].block_size for group in groups if group.caches[0].kind is not Cache.STATE]
    return KvCache(
        num_blocks=num_blocks,
        block_size=min(token_blocks, default=groups[0].caches[0].block_size),
        tokens=int(concurrency * model.max_model_len),
        concurrency=concurrency,
        stage_blocks=stage_blocks,
        stage_block_bytes=tuple(block_bytes),
        stranded_bytes=tuple(int(f) - num_blocks * b for f, b in zip(free_bytes, block_bytes, strict=True)),
        group_layers=tuple(fullest),
        groups=len(groups),
    )


def fitted_length(model: CacheModel, partition: Sequence[int], free_bytes: Sequence[int]) -> CacheModel:
    """`model` with the longest requests that every stage can hold (`max_model_len: -1`), 1 where not even that fits.

    vLLM 0.32 `v1/core/kv_cache_utils.py` _auto_fit_max_model_len.
    """
    block_bytes, _ = _stage_blocks(group_layers(model), partition)
    fewest = min(int(free) // size for free, size in zip(free_bytes, block_bytes, strict=True))
    return replace(model, max_model_len=max(1, longest_request(model, fewest)))


def _stage_blocks(groups: Sequence[Group], partition: Sequence[int]) -> tuple[list[int], list[int]]:
    """Per stage: bytes of one block, and layers of its fullest group. Raises InfeasibleSpace, see `kv_cache`."""
    block_bytes, fullest = [], []
    for start, end in Partition(partition).ranges:
        owned = [
            [cache.page_bytes for index, cache in zip(group.layers, group.caches, strict=True) if start <= index < end]
            for group in groups
        ]
        block_bytes.append(max((sum(pages) for pages in owned), default=0))
        fullest.append(max((len(pages) for pages in owned), default=0))
    bare = [stage for stage, size in enumerate(block_bytes) if size == 0]
    if bare:
        raise InfeasibleSpace(f"stage {bare[0]} owns no layer that keeps a cache; vLLM cannot plan its KV memory")
    return block_bytes, fullest


def longest_request(model: CacheModel, blocks: int) -> int:
    """Most tokens one request may have when `blocks` blocks exist; one block is never handed out. 0: not even one."""
    lengths = range(model.max_model_len + 1)
    return bisect_right(lengths, blocks - 1, lo=1, key=lambda tokens: blocks_per_request(model, tokens)) - 1


def _group_blocks(cache: LayerCache, model: CacheModel, tokens: int) -> int:
    if cache.kind is Cache.STATE:
        return model.state_blocks
    if cache.kind is Cache.TOKENS or cache.window is None:
        return -(-tokens // cache.block_size)
    # One block more: a window rarely begins at the start of a block.
    return -(-min(cache.window - 1 + model.max_in_flight_tokens, tokens) // cache.block_size) + 1
