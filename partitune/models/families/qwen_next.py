"""Qwen3-Next, Qwen3.5 and Qwen3.8: gated delta nets with gated full attention every few layers.

Decision: dense (27B) and mixture variants are one reader, told apart by `num_experts`. The MTP module is a layer of the
same kind with full attention (vLLM 0.32 `model_executor/models/qwen3_next_mtp.py`, `qwen3_5_mtp.py`).
"""

from __future__ import annotations

from partitune.models.architecture import Layer
from partitune.models.attention import grouped_query
from partitune.models.families.grouped import experts_and_visits, head_shape
from partitune.models.feedforward import ExpertShape, dense, mixture
from partitune.models.fields import Fields
from partitune.models.quantisation import Quantisation
from partitune.models.stack import Stack, drafter
from partitune.models.state_mixers import DeltaNetShape, gated_delta_net, state_element_bytes

_LINEAR, _FULL = "linear_attention", "full_attention"


def _linear_layers(fields: Fields, layers: int) -> list[bool]:
    kinds = fields.per_layer("layer_types", layers, {_LINEAR, _FULL})
    if kinds is not None:
        return [kind == _LINEAR for kind in kinds]
    every = fields.integer("full_attention_interval", default=4, high=layers)
    return [(layer + 1) % every != 0 for layer in range(layers)]


def _net_shape(fields: Fields, hidden: int) -> DeltaNetShape:
    return DeltaNetShape(
        hidden=hidden,
        key_heads=fields.integer("linear_num_key_heads", high=65_536),
        value_heads=fields.integer("linear_num_value_heads", high=65_536),
        key_width=fields.integer("linear_key_head_dim", high=65_536),
        value_width=fields.integer("linear_value_head_dim", high=65_536),
        kernel=fields.integer("linear_conv_kernel_dim", high=1024),
        # Qwen3.5 names float32; Qwen3-Next says nothing, so the engine takes 16-bit (vLLM 0.32 `models/config.py`).
        state_element_bytes=state_element_bytes(fields, "mamba_ssm_dtype", "auto"),
    )


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


def read(fields: Fields, quantisation: Quantisation) -> Stack:
    """Reader of Qwen3-Next and its successors."""
    count = fields.layers()
    shape = head_shape(fields)
    net = _net_shape(fields, shape.hidden)
    experts = _experts(fields, shape.hidden)
    inner = fields.integer("intermediate_size") if experts is None else 0
    bias = fields.flag("attention_bias", default=False)
    gate = shape.heads * shape.width if fields.flag("attn_output_gate", default=True) else 0

    def layer(index: int, *, linear: bool) -> Layer:
        module = f"model.layers.{index}"
        if linear:
            attention = gated_delta_net(quantisation, f"{module}.linear_attn", net)
        else:
            attention = grouped_query(
                quantisation,
                f"{module}.self_attn",
                shape,
                qkv_bias=bias,
                output_bias=bias,
                norm_params=2 * shape.width,
                gate_outputs=gate,
            )
        if experts is not None:
            ffn = mixture(quantisation, f"{module}.mlp", experts)
        else:
            ffn = dense(quantisation, f"{module}.mlp", shape.hidden, inner)
        return Layer(index, attention, ffn, 2 * shape.hidden)

    layers = tuple(layer(index, linear=linear) for index, linear in enumerate(_linear_layers(fields, count)))
    # Qwen3-Next's config has no key for the one module its checkpoint holds; the engine assumes it as well.
    assumed = 1 if fields.text("model_type") == "qwen3_next" else 0
    drafted = fields.integer("mtp_num_hidden_layers", "num_nextn_predict_layers", default=assumed, low=0, high=64)
    extra = [layer(count + number, linear=False) for number in range(drafted)]
    return Stack(layers, drafter(quantisation, extra, shape.hidden, fusions=1))
