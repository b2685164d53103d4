"""MiMo-V2-Flash and Step-3.5/3.7-Flash: mixtures whose sliding layers have head counts of their own.

Decision: they share one reader, because both are "two head shapes, chosen per layer, above a dense prefix"; only the
keys differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from partitune.models.architecture import AttentionBlock, FfnBlock
from partitune.models.attention import HeadShape, grouped_query
from partitune.models.families.deepseek import expert_shape
from partitune.models.families.grouped import (
    dense_prefix,
    draft_layers,
    experts_and_visits,
    head_shape,
    routed_or_dense,
    windows,
)
from partitune.models.feedforward import ExpertShape
from partitune.models.fields import Fields
from partitune.models.stack import Stack
from partitune.models.weight_counter import WeightCounter


def _stack(
    fields: Fields,
    attention: Callable[[WeightCounter, int | None], AttentionBlock],
    window_of: Sequence[int | None],
    experts: ExpertShape,
    drafted: int,
    *notes: str,
) -> Stack:
    """The layers, `attention` being asked for each by its window (None: full)."""
    count = len(window_of)
    # Draft layers slide and are dense (vLLM 0.32 `mimo_v2_mtp.py`, `step3p5_mtp.py`).
    ffn = routed_or_dense(fields, experts, dense_prefix(fields, count), drafts=False)
    draft_window = next((window for window in window_of if window is not None), None)

    def blocks(module: WeightCounter, index: int) -> tuple[AttentionBlock, FfnBlock]:
        window = window_of[index] if index < count else draft_window
        return attention(module.inside("self_attn"), window), ffn(module.inside("mlp"), index)

    return Stack(count, blocks, drafted=drafted, notes=notes)


def read_mimo(fields: Fields) -> Stack:
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
    full_sinks = fields.flag("add_full_attention_sink_bias", default=False)
    sliding_sinks = fields.flag("add_swa_attention_sink_bias", default=False)

    def attention(counter: WeightCounter, window: int | None) -> AttentionBlock:
        shape, sinks = (full, full_sinks) if window is None else (sliding, sliding_sinks)
        return grouped_query(counter, shape, norm_params=shape.heads if sinks else 0, window=window)

    window_of = [window if mark == 1 else None for mark in marks]
    # The config has no key for it; the engine drafts with one layer (vLLM 0.32 `mimo_v2_mtp.py`).
    return _stack(fields, attention, window_of, expert_shape(fields, full.hidden), 1)


def read_step(fields: Fields) -> Stack:
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
    window_of = windows(fields, count)
    gated = fields.flag("use_head_wise_attn_gate", default=True)
    number = experts_and_visits(fields, "moe_num_experts", "num_experts")
    inner = fields.integer("moe_intermediate_size")
    shared = fields.integer("share_expert_dim", default=inner, low=0)
    experts = ExpertShape(full.hidden, *number, inner, shared=shared)

    def attention(counter: WeightCounter, window: int | None) -> AttentionBlock:
        shape = full if window is None else sliding
        gate_outputs = shape.heads if gated else 0  # one gate a head
        return grouped_query(counter, shape, norm_params=2 * full.width, gate_outputs=gate_outputs, window=window)

    notes = () if other is not None else ("sliding layers are assumed to have the heads of the full ones",)
    return _stack(fields, attention, window_of, experts, draft_layers(fields), *notes)
