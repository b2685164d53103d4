"""Jamba: Mamba with full attention every eighth layer, experts every second.

Decision: period and offset come from the config, as in transformers 5.24 `jamba`; a period that leaves no attention
layer is allowed there and here.
"""

from __future__ import annotations

from partitune.models.architecture import Layer
from partitune.models.attention import grouped_query
from partitune.models.families.grouped import head_shape, visits
from partitune.models.feedforward import ExpertShape, experts_or_dense
from partitune.models.fields import LAYERS_MAX, Fields
from partitune.models.quantisation import Quantisation
from partitune.models.stack import Stack
from partitune.models.state_mixers import MambaShape, mamba, state_element_bytes


def _mamba_shape(fields: Fields, hidden: int) -> MambaShape:
    rank = None if fields.data.get("mamba_dt_rank") == "auto" else fields.integer_or_none("mamba_dt_rank")
    return MambaShape(
        hidden=hidden,
        inner=hidden * fields.integer("mamba_expand", default=2, high=64),
        state=fields.integer("mamba_d_state", default=16, high=65_536),
        kernel=fields.integer("mamba_d_conv", default=4, high=1024),
        dt_rank=rank or -(-hidden // 16),
        state_element_bytes=state_element_bytes(fields, "mamba_ssm_dtype", "auto"),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        bias=fields.flag("mamba_proj_bias", default=False),
    )


def _periodic(fields: Fields, name: str, period: int, offset: int, layers: int) -> list[bool]:
    every = fields.integer(f"{name}_period", default=period, high=LAYERS_MAX)
    first = fields.integer(f"{name}_offset", default=offset, low=0, high=LAYERS_MAX)
    if first >= every:
        raise fields.error(f"{name}_offset", f"{first} given, allowed is 0 to {every - 1} ({name}_period is {every})")
    return [layer % every == first for layer in range(layers)]


def read(fields: Fields, quantisation: Quantisation) -> Stack:
    """Layers of Jamba: attention and experts each by a period and an offset of the config."""
    count = fields.layers()
    shape = head_shape(fields)
    inner = fields.integer("intermediate_size")
    mixer = _mamba_shape(fields, shape.hidden)
    full = _periodic(fields, "attn_layer", 8, 4, count)
    routed = _periodic(fields, "expert_layer", 2, 1, count)
    number = fields.integer("num_experts", "num_local_experts", default=16, high=65_536)
    experts = ExpertShape(shape.hidden, number, visits(fields, number) if number > 1 else 1, inner, routing_bias=False)
    layers = []
    for index in range(count):
        module = f"model.layers.{index}"
        if full[index]:
            attention = grouped_query(quantisation, f"{module}.self_attn", shape)
        else:
            attention = mamba(quantisation, f"{module}.mamba", mixer)
        sparse = routed[index] and number > 1
        ffn = experts_or_dense(quantisation, f"{module}.feed_forward", experts, inner, routed=sparse)
        layers.append(Layer(index, attention, ffn, 2 * shape.hidden))
    return Stack(tuple(layers))
