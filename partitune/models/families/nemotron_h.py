"""Nemotron-H and Nemotron 3: Mamba2, attention, MLP and mixture blocks in a free pattern, each one a layer.

Decision: the engine's layer list is the pattern itself (vLLM 0.32 partitions `len(hybrid_override_pattern)`), so a
block is a layer here: an MLP is a layer without attention, a Mamba block one without FFN.
"""

from __future__ import annotations

from dataclasses import replace

from partitune.models.architecture import Layer
from partitune.models.attention import NO_ATTENTION, grouped_query
from partitune.models.families.grouped import draft_layers, experts_and_visits, head_shape
from partitune.models.feedforward import NO_FFN, ExpertShape, dense, mixture
from partitune.models.fields import LAYERS_MAX, Fields
from partitune.models.quantisation import Quantisation
from partitune.models.stack import Stack, drafter
from partitune.models.state_mixers import Mamba2Shape, mamba2, state_element_bytes

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NAMES = frozenset(_LETTERS.values())


def pattern(fields: Fields, letters_key: str, names_key: str) -> list[str]:
    """Block kinds in order, from a string of letters (M, *, -, E) or a list of names; empty when both are missing."""
    letters = fields.text(letters_key)
    if letters:
        unknown = sorted(set(letters) - set(_LETTERS))
        if unknown or len(letters) > LAYERS_MAX:
            raise fields.error(letters_key, f"allowed is at most {LAYERS_MAX} of the letters {', '.join(_LETTERS)}")
        return [_LETTERS[letter] for letter in letters]
    names = fields.sequence(names_key) or []
    if len(names) > LAYERS_MAX:
        raise fields.error(names_key, f"{len(names)} entries, allowed are at most {LAYERS_MAX}")
    return [str(name) for name in fields.per_layer(names_key, len(names), _NAMES) or []]


def _mamba_shape(fields: Fields, hidden: int) -> Mamba2Shape:
    return Mamba2Shape(
        hidden=hidden,
        heads=fields.integer("mamba_num_heads", high=65_536),
        width=fields.integer("mamba_head_dim", high=65_536),
        groups=fields.integer("n_groups", high=65_536),
        state=fields.integer("ssm_state_size", high=65_536),
        kernel=fields.integer("conv_kernel", high=1024),
        # vLLM 0.32 `models/config.py`, NemotronHForCausalLMConfig: float32 unless the config says otherwise.
        state_element_bytes=state_element_bytes(fields, "mamba_ssm_cache_dtype", "float32"),
        conv_bias=fields.flag("use_conv_bias", default=True),
    )


def _experts(fields: Fields, hidden: int) -> ExpertShape:
    shared = fields.integer("n_shared_experts", default=0, low=0, high=1024)
    width = fields.integer("moe_shared_expert_intermediate_size", default=0, low=0)
    return ExpertShape(
        hidden,
        *experts_and_visits(fields, "n_routed_experts"),
        inner=fields.integer("moe_intermediate_size"),
        shared=shared * width,
        latent=fields.integer_or_none("moe_latent_size"),
        gated=False,
    )


def read(fields: Fields, quantisation: Quantisation) -> Stack:
    """Layers of Nemotron-H, one a block of its pattern, and the drafter by a pattern of its own."""
    kinds = pattern(fields, "hybrid_override_pattern", "layers_block_type")
    if not kinds:
        raise fields.error(
            "hybrid_override_pattern", "missing; a string of M, *, -, E (or layers_block_type) is needed"
        )
    stated = fields.integer_or_none("num_hidden_layers", high=LAYERS_MAX)
    if stated is not None and stated != len(kinds):
        raise fields.error("num_hidden_layers", f"{stated} given, but the pattern has {len(kinds)} layers")
    shape = head_shape(fields)
    bias = fields.flag("attention_bias", default=False)
    mlp_bias = fields.flag("mlp_bias", default=False)

    def layer(index: int, kind: str) -> Layer:
        module = f"model.layers.{index}.mixer"
        attention, ffn = NO_ATTENTION, NO_FFN
        if kind == "mamba":
            attention = mamba2(quantisation, module, _mamba_shape(fields, shape.hidden))
        elif kind == "attention":
            attention = grouped_query(quantisation, module, shape, qkv_bias=bias, output_bias=bias)
        elif kind == "mlp":
            inner = fields.integer("intermediate_size")
            ffn = dense(quantisation, module, shape.hidden, inner, gated=False, bias=mlp_bias)
        else:
            ffn = mixture(quantisation, module, replace(_experts(fields, shape.hidden), bias=mlp_bias))
        return Layer(index, attention, ffn, shape.hidden)

    layers = tuple(layer(index, kind) for index, kind in enumerate(kinds))
    drafted = draft_layers(fields)
    draft_kinds = pattern(fields, "mtp_hybrid_override_pattern", "mtp_layers_block_type") if drafted else []
    extra = [layer(len(kinds) + number, kind) for number, kind in enumerate(draft_kinds * drafted)]
    return Stack(layers, drafter(quantisation, extra, shape.hidden, fusions=drafted))
