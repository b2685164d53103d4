"""SGLang's KV pool: how it shrinks over stages.

Decision: the pool is the least free memory of any stage divided by the largest cell of any stage, even when these are
different stages. Layers with a sliding window are counted like full ones (SGLang gives them a smaller pool of
their own, `swa_full_tokens_ratio`).

Source: SGLang 0.5.23 `srt/mem_cache/kv_cache_configurator.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partitune.costs.cost_model import Floats
from partitune.engines.deployment import Deployment
from partitune.engines.flags import whole_number
from partitune.engines.memory import KvCache
from partitune.engines.sglang.defaults import effective_flags
from partitune.engines.sglang.kv_layouts import token_bytes
from partitune.errors import InfeasibleSpace, OutOfMemory
from partitune.hardware.gpus import GIB
from partitune.models.architecture import STATE_KINDS, AttentionBlock
from partitune.partition import Partition

_STATE_TYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
_STATE_TO_KV = 0.9  # mamba_full_memory_ratio where no flag says so


def kv_cache(deployment: Deployment, partition: Sequence[int], free_bytes: Sequence[int]) -> KvCache:
    """Pool of one partition: the least free memory over the largest cell; a block is a page."""
    flags = effective_flags(deployment)
    page = whole_number(flags, "page_size", 1)
    ranges = Partition(partition).ranges
    token_bytes, state_bytes, workspace = _layer_bytes(deployment)
    cells = [int(cell + workspace) if (cell := token_bytes[i:j].sum()) else 0 for i, j in ranges]
    states = [int(state_bytes[i:j].sum()) for i, j in ranges]
    if not any(cells) or (min(cells) == 0 and not any(states)):
        raise InfeasibleSpace(
            f"stage {cells.index(0)} owns no layer that keeps KV per token; SGLang cannot size its pool"
        )
    slots = _state_slots(deployment, min(free_bytes), max(states))
    pool = min(free_bytes) - slots * max(states)
    pages = min(max(pool, 0) // (max(cells) * page), whole_number(flags, "max_total_tokens", 1 << 62) // page)
    # A hybrid's stage without attention sets no limit of its own.
    alone = [max(pool, 0) // (cell * page) if cell else None for cell in cells]
    stage_pages = tuple(max(filter(None, alone), default=pages) if own is None else own for own in alone)
    longest = whole_number(flags, "context_length", deployment.architecture.max_position)
    if pages == 0:
        raise OutOfMemory(
            f"the tightest stage has {min(free_bytes) / GIB:.2f} GiB for KV and state: not one page fits",
            excess=float(max(cells) * page - pool),
        )
    return KvCache(
        num_blocks=pages,
        block_size=page,
        tokens=pages * page,
        concurrency=pages * page / longest,
        stage_blocks=stage_pages,
        stage_block_bytes=tuple(cell * page for cell in cells),
        stranded_bytes=tuple(
            int(free) - pages * page * cell - slots * state
            for free, cell, state in zip(free_bytes, cells, states, strict=True)
        ),
        group_layers=tuple(int((token_bytes[i:j] > 0).sum()) for i, j in ranges),
        groups=1,
    )


def kv_blocks(deployment: Deployment, free_bytes: Floats) -> Floats:
    """Pages that a stage could hold by itself; the pool is smaller when another stage has less free memory."""
    page = whole_number(effective_flags(deployment), "page_size", 1)
    token_bytes, state_bytes, workspace = _layer_bytes(deployment)
    prefix = np.concatenate(([0], np.cumsum(token_bytes)))
    cells = prefix[None, :] - prefix[:, None]
    cells = np.where(cells > 0, cells + workspace, cells)
    share = 1 / (1 + _state_to_kv(deployment)) if state_bytes.any() else 1.0
    pages = np.floor(np.maximum(free_bytes, 0.0) * share / (np.maximum(cells, 1) * page)[None])
    # A stage of a hybrid with states alone sets no limit of its own; one that keeps nothing has none at all.
    states = np.concatenate(([0], np.cumsum(state_bytes)))
    without = np.where(states[None, :] - states[:, None] > 0, np.inf, 0.0)
    return np.where(cells[None] > 0, pages, without[None])


def _layer_bytes(deployment: Deployment) -> tuple[Floats, Floats, float]:
    """Bytes per token and bytes of state per sequence of every layer on one rank, and bytes per token of a stage.

    Decode context parallelism deals the tokens out: a rank keeps one of `dcp`, and the keys of an indexer whole.
    """
    blocks = [layer.attention for layer in deployment.architecture.layers]
    dtype, dcp = str(effective_flags(deployment)["kv_cache_dtype"]), deployment.layout.dcp
    kept = [token_bytes(deployment, block, dtype) for block in blocks]
    tokens = [round(each.dealt / dcp) + each.whole for each in kept]
    states = [state_bytes(deployment, block) // deployment.tp for block in blocks]
    workspace = max((each.workspace for each in kept), default=0.0)
    return np.array(tokens, dtype=np.float64), np.array(states, dtype=np.float64), workspace


def rank_cache_bytes(deployment: Deployment) -> tuple[float, ...]:
    """Bytes of one token, or of the state, of every layer on one rank, before tokens are dealt out to context ranks."""
    dtype = str(effective_flags(deployment)["kv_cache_dtype"])
    blocks = [layer.attention for layer in deployment.architecture.layers]
    kept = (token_bytes(deployment, block, dtype) for block in blocks)
    states = (state_bytes(deployment, block) / deployment.tp for block in blocks)
    return tuple(each.dealt + each.whole + state for each, state in zip(kept, states, strict=True))


def state_bytes(deployment: Deployment, block: AttentionBlock) -> int:
    """Bytes of one sequence's state in one layer: the recurrent part in `mamba_ssm_dtype` where that is given."""
    if block.kind not in STATE_KINDS:
        return 0
    return block.state_bytes_in(_STATE_TYPES.get(str(deployment.flags.get("mamba_ssm_dtype"))), None)


def _state_to_kv(deployment: Deployment) -> float:
    given = deployment.flags.get("mamba_full_memory_ratio")
    return _STATE_TO_KV if given is None else float(given)


def _state_slots(deployment: Deployment, free: int, state_bytes: int) -> int:
    """Slots for fixed states, the same on every stage: so many as the fullest stage (`state_bytes` a slot) can have."""
    if state_bytes == 0:
        return 0
    ratio = _state_to_kv(deployment)
    most = int(free * ratio / (1 + ratio)) // state_bytes
    return whole_number(deployment.flags, "max_mamba_cache_size", most)
