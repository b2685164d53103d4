"""MiMo-V2-Flash and Step-3.5/3.7-Flash: mixtures whose sliding layers have head counts of their own.

Decision: they share one reader, because both are "two head shapes, chosen per layer, above a dense prefix"; only the
keys differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from partitune.models.architecture import Layer
from partitune.models.attention import HeadShape, grouped_query
from partitune.models.families.grouped import dense_prefix, draft_layers, experts_and_visits, head_shape, windows
from partitune.models.feedforward import ExpertShape, experts_or_dense
from partitune.models.fields import Fields
from partitune.models.quantisation import Quantisation
from partitune.models.stack import Stack, drafter


@dataclass(frozen=True, slots=True)
class _Heads:
    full: HeadShape
    sliding: HeadShape
    window_of: list[int | None]
    norms: int = 0
    full_sinks: bool = False
    sliding_sinks: bool = False
    scalar_gate: bool = False  # one output gate a head


def _stack(
    fields: Fields, quantisation: Quantisation, heads: _Heads, experts: ExpertShape, notes: tuple[str, ...], draft: int
) -> Stack:
    hidden = heads.full.hidden
    count = len(heads.window_of)
    routed = dense_prefix(fields, count)
    inner = experts.inner if all(routed) else fields.integer("intermediate_size")

    def layer(index: int, window: int | None, *, sparse: bool) -> Layer:
        module = f"model.layers.{index}"
        shape = heads.full if window is None else heads.sliding
        sinks = heads.full_sinks if window is None else heads.sliding_sinks
        attention = grouped_query(
            quantisation,
            f"{module}.self_attn",
            shape,
            norm_params=heads.norms + (shape.heads if sinks else 0),
            gate_outputs=shape.heads if heads.scalar_gate else 0,
            window=window,
        )
        ffn = experts_or_dense(quantisation, f"{module}.mlp", experts, inner, routed=sparse)
        return Layer(index, attention, ffn, 2 * hidden)

    layers = tuple(layer(index, window, sparse=routed[index]) for index, window in enumerate(heads.window_of))
    # Draft layers slide and are dense (vLLM 0.32 `mimo_v2_mtp.py`, `step3p5_mtp.py`).
    window = next((window for window in heads.window_of if window is not None), None)
    extra = [layer(count + number, window, sparse=False) for number in range(draft)] if inner else []
    return Stack(layers, drafter(quantisation, extra, hidden, fusions=draft), notes=notes)


def read_mimo(fields: Fields, quantisation: Quantisation) -> Stack:
    """Reader of MiMo-V2-Flash: `hybrid_layer_pattern` has 1 for sliding layers."""
    count = fields.layers()
    full = replace(head_shape(fields), value_width=fields.integer("v_head_dim", default=0, low=0, high=65_536))
    sliding = HeadShape(
        full.hidden,
        fields.integer("swa_num_attention_heads", default=full.heads, high=65_536),
        fields.integer("swa_num_key_value_heads", default=full.kv_heads, high=65_536),
        fields.integer("swa_head_dim", default=full.width, high=65_536),
        fields.integer("swa_v_head_dim", default=full.values, high=65_536),
    )
    marks = fields.per_layer("hybrid_layer_pattern", count, {0, 1})
    if marks is None:
        raise fields.error("hybrid_layer_pattern", f"missing; {count} entries 0 (full) or 1 (sliding) are needed")
    window = fields.integer("sliding_window", "sliding_window_size")
    heads = _Heads(
        full,
        sliding,
        [window if mark == 1 else None for mark in marks],
        full_sinks=fields.flag("add_full_attention_sink_bias", default=False),
        sliding_sinks=fields.flag("add_swa_attention_sink_bias", default=False),
    )
    number = experts_and_visits(fields, "n_routed_experts")
    inner = fields.integer("moe_intermediate_size")
    shared = fields.integer("n_shared_experts", default=0, low=0, high=1024)
    experts = ExpertShape(full.hidden, *number, inner, shared=shared * inner)
    # The config has no key for it; the engine drafts with one layer (vLLM 0.32 `mimo_v2_mtp.py`).
    return _stack(fields, quantisation, heads, experts, (), 1)


def read_step(fields: Fields, quantisation: Quantisation) -> Stack:
    """Reader of Step-3.5-Flash and Step-3.7-Flash: `attention_other_setting` reshapes the sliding layers."""
    count = fields.layers()
    full = head_shape(fields)
    other = fields.section("attention_other_setting")
    sliding = full
    if other is not None:
        sliding = replace(
            full,
            heads=other.integer("num_attention_heads", default=full.heads, high=65_536),
            kv_heads=other.integer("num_attention_groups", default=full.kv_heads, high=65_536),
            width=other.integer("head_dim", default=full.width, high=65_536),
        )
    heads = _Heads(
        full,
        sliding,
        windows(fields, count),
        norms=2 * full.width,
        scalar_gate=fields.flag("use_head_wise_attn_gate", default=True),
    )
    number = experts_and_visits(fields, "moe_num_experts", "num_experts")
    inner = fields.integer("moe_intermediate_size")
    shared = fields.integer("share_expert_dim", default=inner, low=0)
    experts = ExpertShape(full.hidden, *number, inner, shared=shared)
    notes = () if other is not None else ("sliding layers are assumed to have the heads of the full ones",)
    return _stack(fields, quantisation, heads, experts, notes, draft_layers(fields))
