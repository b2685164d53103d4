"""Qwen3-Next, Qwen3.5 and Qwen3.8: gated delta nets with gated full attention every few layers.

Decision: dense (27B) and mixture variants are one reader, told apart by `num_experts`. The MTP module is a layer of the
same kind with full attention (vLLM 0.32 `model_executor/models/qwen3_next_mtp.py`, `qwen3_5_mtp.py`).
"""

from __future__ import annotations

from partitune.models.architecture import AttentionBlock, FfnBlock
from partitune.models.attention import grouped_query
from partitune.models.families.grouped import experts_and_visits, head_shape
from partitune.models.feedforward import ExpertShape, dense, mixture
from partitune.models.fields import Fields
from partitune.models.stack import Stack
from partitune.models.state_mixers import DeltaNetShape, gated_delta_net
from partitune.models.weight_counter import WeightCounter

_LINEAR, _FULL = "linear_attention", "full_attention"


def _linear_layers(fields: Fields, layers: int) -> list[bool]:
    kinds = fields.per_layer("layer_types", layers, {_LINEAR, _FULL})
    if kinds is not None:
        return [kind == _LINEAR for kind in kinds]
    every = fields.integer("full_attention_interval", default=4, high=layers)
    return [(layer + 1) % every != 0 for layer in range(layers)]


def _experts(fields: Fields, hidden: int) -> ExpertShape | None:
    if not fields.has("num_experts"):
        return None
    inner = fields.integer("moe_intermediate_size")
    shared = fields.integer("shared_expert_intermediate_size", default=inner, low=0)
    return ExpertShape(
        hidden,
        *experts_and_visits(fields, "num_experts"),
        inner,
        shared=shared,
        shared_gate=shared > 0,
        routing_bias=False,
    )


def read(fields: Fields) -> Stack:
    """Reader of Qwen3-Next and its successors."""
    count = fields.layers()
    shape = head_shape(fields)
    net = fields.shape(DeltaNetShape)
    experts = _experts(fields, shape.hidden)
    inner = fields.integer("intermediate_size") if experts is None else 0
    bias = fields.flag("attention_bias", default=False)
    gate = shape.heads * shape.width if fields.flag("attn_output_gate", default=True) else 0
    linear = _linear_layers(fields, count)
    # Qwen3-Next's config has no key for the one module its checkpoint holds; the engine assumes it as well.
    assumed = 1 if fields.text("model_type") == "qwen3_next" else 0
    drafted = fields.integer("mtp_num_hidden_layers", "num_nextn_predict_layers", default=assumed, low=0, high=64)

    def blocks(module: WeightCounter, index: int) -> tuple[AttentionBlock, FfnBlock]:
        if index < count and linear[index]:
            attention = gated_delta_net(module.inside("linear_attn"), net)
        else:
            attention = grouped_query(
                module.inside("self_attn"),
                shape,
                qkv_bias=bias,
                output_bias=bias,
                norm_params=2 * shape.width,
                gate_outputs=gate,
            )
        mlp = module.inside("mlp")
        return attention, dense(mlp, shape.hidden, inner) if experts is None else mixture(mlp, experts)

    return Stack(count, blocks, drafted=drafted, fusions=min(drafted, 1))
