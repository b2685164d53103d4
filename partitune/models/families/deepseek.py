"""DeepSeek-V2, V3, R1, V3.2, Kimi-K2 and K2.5, GLM-5 and Mistral-Large-4: latent attention, shared experts, indexers.

Decision: sparse attention (an indexer that picks tokens) is a switch on the same reader. A layer that reuses the choice
of an earlier layer, or its latent, must sit on the same stage: the engines keep both in buffers of one worker
(vLLM 0.32 `models/deepseek_v32/attention.py`), so those boundaries are illegal.
"""

from __future__ import annotations

from partitune.models.architecture import Layer
from partitune.models.attention import Indexer, LatentShape, latent
from partitune.models.families.grouped import dense_prefix, draft_layers, experts_and_visits
from partitune.models.feedforward import ExpertShape, experts_or_dense
from partitune.models.fields import Fields
from partitune.models.quantisation import Quantisation
from partitune.models.stack import Stack, cuts_inside, drafter


def latent_shape(fields: Fields) -> LatentShape:
    """Shape of multi-head latent attention; `q_lora_rank` null or missing means a direct query projection."""
    return LatentShape(
        hidden=fields.integer("hidden_size"),
        heads=fields.integer("num_attention_heads", high=65_536),
        q_rank=fields.integer_or_none("q_lora_rank"),
        kv_rank=fields.integer("kv_lora_rank"),
        nope=fields.integer("qk_nope_head_dim", high=65_536),
        rope=fields.integer("qk_rope_head_dim", low=0, high=65_536),
        value=fields.integer("v_head_dim", high=65_536),
    )


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
    sources: list[int] = []
    for layer, kind in enumerate(kinds):
        sources.append(layer if kind == "full" else sources[-1])
    return sources


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


def read(fields: Fields, quantisation: Quantisation) -> Stack:
    """Reader of the DeepSeek shape."""
    count = fields.layers()
    shape = latent_shape(fields)
    indexer, indexes = None, list(range(count))
    if fields.has("index_topk"):
        indexer = Indexer(
            fields.integer("index_n_heads", high=65_536),
            fields.integer("index_head_dim", high=65_536),
            fields.integer("index_topk"),
        )
        indexes = index_sources(fields, count)
    latents = kv_sources(fields, count)
    # V2 has no routing bias: topk_method is not noaux_tc.
    experts = expert_shape(fields, shape.hidden, routing_bias=fields.text("topk_method", "noaux_tc") == "noaux_tc")
    routed = dense_prefix(fields, count)
    inner = experts.inner if all(routed) else fields.integer("intermediate_size")
    bias = fields.flag("attention_bias", default=False)
    drafted = draft_layers(fields)

    def layer(index: int, *, sparse: bool, owns_index: bool, owns_kv: bool) -> Layer:
        module = f"model.layers.{index}"
        attention = latent(
            quantisation,
            f"{module}.self_attn",
            shape,
            qkv_bias=bias,
            indexer=indexer,
            owns_index=owns_index,
            owns_kv=owns_kv,
        )
        ffn = experts_or_dense(quantisation, f"{module}.mlp", experts, inner, routed=sparse)
        return Layer(index, attention, ffn, 2 * shape.hidden)

    layers = tuple(
        layer(index, sparse=routed[index], owns_index=indexes[index] == index, owns_kv=latents[index] == index)
        for index in range(count)
    )
    extra = [layer(count + number, sparse=True, owns_index=True, owns_kv=True) for number in range(drafted)]
    return Stack(
        layers,
        drafter(quantisation, extra, shape.hidden, fusions=drafted),
        illegal_cuts=cuts_inside(indexes) | cuts_inside(latents),
    )
