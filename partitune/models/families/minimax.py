"""MiniMax-M1 (lightning attention with softmax every eighth layer) and M3 (block-sparse attention with an indexer).

Decision: M2 is an ordinary mixture and lives in `plain.py`. The MTP modules that M2 and M3 configs name are in no
published checkpoint (M3's files are 854 GB, the model without them), so no drafter is counted and a note says so.
"""

from __future__ import annotations

from partitune.models.architecture import AttentionBlock, FfnBlock
from partitune.models.attention import Indexer, grouped_query
from partitune.models.families.grouped import dense_prefix, experts_and_visits, head_shape, routed_or_dense
from partitune.models.feedforward import ExpertShape, mixture
from partitune.models.fields import Fields
from partitune.models.stack import Stack
from partitune.models.state_mixers import lightning
from partitune.models.weight_counter import WeightCounter


def read_m1(fields: Fields) -> Stack:
    """Reader of MiniMax-Text-01 and M1: `attn_type_list` has 1 for softmax and 0 for lightning attention."""
    count = fields.layers()
    shape = head_shape(fields)
    softmax = fields.per_layer("attn_type_list", count, {0, 1})
    if softmax is None:
        raise fields.error("attn_type_list", f"missing; {count} entries 0 (lightning) or 1 (softmax) are needed")
    experts = ExpertShape(
        shape.hidden,
        *experts_and_visits(fields, "num_local_experts"),
        inner=fields.integer("intermediate_size"),
        shared=fields.integer("shared_intermediate_size", default=0, low=0),
        routing_bias=False,
    )

    def blocks(module: WeightCounter, index: int) -> tuple[AttentionBlock, FfnBlock]:
        counter = module.inside("self_attn")
        attention = grouped_query(counter, shape) if softmax[index] else lightning(counter, shape)
        return attention, mixture(module.inside("mlp"), experts)

    return Stack(count, blocks)


def _indexers(fields: Fields, layers: int) -> list[Indexer | None]:
    section = fields.section("sparse_attention_config")
    if section is None or not section.flag("use_sparse_attention", default=True):
        return [None] * layers
    indexer = Indexer(
        topk=section.integer("sparse_block_size", high=65_536) * section.integer("sparse_topk_blocks", high=65_536),
        heads=section.integer("sparse_num_index_heads", high=65_536),
        width=section.integer("sparse_index_dim", high=65_536),
    )
    marks = section.per_layer("sparse_attention_freq", layers, {0, 1})
    return [indexer if marks is None or marks[layer] == 1 else None for layer in range(layers)]


def read_m3(fields: Fields) -> Stack:
    """Reader of the text model of MiniMax-M3; vLLM 0.32 `models/minimax_m3/nvidia/model.py`."""
    count = fields.layers()
    shape = head_shape(fields)
    inner = fields.integer("moe_intermediate_size", "intermediate_size")
    shared = fields.integer("shared_intermediate_size", default=inner, low=0)
    experts = ExpertShape(
        shape.hidden,
        *experts_and_visits(fields, "num_local_experts"),
        inner=inner,
        shared=shared * fields.integer("n_shared_experts", default=1, low=0, high=1024),
    )
    routed = dense_prefix(fields, count)
    ffn = routed_or_dense(fields, experts, routed, inner if all(routed) else fields.integer("dense_intermediate_size"))
    indexers = _indexers(fields, count)

    def blocks(module: WeightCounter, index: int) -> tuple[AttentionBlock, FfnBlock]:
        counter, norms = module.inside("self_attn"), 2 * shape.width
        attention = grouped_query(counter, shape, norm_params=norms, indexer=indexers[index])
        return attention, ffn(module.inside("mlp"), index)

    notes = ("MTP modules named in the config are not counted: the published checkpoint does not hold them",)
    return Stack(count, blocks, notes=notes if fields.has("num_mtp_modules") else ())
