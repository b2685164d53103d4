"""Mixture-of-experts decoders with grouped-query attention: Mixtral, Qwen2/3-MoE, GLM-4.5 to 4.7, MiniMax-M2, gpt-oss.

Decision: one reader; a family is a row of switches, taken from its vLLM 0.32 model file.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.models.architecture import Layer
from partitune.models.attention import grouped_query
from partitune.models.families.grouped import dense_prefix, draft_layers, experts_and_visits, head_shape, windows
from partitune.models.feedforward import ExpertShape, experts_or_dense
from partitune.models.fields import Fields
from partitune.models.quantisation import Quantisation
from partitune.models.stack import FamilyReader, Stack, drafter


@dataclass(frozen=True, slots=True)
class Switches:
    """How a mixture family departs from Mixtral."""

    qkv_bias: bool = False  # attention_bias is ignored and always on
    output_bias: bool = False  # attention_bias also means a bias on o_proj
    head_norms: bool = False  # RMSNorm on every query and key head, when use_qk_norm does not say otherwise
    layer_norms: bool = False  # RMSNorm over all query (key) heads together (MiniMax-M2)
    shared_gate: bool = False  # a scalar gate on the shared expert
    routing_bias: bool = False
    sinks: bool = False  # one attention sink a head
    expert_bias: bool = False  # on experts and router, and on attention unless attention_bias says otherwise (gpt-oss)
    stepped: bool = False  # experts by decoder_sparse_step and mlp_only_layers (Qwen)


def reader(switches: Switches, *, note: str = "") -> FamilyReader:
    """A reader of mixtures with these switches."""

    def read(fields: Fields, quantisation: Quantisation) -> Stack:
        count = fields.layers()
        shape = head_shape(fields)
        experts = _experts(fields, switches, shape.hidden)
        sparse = _stepped(fields, count) if switches.stepped else dense_prefix(fields, count)
        inner = experts.inner if all(sparse) else fields.integer("intermediate_size")
        bias = fields.flag("attention_bias", default=switches.expert_bias)
        norms = 2 * shape.width if fields.flag("use_qk_norm", default=switches.head_norms) else 0
        if switches.layer_norms:
            norms = (shape.heads + shape.kv_heads) * shape.width
        if switches.sinks:
            norms += shape.heads
        window_of = windows(fields, count)
        drafted = draft_layers(fields)  # MiniMax-M2 names MTP modules under another key, which no checkpoint holds

        def layer(index: int, window: int | None, *, routed: bool) -> Layer:
            module = f"model.layers.{index}"
            attention = grouped_query(
                quantisation,
                f"{module}.self_attn",
                shape,
                qkv_bias=bias or switches.qkv_bias,
                output_bias=bias and switches.output_bias,
                norm_params=norms,
                window=window,
            )
            ffn = experts_or_dense(quantisation, f"{module}.mlp", experts, inner, routed=routed)
            return Layer(index, attention, ffn, 2 * shape.hidden)

        layers = tuple(layer(index, window_of[index], routed=sparse[index]) for index in range(count))
        extra = [layer(count + number, None, routed=True) for number in range(drafted)]
        draft = drafter(quantisation, extra, shape.hidden, fusions=drafted)
        return Stack(layers, draft, notes=(note,) if note else ())

    return read


def _experts(fields: Fields, switches: Switches, hidden: int) -> ExpertShape:
    number = experts_and_visits(fields, "num_local_experts", "n_routed_experts", "num_experts")
    inner = fields.integer("moe_intermediate_size", "intermediate_size")
    shared = fields.integer("shared_expert_intermediate_size", "shared_intermediate_size", default=0, low=0)
    shared += fields.integer("n_shared_experts", "num_shared_experts", default=0, low=0, high=1024) * inner
    return ExpertShape(
        hidden,
        *number,
        inner,
        shared=shared,
        bias=switches.expert_bias,
        shared_gate=switches.shared_gate and shared > 0,
        routing_bias=switches.routing_bias,
    )


def _stepped(fields: Fields, layers: int) -> list[bool]:
    step = fields.integer("decoder_sparse_step", default=1, high=layers)
    plain = set(fields.integers("mlp_only_layers", low=0, high=layers - 1))
    return [layer not in plain and (layer + 1) % step == 0 for layer in range(layers)]


MIXTRAL = reader(Switches())
QWEN2_MOE = reader(Switches(qkv_bias=True, shared_gate=True, stepped=True))
QWEN3_MOE = reader(Switches(head_norms=True, output_bias=True, stepped=True))
GLM4_MOE = reader(Switches(routing_bias=True))
# Biases everywhere, as in transformers 5.24 `gpt_oss`; at these widths they are 0.3 % of an expert.
GPT_OSS = reader(Switches(output_bias=True, sinks=True, expert_bias=True))
MINIMAX_M2 = reader(Switches(layer_norms=True, routing_bias=True))
GENERIC = reader(Switches(), note="unknown class: read as a plain mixture of experts of the Mixtral shape")
