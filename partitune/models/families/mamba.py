"""Jamba: Mamba with full attention every eighth layer, experts every second.

Decision: period and offset come from the config, as in transformers 5.24 `jamba`; a period that leaves no attention
layer is allowed there and here.
"""

from __future__ import annotations

from partitune.models.architecture import AttentionBlock, FfnBlock
from partitune.models.attention import grouped_query
from partitune.models.families.grouped import head_shape, routed_or_dense, visits
from partitune.models.feedforward import ExpertShape
from partitune.models.fields import LAYERS_MAX, Fields
from partitune.models.stack import Stack
from partitune.models.state_mixers import MambaShape, mamba
from partitune.models.weight_counter import WeightCounter


def _periodic(fields: Fields, name: str, period: int, offset: int, layers: int) -> list[bool]:
    every = fields.integer(f"{name}_period", default=period, high=LAYERS_MAX)
    first = fields.integer(f"{name}_offset", default=offset, low=0, high=LAYERS_MAX)
    if first >= every:
        raise fields.error(f"{name}_offset", f"{first} given, allowed is 0 to {every - 1} ({name}_period is {every})")
    return [layer % every == first for layer in range(layers)]


def read(fields: Fields) -> Stack:
    """Layers of Jamba: attention and experts each by a period and an offset of the config."""
    count = fields.layers()
    shape = head_shape(fields)
    inner = fields.integer("intermediate_size")
    rank = None if fields.data.get("mamba_dt_rank") == "auto" else fields.integer_or_none("mamba_dt_rank")
    mixer = fields.shape(
        MambaShape,
        hidden=shape.hidden,
        inner=shape.hidden * fields.integer("mamba_expand", default=2, high=64),
        dt_rank=rank or -(-shape.hidden // 16),
    )
    full = _periodic(fields, "attn_layer", 8, 4, count)
    routed = _periodic(fields, "expert_layer", 2, 1, count)
    number = fields.integer("num_experts", "num_local_experts", default=16, high=65_536)
    experts = ExpertShape(shape.hidden, number, visits(fields, number) if number > 1 else 1, inner, routing_bias=False)
    ffn = routed_or_dense(fields, experts, [layer and number > 1 for layer in routed], inner)

    def blocks(module: WeightCounter, index: int) -> tuple[AttentionBlock, FfnBlock]:
        if full[index]:
            attention = grouped_query(module.inside("self_attn"), shape)
        else:
            attention = mamba(module.inside("mamba"), mixer)
        return attention, ffn(module.inside("feed_forward"), index)

    return Stack(count, blocks)
