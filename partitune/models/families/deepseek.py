"""DeepSeek-V2, V3, R1, V3.2, Kimi-K2 and K2.5, GLM-5 and Mistral-Large-4: latent attention, shared experts, indexers.

Decision: sparse attention (an indexer that picks tokens) is a switch on the same reader. A layer that reuses the choice
of an earlier layer, or its latent, belongs to it; what a cut between the two comes to is for each engine to say.
"""

from __future__ import annotations

from itertools import accumulate

from partitune.models.architecture import AttentionBlock, CutKind, FfnBlock
from partitune.models.attention import Indexer, LatentShape, latent
from partitune.models.families.grouped import dense_prefix, draft_layers, experts_and_visits, routed_or_dense
from partitune.models.feedforward import ExpertShape
from partitune.models.fields import Fields
from partitune.models.stack import Stack, cuts_inside
from partitune.models.weight_counter import WeightCounter


def expert_shape(fields: Fields, hidden: int, *, routing_bias: bool = True) -> ExpertShape:
    """Routed and shared experts of a DeepSeek-like config."""
    number = experts_and_visits(fields, "n_routed_experts", "num_experts", "num_local_experts")
    inner = fields.integer("moe_intermediate_size")
    shared = fields.integer("n_shared_experts", "num_shared_experts", default=0, low=0, high=1024)
    return ExpertShape(hidden, *number, inner, shared=shared * inner, routing_bias=routing_bias)


def index_sources(fields: Fields, layers: int) -> list[int]:
    """For every layer the layer whose index it uses: its own, or the last one before it that runs an indexer.

    `indexer_types` says it per layer, `index_topk_pattern` by letters, `index_topk_freq` with
    `index_skip_topk_offset` by rule (vLLM 0.32 `model_executor/models/deepseek_v2.py`).
    """
    kinds = fields.per_layer("indexer_types", layers, {"full", "shared"})
    pattern = fields.text("index_topk_pattern") if isinstance(fields.data.get("index_topk_pattern"), str) else ""
    if kinds is None and pattern:
        if len(pattern) < layers or set(pattern) - {"F", "S"}:
            raise fields.error("index_topk_pattern", f"allowed is {layers} letters F or S")
        kinds = ["full" if letter == "F" else "shared" for letter in pattern[:layers]]
    if kinds is None:
        every = fields.integer("index_topk_freq", default=1, high=layers)
        offset = fields.integer("index_skip_topk_offset", default=2, low=0, high=layers)
        kinds = ["shared" if max(layer - offset + 1, 0) % every else "full" for layer in range(layers)]
    if kinds[0] != "full":
        raise fields.error("indexer_types", "the first layer must be 'full': it has no earlier index to share")
    return list(accumulate((layer if kind == "full" else 0 for layer, kind in enumerate(kinds)), max))


def kv_sources(fields: Fields, layers: int) -> list[int]:
    """For every layer the layer whose latent it reads: `kv_source_layers` of Mistral-Large-4, else itself."""
    sources = fields.integers("kv_source_layers", low=0, high=layers - 1)
    if not sources:
        return list(range(layers))
    if len(sources) != layers:
        raise fields.error("kv_source_layers", f"{len(sources)} entries for {layers} layers")
    for layer, source in enumerate(sources):
        if source > layer or sources[source] != source:
            raise fields.error(f"kv_source_layers[{layer}]", f"{source} given, allowed is a layer with its own cache")
    return sources


def read(fields: Fields) -> Stack:
    """Reader of the DeepSeek shape."""
    count = fields.layers()
    shape = fields.shape(LatentShape)
    indexer, indexes = None, list(range(count))
    if fields.has("index_topk"):
        indexer = fields.shape(Indexer)
        indexes = index_sources(fields, count)
    latents = kv_sources(fields, count)
    # V2 has no routing bias: topk_method is not noaux_tc.
    experts = expert_shape(fields, shape.hidden, routing_bias=fields.text("topk_method", "noaux_tc") == "noaux_tc")
    ffn = routed_or_dense(fields, experts, dense_prefix(fields, count))
    bias = fields.flag("attention_bias", default=False)

    def blocks(module: WeightCounter, index: int) -> tuple[AttentionBlock, FfnBlock]:
        attention = latent(
            module.inside("self_attn"),
            shape,
            qkv_bias=bias,
            indexer=indexer,
            owns_index=index >= count or indexes[index] == index,
            owns_kv=index >= count or latents[index] == index,
        )
        return attention, ffn(module.inside("mlp"), index)

    cuts = {CutKind.INDEX: cuts_inside(indexes), CutKind.SHARED_KV: cuts_inside(latents)}
    return Stack(count, blocks, drafted=draft_layers(fields), bound_cuts=cuts)
