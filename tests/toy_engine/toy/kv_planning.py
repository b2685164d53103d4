"""Toy's KV cache: pages, as many on every stage as the tightest one can hold. Source: Toy 1.2 `program.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partitune.costs.cost_model import Floats
from partitune.engines.deployment import Deployment
from partitune.engines.memory import KvCache
from partitune.errors import OutOfMemory
from partitune.partition import Partition


def page_bytes(deployment: Deployment, page_tokens: int) -> Floats:
    """Bytes of a page of every layer on one GPU."""
    blocks = [layer.attention for layer in deployment.architecture.layers]
    return page_tokens * np.array([block.kv_bytes_per_token_rank(deployment.tp) for block in blocks], dtype=np.float64)


def kv_cache(
    deployment: Deployment, partition: Sequence[int], free_bytes: Sequence[int], page_tokens: int, longest: int
) -> KvCache:
    """Raises OutOfMemory where a stage cannot hold `longest` pages."""
    layer_bytes = page_bytes(deployment, page_tokens)
    stage_bytes = [int(layer_bytes[first:end].sum()) for first, end in Partition(partition).ranges]
    alone = tuple(free // size for free, size in zip(free_bytes, stage_bytes, strict=True))
    pages = min(alone)
    if pages < longest:
        missing = max(longest * size - free for free, size in zip(free_bytes, stage_bytes, strict=True))
        raise OutOfMemory(f"{pages} pages, and the longest request takes {longest}", excess=float(missing))
    return KvCache(
        num_blocks=pages,
        block_size=page_tokens,
        tokens=pages * page_tokens,
        concurrency=pages / longest,
        stage_blocks=alone,
        stage_block_bytes=tuple(stage_bytes),
        stranded_bytes=tuple(free - pages * size for free, size in zip(free_bytes, stage_bytes, strict=True)),
        group_layers=tuple(partition),
        groups=1,
    )


def kv_blocks(deployment: Deployment, free_bytes: Floats, page_tokens: int) -> Floats:
    """The same for every (stage, first layer, end layer)."""
    until = np.concatenate(([0.0], np.cumsum(page_bytes(deployment, page_tokens))))
    spans = until[None, :] - until[:, None]
    return np.where(spans > 0, np.floor(np.maximum(free_bytes, 0.0) / np.maximum(spans, 1.0)), 0.0)
