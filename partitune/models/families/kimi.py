"""Kimi-Linear and Kimi-K3: Kimi delta attention with latent attention every few layers, experts in a narrow latent.

Decision: the two layer lists of `linear_attn_config` (1-based) must name every layer exactly once; K3 ends with two
latent-attention layers, so no period is assumed. Only K3's routed experts are quantised: its latent projections are in
no ignore list, yet the checkpoint holds them 16-bit (SGLang 0.5.23 `models/kimi_k3.py`).
"""

from __future__ import annotations

from dataclasses import replace

from partitune.models.architecture import AttentionBlock, FfnBlock
from partitune.models.attention import LatentShape, latent
from partitune.models.families.deepseek import expert_shape
from partitune.models.families.grouped import dense_prefix, draft_layers, routed_or_dense
from partitune.models.fields import LAYERS_MAX, Fields
from partitune.models.stack import Stack
from partitune.models.state_mixers import KdaShape, kda
from partitune.models.weight_counter import WeightCounter


def _kda_layers(fields: Fields, layers: int) -> tuple[Fields, set[int]]:
    """The linear-attention section and the 0-based layers that run KDA."""
    section = fields.section("linear_attn_config")
    if section is None:
        raise fields.error("linear_attn_config", "missing; an object with kda_layers and full_attn_layers is needed")
    linear = section.integers("kda_layers", low=1, high=LAYERS_MAX)
    full = section.integers("full_attn_layers", low=1, high=LAYERS_MAX)
    if sorted(linear + full) != list(range(1, layers + 1)):
        raise section.error("kda_layers", f"with full_attn_layers it must name layers 1 to {layers} once each")
    return section, {number - 1 for number in linear}


def read(fields: Fields) -> Stack:
    """Reader of Kimi-Linear and the text model of Kimi-K3."""
    count = fields.layers()
    section, linear = _kda_layers(fields, count)
    shape = fields.shape(LatentShape)
    delta = section.shape(KdaShape, hidden=shape.hidden)
    gated = fields.flag("mla_use_output_gate", default=False)
    experts = replace(
        expert_shape(fields, shape.hidden),
        latent=fields.integer_or_none("routed_expert_hidden_size"),
        latent_norm=fields.flag("latent_moe_use_norm", default=False),
    )
    ffn = routed_or_dense(fields, experts, dense_prefix(fields, count))
    residual_block = fields.integer_or_none("attn_res_block_size", high=LAYERS_MAX)

    def blocks(module: WeightCounter, index: int) -> tuple[AttentionBlock, FfnBlock]:
        counter = module.inside("self_attn")
        attention = kda(counter, delta) if index in linear else latent(counter, shape, output_gate=gated)
        return attention, ffn(module.inside("mlp"), index)

    return Stack(
        count,
        blocks,
        # before attention and MLP; attention residuals add a norm and a score vector for each
        norms=2 if residual_block is None else 6,
        drafted=draft_layers(fields),
        residual_block=residual_block,
    )
