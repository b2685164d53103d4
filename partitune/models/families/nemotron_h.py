"""Nemotron-H and Nemotron 3: Mamba2, attention, MLP and mixture blocks in a free pattern, each one a layer.

Decision: the engine's layer list is the pattern itself (vLLM 0.32 partitions `len(hybrid_override_pattern)`), so a
block is a layer here: an MLP is a layer without attention, a Mamba block one without FFN.
"""

from __future__ import annotations

from partitune.models.architecture import Attention, AttentionBlock, Ffn, FfnBlock
from partitune.models.attention import grouped_query
from partitune.models.families.grouped import draft_layers, experts_and_visits, head_shape
from partitune.models.feedforward import ExpertShape, dense, mixture
from partitune.models.fields import LAYERS_MAX, Fields
from partitune.models.stack import Stack
from partitune.models.state_mixers import Mamba2Shape, mamba2
from partitune.models.weight_counter import WeightCounter

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


def _experts(fields: Fields, hidden: int, *, bias: bool) -> ExpertShape:
    shared = fields.integer("n_shared_experts", default=0, low=0, high=1024)
    width = fields.integer("moe_shared_expert_intermediate_size", default=0, low=0)
    return ExpertShape(
        hidden,
        *experts_and_visits(fields, "n_routed_experts"),
        inner=fields.integer("moe_intermediate_size"),
        shared=shared * width,
        latent=fields.integer_or_none("moe_latent_size"),
        gated=False,
        bias=bias,
    )


def read(fields: Fields) -> Stack:
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
    drafted = draft_layers(fields)
    draft_kinds = pattern(fields, "mtp_hybrid_override_pattern", "mtp_layers_block_type") * drafted if drafted else []

    def blocks(module: WeightCounter, index: int) -> tuple[AttentionBlock, FfnBlock]:
        counter = module.inside("mixer")
        attention, ffn = AttentionBlock(kind=Attention.NONE), FfnBlock(kind=Ffn.NONE)
        kind = (kinds + draft_kinds)[index]
        if kind == "mamba":
            attention = mamba2(counter, fields.shape(Mamba2Shape))
        elif kind == "attention":
            attention = grouped_query(counter, shape, qkv_bias=bias, output_bias=bias)
        elif kind == "mlp":
            ffn = dense(counter, shape.hidden, fields.integer("intermediate_size"), gated=False, bias=mlp_bias)
        else:
            ffn = mixture(counter, _experts(fields, shape.hidden, bias=mlp_bias))
        return attention, ffn

    return Stack(len(kinds), blocks, norms=1, drafted=len(draft_kinds), fusions=drafted if draft_kinds else 0)
