"""Attention blocks whose memory grows with the context: grouped-query and multi-head latent attention.

Decision: two builders cover every family; what differs between families (biases, norms, gates, windows, indexers) is an
argument, named as the engines name it. KV bytes are those of a 16-bit cache; what another type of cache
makes of them is the engines' to say.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.models.architecture import Attention, AttentionBlock
from partitune.models.fields import read_number, read_optional
from partitune.models.weight_counter import WeightCounter

KV_ELEMENT_BYTES = 2


def index_key_bytes(width: int) -> int:
    """Bytes a token of an indexer's key cache: FP8 with one float32 scale per 128 values.

    vLLM 0.32 `model_executor/models/deepseek_v2.py`, class Indexer.
    """
    return width + -(-width // 128) * 4


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Shape of grouped-query attention: counts of heads over the whole layer, widths in elements."""

    hidden: int
    heads: int
    kv_heads: int
    width: int  # of a query and key head
    value_width: int = 0  # of a value head; 0: the same

    @property
    def values(self) -> int:
        """Width of a value head."""
        return self.value_width or self.width


@dataclass(frozen=True, slots=True)
class Indexer:
    """The branch of sparse attention that chooses which context tokens a query reads."""

    heads: int = read_number("index_n_heads", high=65_536)
    width: int = read_number("index_head_dim", high=65_536)
    topk: int = read_number("index_topk")  # tokens


def grouped_query(
    counter: WeightCounter,
    shape: HeadShape,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    norm_params: int = 0,
    gate_outputs: int = 0,
    window: int | None = None,
    owns_kv: bool = True,
    indexer: Indexer | None = None,
) -> AttentionBlock:
    """Multi-head or grouped-query attention, over the whole context, a window, or blocks chosen by an indexer.

    Args:
        counter: an empty one of the block's module, `model.layers.3.self_attn`.
        shape: heads and widths.
        qkv_bias: biases on query, key and value projections.
        output_bias: bias on the output projection.
        norm_params: parameters of query/key norms and attention sinks.
        gate_outputs: width of an output gate computed from the block's input.
        window: tokens, for sliding attention.
        owns_kv: False when the layer reads the cache of an earlier one.
        indexer: MiniMax-M3's block indexer.
    """
    query, key, value = (shape.heads * shape.width, shape.kv_heads * shape.width, shape.kv_heads * shape.values)
    counter.matrix("q_proj", query, shape.hidden, bias=qkv_bias)
    if owns_kv:
        counter.matrix("k_proj", key, shape.hidden, bias=qkv_bias)
        counter.matrix("v_proj", value, shape.hidden, bias=qkv_bias)
    counter.matrix("o_proj", shape.hidden, shape.heads * shape.values, bias=output_bias)
    if gate_outputs:
        counter.matrix("g_proj", gate_outputs, shape.hidden)
    counter.vector(norm_params)
    kv_bytes, index_bytes = KV_ELEMENT_BYTES * (key + value) if owns_kv else 0, 0
    if indexer is not None:
        counter.matrix("index_q_proj", indexer.heads * indexer.width, shape.hidden)
        # One key head for all ranks (vLLM 0.32 `layers/linear.py`, MinimaxM3QKVParallelLinearWithIndexer).
        counter.matrix("index_k_proj", indexer.width, shape.hidden, whole=True)
        counter.vector(2 * indexer.width, whole=True)
        index_bytes = KV_ELEMENT_BYTES * indexer.width
    plain = Attention.FULL if window is None else Attention.SLIDING
    return AttentionBlock(
        kind=Attention.SPARSE if indexer else plain,
        **counter.totals(),
        flops_per_pair=2.0 * shape.heads * (shape.width + shape.values),
        kv_bytes_per_token=kv_bytes + index_bytes,
        index_bytes_per_token=index_bytes,
        key_width=shape.width if owns_kv and shape.values != shape.width else 0,
        shards=shape.kv_heads,
        heads=shape.heads,
        window=window,
        topk=indexer.topk if indexer else None,
        indexer_flops_per_pair=2.0 * indexer.heads * indexer.width if indexer else 0.0,
    )


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Shape of multi-head latent attention."""

    hidden: int = read_number("hidden_size")
    heads: int = read_number("num_attention_heads", high=65_536)
    q_rank: int | None = read_optional("q_lora_rank")  # None: the query is projected straight from the hidden state
    kv_rank: int = read_number("kv_lora_rank")
    nope: int = read_number("qk_nope_head_dim", high=65_536)
    rope: int = read_number("qk_rope_head_dim", low=0, high=65_536)
    value: int = read_number("v_head_dim", high=65_536)


def latent(
    counter: WeightCounter,
    shape: LatentShape,
    *,
    qkv_bias: bool = False,
    output_gate: bool = False,
    indexer: Indexer | None = None,
    owns_index: bool = True,
    owns_kv: bool = True,
) -> AttentionBlock:
    """Multi-head latent attention, dense or over tokens chosen by an indexer; `counter` is an empty one of its module.

    The latent is one KV head: every TP rank holds it whole, and with it the projections into the two latents and the
    whole indexer. `flops_per_pair` is that of expanded keys and values, which the engines use in prefill; sparse
    attention works on the latent itself (all of it: vLLM 0.32 `deepseek_v2.py`, ReplicatedLinear and disable_tp). A
    layer that does not own its index, or its KV, reuses an earlier layer's.
    """
    width = shape.nope + shape.rope
    if shape.q_rank is None:
        counter.matrix("q_proj", shape.heads * width, shape.hidden)
    else:
        counter.matrix("q_a_proj", shape.q_rank, shape.hidden, bias=qkv_bias, whole=True)
        counter.matrix("q_b_proj", shape.heads * width, shape.q_rank)
        counter.vector(shape.q_rank, whole=True)
    if owns_kv:
        counter.matrix("kv_a_proj_with_mqa", shape.kv_rank + shape.rope, shape.hidden, bias=qkv_bias, whole=True)
        counter.vector(shape.kv_rank, whole=True)
    counter.matrix("kv_b_proj", shape.heads * (shape.nope + shape.value), shape.kv_rank)
    counter.matrix("o_proj", shape.hidden, shape.heads * shape.value, bias=qkv_bias)
    if output_gate:
        counter.matrix("g_proj", shape.heads * shape.value, shape.hidden)
    kv_bytes = KV_ELEMENT_BYTES * (shape.kv_rank + shape.rope) if owns_kv else 0
    per_head, index_bytes = width + shape.value, 0
    index_flops = 0.0
    if indexer is not None:
        per_head = 2 * shape.kv_rank + shape.rope
        if owns_index:
            index_bytes = index_key_bytes(indexer.width)
            index_flops = 2.0 * indexer.heads * indexer.width
            counter.matrix("indexer.wq_b", indexer.heads * indexer.width, shape.q_rank or shape.hidden, whole=True)
            counter.matrix("indexer.wk", indexer.width, shape.hidden, plain=True, whole=True)
            counter.matrix("indexer.weights_proj", indexer.heads, shape.hidden, plain=True, whole=True)
            counter.vector(2 * indexer.width, whole=True)
    return AttentionBlock(
        kind=Attention.SPARSE if indexer else Attention.MLA,
        **counter.totals(),
        flops_per_pair=2.0 * shape.heads * per_head,
        kv_bytes_per_token=kv_bytes + index_bytes,
        index_bytes_per_token=index_bytes,
        shards=1,
        heads=shape.heads,
        topk=indexer.topk if indexer else None,
        indexer_flops_per_pair=index_flops,
    )
