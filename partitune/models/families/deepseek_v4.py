"""DeepSeek-V4: one shared key/value vector, a short window, and compressed context.

Decision: a layer's KV is its compressed entries, one per `compress_ratio` tokens; the window of 128 tokens and the
compressor's partial sums are constant and go to `state_bytes`. The engine's cache is FP8 in 584 bytes an entry
(vLLM 0.32 `models/deepseek_v4/attention.py`, `compressor.py`). Between stages go `hc_mult` residual streams.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.models.architecture import Attention, AttentionBlock, FfnBlock
from partitune.models.attention import index_key_bytes
from partitune.models.families.deepseek import expert_shape
from partitune.models.families.grouped import draft_layers
from partitune.models.feedforward import mixture
from partitune.models.fields import Fields, read_number
from partitune.models.quantisation import MXFP4
from partitune.models.stack import Stack
from partitune.models.weight_counter import WeightCounter

_ROPE_BYTES = 2  # the rotated part of an entry stays 16-bit, the rest is FP8 with 8 bytes of scales
_SCALES = 8
_INDEXED_RATIO = 4  # only these layers choose tokens with an indexer; their compression windows overlap


@dataclass(frozen=True, slots=True)
class _Shape:
    hidden: int = read_number("hidden_size")
    heads: int = read_number("num_attention_heads", high=65_536)
    width: int = read_number("head_dim", high=65_536)
    rope: int = read_number("qk_rope_head_dim", low=0, high=65_536)
    q_rank: int = read_number("q_lora_rank")
    o_rank: int = read_number("o_lora_rank")
    o_groups: int = read_number("o_groups", high=65_536)
    window: int = read_number("sliding_window")
    index_heads: int = read_number("index_n_heads", high=65_536)
    index_width: int = read_number("index_head_dim", high=65_536)
    index_topk: int = read_number("index_topk")
    streams: int = read_number("hc_mult", high=1024)


def _shape(fields: Fields) -> _Shape:
    shape = fields.shape(_Shape)
    if shape.heads % shape.o_groups:
        raise fields.error("o_groups", f"{shape.o_groups} given, allowed is a divisor of the {shape.heads} heads")
    if shape.rope > shape.width:
        raise fields.error("qk_rope_head_dim", f"{shape.rope} given, allowed is at most head_dim {shape.width}")
    return shape


def _compressor(counter: WeightCounter, name: str, shape: _Shape, width: int, ratio: int) -> int:
    """Add a compressor's weights; returns the bytes of its partial sums per sequence."""
    overlap = 2 if ratio == _INDEXED_RATIO else 1
    counter.matrix(f"{name}compressor.wkv_wgate", 2 * overlap * width, shape.hidden, plain=True, whole=True)
    counter.vector(ratio * overlap * width, bytes_each=4, whole=True)
    counter.vector(width, whole=True)
    return overlap * ratio * 2 * overlap * width * 4


def _attention(counter: WeightCounter, shape: _Shape, ratio: int) -> AttentionBlock:
    query = shape.heads * shape.width
    counter.matrix("wq_a", shape.q_rank, shape.hidden, whole=True)
    counter.matrix("wq_b", query, shape.q_rank)
    counter.matrix("wkv", shape.width, shape.hidden, whole=True)
    counter.matrix("wo_a", shape.o_groups * shape.o_rank, query // shape.o_groups)
    counter.matrix("wo_b", shape.hidden, shape.o_groups * shape.o_rank)
    counter.vector(shape.q_rank + shape.width, whole=True)
    counter.vector(shape.heads, bytes_each=4)
    entry = (shape.width - shape.rope) + _ROPE_BYTES * shape.rope + _SCALES
    state = shape.window * entry
    kv_bytes, index_flops = 0.0, 0.0
    if ratio > 1:
        state += _compressor(counter, "", shape, shape.width, ratio)
        kv_bytes = entry / ratio
    if ratio == _INDEXED_RATIO:
        counter.matrix("indexer.wq_b", shape.index_heads * shape.index_width, shape.q_rank, whole=True)
        counter.matrix("indexer.weights_proj", shape.index_heads, shape.hidden, plain=True, whole=True)
        state += _compressor(counter, "indexer.", shape, shape.index_width, ratio)
        kv_bytes += index_key_bytes(shape.index_width) / ratio
        index_flops = 2.0 * shape.index_heads * shape.index_width / ratio
    # Mixing weights of the residual streams before attention and before the experts, float32.
    mixes = (2 + shape.streams) * shape.streams
    counter.vector(2 * (mixes * shape.streams * shape.hidden + mixes + 3), bytes_each=4, whole=True)
    return AttentionBlock(
        kind=Attention.SPARSE if ratio > 1 else Attention.SLIDING,
        **counter.totals(),
        flops_per_pair=4.0 * shape.heads * shape.width / max(ratio, 1),
        kv_bytes_per_token=round(kv_bytes) if ratio > 1 else entry,
        packed_kv=True,
        shards=1,
        heads=shape.heads,
        window=None if ratio > 1 else shape.window,
        state_bytes=state if ratio > 1 else 0,
        topk=shape.index_topk * ratio if ratio == _INDEXED_RATIO else None,
        indexer_flops_per_pair=index_flops,
    )


def read(fields: Fields) -> Stack:
    """Layers of DeepSeek-V4 by `compress_ratios`; draft layers only slide."""
    count = fields.layers()
    shape = _shape(fields)
    experts = expert_shape(fields, shape.hidden)
    expert_dtype = fields.text("expert_dtype", "fp4")  # vLLM 0.32 `models/deepseek_v4/quant_config.py`
    if expert_dtype not in {"fp4", "fp8"}:
        raise fields.wrong("expert_dtype", expert_dtype, "fp4 or fp8")
    ratios = fields.integers("compress_ratios", low=0, high=65_536)
    if len(ratios) < count:
        raise fields.error("compress_ratios", f"{len(ratios)} entries for {count} layers; one entry a layer is needed")

    def blocks(module: WeightCounter, index: int) -> tuple[AttentionBlock, FfnBlock]:
        ratio = ratios[index] if index < count else 0  # the engine's list of ratios has no draft layers
        return _attention(module.inside("self_attn"), shape, ratio), mixture(module.inside("mlp"), experts)

    return Stack(
        count,
        blocks,
        drafted=draft_layers(fields),
        halves=True,
        expert_format=MXFP4 if expert_dtype == "fp4" else None,
        handoff_base=shape.streams,
    )
