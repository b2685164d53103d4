"""What context parallelism changes in a batch of one rank, and what its ranks tell one another.

Decision: prefill context ranks each compute their part of every prompt chunk and, where the cache is whole on each of
them, their part of the decodes (vLLM 0.32 `config/parallel.py`, pcp_shard_decode_requests), so a rank sees a smaller
batch and the blocks need not know. Keys and values of a chunk are gathered by all of them; ranks that share a dealt-out
cache gather the queries of a decode and scatter what they found (`dcp_comm_backend` ag_rs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partitune.costs.collectives import TensorParallelGroup
from partitune.costs.cost_model import Batch
from partitune.hardware.gpus import Gpu
from partitune.hardware.parallelism import Layout
from partitune.models.architecture import STATE_KINDS, Attention, AttentionBlock

#: Widths of a query against the compressed cache of latent attention and of what comes back (published MLA models).
_LATENT_WIDTHS = 576 + 512


class ContextRanks:
    """Prefill and decode context parallelism of one stage."""

    __slots__ = ("_decode", "_kv_bytes", "_layout", "_prefill", "_query_bytes")

    def __init__(self, gpu: Gpu, layout: Layout, attention: Sequence[AttentionBlock]) -> None:
        self._layout = layout
        self._prefill, self._decode = TensorParallelGroup(gpu, layout.pcp), TensorParallelGroup(gpu, layout.dcp)
        self._kv_bytes = [block.kv_bytes_per_token_rank(layout.tp) for block in attention]
        self._query_bytes = [_query_bytes(block) * layout.dcp / layout.tp for block in attention]

    def share_of(self, batch: Batch) -> Batch:
        """What of `batch` one rank computes."""
        ranks = self._layout.pcp
        if ranks == 1:
            return batch
        share = replace(
            batch, prefill_tokens=-(-batch.prefill_tokens // ranks), prefill_pairs=batch.prefill_pairs / ranks
        )
        if self._layout.dcp > 1:
            return share
        return replace(
            share,
            decode_tokens=-(-batch.decode_tokens // ranks),
            decode_context=-(-batch.decode_context // ranks),
            padding=-(-batch.padding // ranks),
        )

    def gathering_s(self, batch: Batch) -> list[float]:
        """Seconds per attention block that the ranks of a whole `batch` spend on telling one another."""
        if self._layout.pcp == self._layout.dcp == 1:
            return [0.0] * len(self._kv_bytes)
        seconds = []
        for kv_bytes, query_bytes in zip(self._kv_bytes, self._query_bytes, strict=True):
            told = self._prefill.all_gather_s(batch.prefill_tokens * kv_bytes) if batch.prefill_tokens else 0.0
            if batch.decode_tokens and query_bytes and self._layout.dcp > 1:
                told += 2 * self._decode.all_gather_s(batch.decode_tokens * query_bytes / 2)
            seconds.append(told)
        return seconds


def _query_bytes(block: AttentionBlock) -> float:
    """Bytes of all heads' queries of one token and of what comes back; 0 where the cache is not dealt out."""
    if block.kind in STATE_KINDS or block.kind is Attention.NONE:
        return 0.0
    latent = block.shards == 1 and block.kind in (Attention.MLA, Attention.SPARSE)
    widths = _LATENT_WIDTHS if latent else block.flops_per_pair / (2 * block.heads)  # 4 FLOPs a head and width
    return 2.0 * block.heads * widths
