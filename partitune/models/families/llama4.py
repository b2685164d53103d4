"""Llama 4: chunked attention with full attention every fourth layer, experts every second.

Decision: chunked attention is entered as sliding with the chunk as its window: both bound KV and work per token by it.
"""

from __future__ import annotations

from partitune.models.architecture import AttentionBlock, FfnBlock
from partitune.models.attention import grouped_query
from partitune.models.families.grouped import experts_and_visits, head_shape, routed_or_dense
from partitune.models.feedforward import ExpertShape
from partitune.models.fields import Fields
from partitune.models.stack import Stack
from partitune.models.weight_counter import WeightCounter


def read(fields: Fields) -> Stack:
    """Reader of the text model of Llama 4; rules of transformers 5.24 `llama4`."""
    count = fields.layers()
    shape = head_shape(fields)
    number = experts_and_visits(fields, "num_local_experts")
    inner = fields.integer("intermediate_size")
    experts = ExpertShape(shape.hidden, *number, inner, shared=inner, routing_bias=False)
    step = fields.integer("interleave_moe_layer_step", default=1, low=1, high=count)
    routed = [(layer + 1) % step == 0 for layer in range(count)]
    ffn = routed_or_dense(fields, experts, routed, fields.integer("intermediate_size_mlp", default=inner))
    chunk = fields.integer_or_none("attention_chunk_size")
    every = fields.integer("no_rope_layer_interval", default=4, high=4096)
    rotated = fields.per_layer("no_rope_layers", count, {0, 1}) if fields.data.get("no_rope_layers") else None
    bias = fields.flag("attention_bias", default=False)

    def blocks(module: WeightCounter, index: int) -> tuple[AttentionBlock, FfnBlock]:
        local = rotated[index] == 1 if rotated is not None else (index + 1) % every != 0
        attention = grouped_query(
            module.inside("self_attn"), shape, qkv_bias=bias, output_bias=bias, window=chunk if local else None
        )
        return attention, ffn(module.inside("feed_forward"), index)

    return Stack(count, blocks)
