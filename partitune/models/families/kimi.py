"""Kimi-Linear and Kimi-K3: Kimi delta attention with latent attention every few layers, experts in a narrow latent.

Decision: the two layer lists of `linear_attn_config` (1-based) must name every layer exactly once; K3 ends with two
latent-attention layers, so no period is assumed. Only K3's routed experts are quantised: its latent projections are in
no ignore list, yet the checkpoint holds them 16-bit (SGLang 0.5.23 `models/kimi_k3.py`).
"""

from __future__ import annotations

from dataclasses import replace

from partitune.models.architecture import AttentionBlock, Layer
from partitune.models.attention import latent
from partitune.models.families.deepseek import expert_shape, latent_shape
from partitune.models.families.grouped import dense_prefix, draft_layers
from partitune.models.feedforward import experts_or_dense
from partitune.models.fields import LAYERS_MAX, Fields
from partitune.models.quantisation import Quantisation
from partitune.models.stack import Stack, drafter
from partitune.models.state_mixers import kda


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


def read(fields: Fields, quantisation: Quantisation) -> Stack:
    """Reader of Kimi-Linear and the text model of Kimi-K3."""
    count = fields.layers()
    section, linear = _kda_layers(fields, count)
    shape = latent_shape(fields)
    heads = section.integer("num_heads", high=65_536)
    width = section.integer("head_dim", high=65_536)
    kernel = section.integer("short_conv_kernel_size", high=1024)
    full_rank = section.flag("use_full_rank_gate", default=False)
    gated = fields.flag("mla_use_output_gate", default=False)
    experts = replace(
        expert_shape(fields, shape.hidden),
        latent=fields.integer_or_none("routed_expert_hidden_size"),
        latent_norm=fields.flag("latent_moe_use_norm", default=False),
    )
    routed = dense_prefix(fields, count)
    inner = experts.inner if all(routed) else fields.integer("intermediate_size")
    residual_block = fields.integer_or_none("attn_res_block_size", high=LAYERS_MAX)
    drafted = draft_layers(fields)
    # norms before attention and MLP; attention residuals add a norm and a score vector for each
    norms = (2 if residual_block is None else 6) * shape.hidden

    def layer(index: int, *, sparse: bool) -> Layer:
        module = f"model.layers.{index}"
        attention: AttentionBlock
        if index in linear:
            attention = kda(
                quantisation,
                f"{module}.self_attn",
                hidden=shape.hidden,
                heads=heads,
                width=width,
                kernel=kernel,
                full_rank_gate=full_rank,
            )
        else:
            attention = latent(quantisation, f"{module}.self_attn", shape, output_gate=gated)
        ffn = experts_or_dense(quantisation, f"{module}.mlp", experts, inner, routed=sparse)
        return Layer(index, attention, ffn, norms)

    layers = tuple(layer(index, sparse=routed[index]) for index in range(count))
    extra = [layer(count + number, sparse=True) for number in range(drafted)]
    return Stack(
        layers,
        drafter(quantisation, extra, shape.hidden, fusions=drafted),
        residual_block=residual_block,
    )
