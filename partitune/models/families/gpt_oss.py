"""gpt-oss: alternating sliding and full attention with sinks, biased experts in MXFP4.

Decision: biases are counted everywhere, as in transformers 5.24 `gpt_oss`; at these widths they are 0.3 % of an expert.
"""

from __future__ import annotations

from partitune.models.architecture import Layer
from partitune.models.attention import grouped_query
from partitune.models.families.grouped import experts_per_token, head_shape, windows
from partitune.models.feedforward import ExpertShape, mixture
from partitune.models.fields import Fields
from partitune.models.quantisation import Quantisation
from partitune.models.stack import Stack


def read(fields: Fields, quantisation: Quantisation) -> Stack:
    """Reader of gpt-oss."""
    count = fields.layers()
    shape = head_shape(fields)
    number = fields.integer("num_local_experts", "num_experts", high=65_536)
    experts = ExpertShape(
        hidden=shape.hidden,
        experts=number,
        per_token=experts_per_token(fields, number),
        inner=fields.integer("intermediate_size"),
        bias=True,
        routing_bias=False,
    )
    bias = fields.flag("attention_bias", default=True)
    layers = []
    for index, window in enumerate(windows(fields, count)):
        module = f"model.layers.{index}"
        attention = grouped_query(
            quantisation,
            f"{module}.self_attn",
            shape,
            qkv_bias=bias,
            output_bias=bias,
            norm_params=shape.heads,  # attention sinks
            window=window,
        )
        layers.append(Layer(index, attention, mixture(quantisation, f"{module}.mlp", experts), 2 * shape.hidden))
    return Stack(tuple(layers))
