"""Llama 4: chunked attention with full attention every fourth layer, experts every second.

Decision: chunked attention is entered as sliding with the chunk as its window: both bound KV and work per token by it.
"""

from __future__ import annotations

from partitune.models.architecture import Layer
from partitune.models.attention import grouped_query
from partitune.models.families.grouped import experts_and_visits, head_shape
from partitune.models.feedforward import ExpertShape, experts_or_dense
from partitune.models.fields import Fields
from partitune.models.quantisation import Quantisation
from partitune.models.stack import Stack


def read(fields: Fields, quantisation: Quantisation) -> Stack:
    """Reader of the text model of Llama 4; rules of transformers 5.24 `llama4`."""
    count = fields.layers()
    shape = head_shape(fields)
    number = experts_and_visits(fields, "num_local_experts")
    inner = fields.integer("intermediate_size")
    experts = ExpertShape(shape.hidden, *number, inner, shared=inner, routing_bias=False)
    step = fields.integer("interleave_moe_layer_step", default=1, low=1, high=count)
    dense_inner = fields.integer("intermediate_size_mlp", default=inner)
    chunk = fields.integer_or_none("attention_chunk_size")
    every = fields.integer("no_rope_layer_interval", default=4, high=4096)
    rotated = fields.per_layer("no_rope_layers", count, {0, 1}) if fields.data.get("no_rope_layers") else None
    bias = fields.flag("attention_bias", default=False)
    layers = []
    for index in range(count):
        module = f"model.layers.{index}"
        local = rotated[index] == 1 if rotated is not None else (index + 1) % every != 0
        attention = grouped_query(
            quantisation,
            f"{module}.self_attn",
            shape,
            qkv_bias=bias,
            output_bias=bias,
            window=chunk if local else None,
        )
        routed = (index + 1) % step == 0
        ffn = experts_or_dense(quantisation, f"{module}.feed_forward", experts, dense_inner, routed=routed)
        layers.append(Layer(index, attention, ffn, 2 * shape.hidden))
    return Stack(tuple(layers))
