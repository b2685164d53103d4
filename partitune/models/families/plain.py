"""Decoders with grouped-query attention whose layers differ in windows and experts only.

Llama, Mistral, Qwen2, Qwen3 and Gemma; Mixtral, Qwen2/3-MoE, GLM-4.5 to 4.7, MiniMax-M2 and gpt-oss; and their likes.

Decision: one reader; a family is a row of switches, taken from its transformers 5.24 configuration class where it is
dense, from its vLLM 0.32 model file where it has experts.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.models.architecture import AttentionBlock, CutKind, FfnBlock
from partitune.models.attention import grouped_query
from partitune.models.families.grouped import (
    FfnOfLayer,
    dense_prefix,
    draft_layers,
    experts_and_visits,
    head_shape,
    routed_or_dense,
    shared_kv_sources,
    windows,
)
from partitune.models.feedforward import ExpertShape, dense
from partitune.models.fields import Fields
from partitune.models.stack import FamilyReader, Stack, cuts_inside
from partitune.models.weight_counter import WeightCounter


@dataclass(frozen=True, slots=True)
class Switches:
    """How a family departs from Llama, or from Mixtral where it has experts."""

    mixture: bool = False
    qkv_bias: bool = False  # always, whatever attention_bias says (Qwen2)
    all_bias: bool = False  # on every matrix, attention and MLP, unless use_bias says otherwise
    gated: bool = True  # a dense MLP of three matrices; else of two
    output_bias: bool = False  # attention_bias also means a bias on o_proj
    head_norms: bool = False  # RMSNorm on every query and key head, when use_qk_norm does not say otherwise
    norms: int = 2  # hidden-wide norms a layer
    tied: bool = False
    layer_norms: bool = False  # RMSNorm over all query (key) heads together (MiniMax-M2)
    shared_gate: bool = False  # a scalar gate on the shared expert
    routing_bias: bool = False
    sinks: bool = False  # one attention sink a head
    expert_bias: bool = False  # on experts and router, and on attention unless attention_bias says otherwise (gpt-oss)
    stepped: bool = False  # experts by decoder_sparse_step and mlp_only_layers (Qwen)
    started: bool = False  # experts by moe_layer_start_index, _end_index and _interval (ERNIE)


def reader(switches: Switches, *doubts: str) -> FamilyReader:
    """A reader of models with these switches; `doubts` are said of each."""

    def read(fields: Fields) -> Stack:
        count = fields.layers()
        shape = head_shape(fields)
        hidden = shape.hidden
        ffn = _experts(fields, switches, count, hidden) if switches.mixture else _dense(fields, switches, hidden)
        bias = fields.flag("attention_bias", default=switches.expert_bias)
        bias = fields.flag("use_bias", default=switches.all_bias) or bias
        qkv_bias = fields.flag("use_qkv_bias", default=switches.qkv_bias)
        norms = 2 * shape.width if fields.flag("use_qk_norm", default=switches.head_norms) else 0
        if switches.layer_norms:
            norms = (shape.heads + shape.kv_heads) * shape.width
        if switches.sinks:
            norms += shape.heads
        window_of = windows(fields, count)
        sources = shared_kv_sources(fields, window_of)

        def blocks(module: WeightCounter, index: int) -> tuple[AttentionBlock, FfnBlock]:
            attention = grouped_query(
                module.inside("self_attn"),
                shape,
                qkv_bias=bias or qkv_bias,
                output_bias=bias and (switches.output_bias or switches.all_bias),
                norm_params=norms,
                window=window_of[index] if index < count else None,
                owns_kv=index >= count or sources[index] == index,
            )
            return attention, ffn(module.inside("mlp"), index)

        return Stack(
            count,
            blocks,
            norms=switches.norms,
            drafted=draft_layers(fields) if switches.mixture else 0,
            tied=switches.tied,
            bound_cuts={CutKind.SHARED_KV: cuts_inside(sources)},
            doubts=doubts,
        )

    return read


def _dense(fields: Fields, switches: Switches, hidden: int) -> FfnOfLayer:
    inner = fields.integer("intermediate_size", "ffn_dim")
    bias = fields.flag("mlp_bias", default=switches.all_bias and fields.flag("use_bias", default=True))
    return lambda counter, _: dense(counter, hidden, inner, gated=switches.gated, bias=bias)


def _experts(fields: Fields, switches: Switches, layers: int, hidden: int) -> FfnOfLayer:
    number = experts_and_visits(fields, "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
    inner = fields.integer("moe_intermediate_size", "intermediate_size")
    shared = fields.integer("shared_expert_intermediate_size", "shared_intermediate_size", default=0, low=0)
    shared += fields.integer(*_SHARED, default=0, low=0, high=1024) * inner
    experts = ExpertShape(
        hidden,
        *number,
        inner,
        shared=shared,
        bias=switches.expert_bias,
        shared_gate=switches.shared_gate and shared > 0,
        routing_bias=switches.routing_bias,
    )
    routed = _routed(fields, switches, layers)
    return routed_or_dense(fields, experts, routed)


def _routed(fields: Fields, switches: Switches, layers: int) -> list[bool]:
    if switches.started:
        first = fields.integer("moe_layer_start_index", default=0, low=0, high=layers)
        last = fields.integer("moe_layer_end_index", default=-1, low=-1, high=layers)
        every = fields.integer("moe_layer_interval", default=1, high=layers)
        # transformers 5.24 `ernie4_5_moe`: (layer + 1) % interval == 0 between the two, the last one included.
        end = layers - 1 if last < 0 else last
        return [first <= layer <= end and (layer + 1) % every == 0 for layer in range(layers)]
    return _stepped(fields, layers) if switches.stepped else dense_prefix(fields, layers)


def _stepped(fields: Fields, layers: int) -> list[bool]:
    step = fields.integer("decoder_sparse_step", default=1, high=layers)
    plain = set(fields.integers("mlp_only_layers", low=0, high=layers - 1))
    return [layer not in plain and (layer + 1) % step == 0 for layer in range(layers)]


_UNKNOWN = "the model's class is unknown: it is read as a plain {} shape"
_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
LLAMA = reader(Switches(output_bias=True))
QWEN2 = reader(Switches(qkv_bias=True))
QWEN3 = reader(Switches(output_bias=True, head_norms=True))
GEMMA2 = reader(Switches(output_bias=True, norms=4, tied=True))
GEMMA3 = reader(Switches(output_bias=True, head_norms=True, norms=4, tied=True))
GENERIC = reader(Switches(output_bias=True), _UNKNOWN.format("dense transformer of the Llama"))
MIXTRAL = reader(Switches(mixture=True))
QWEN2_MOE = reader(Switches(mixture=True, qkv_bias=True, shared_gate=True, stepped=True))
QWEN3_MOE = reader(Switches(mixture=True, head_norms=True, output_bias=True, stepped=True))
GLM4_MOE = reader(Switches(mixture=True, routing_bias=True))
# Biases everywhere, as in transformers 5.24 `gpt_oss`; at these widths they are 0.3 % of an expert.
GPT_OSS = reader(Switches(mixture=True, output_bias=True, sinks=True, expert_bias=True))
MINIMAX_M2 = reader(Switches(mixture=True, layer_norms=True, routing_bias=True))
GENERIC_MIXTURE = reader(Switches(mixture=True), _UNKNOWN.format("mixture of experts of the Mixtral"))
# From here: transformers 5.24, the modelling file of each.
GEMMA = reader(Switches(output_bias=True, tied=True))
GLM4 = reader(Switches(norms=4))
COHERE = reader(Switches(output_bias=True, norms=1, tied=True))
# LayerNorm has a bias beside its weight: two hidden-wide vectors each.
STABLELM = reader(Switches(norms=4))
STARCODER2 = reader(Switches(all_bias=True, gated=False, norms=4, tied=True))
PHI = reader(Switches(all_bias=True, gated=False, norms=2))
GPT_NEOX = reader(Switches(all_bias=True, gated=False, norms=4))
OPT = reader(Switches(all_bias=True, gated=False, norms=4, tied=True))
OLMO2 = reader(Switches(output_bias=True, layer_norms=True))
OLMOE = reader(Switches(mixture=True, output_bias=True, layer_norms=True))
PHI_MOE = reader(Switches(mixture=True, output_bias=True))
ERNIE_MOE = reader(Switches(mixture=True, output_bias=True, routing_bias=True, started=True, tied=True))
DOTS1 = reader(Switches(mixture=True, output_bias=True, head_norms=True, routing_bias=True))
GRANITE_MOE = reader(Switches(mixture=True, output_bias=True))
HUNYUAN_MOE = reader(Switches(mixture=True, output_bias=True, head_norms=True))
