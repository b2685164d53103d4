"""What most decoder families share: heads, windows and the rule which layers are dense.

Decision: grouped-query families differ in a few switches (biases, norms, which layers slide, which hold experts), so
those rules are read here once and the family modules only say which of them apply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partitune.models.architecture import FfnBlock
from partitune.models.attention import HeadShape
from partitune.models.feedforward import ExpertShape, dense, mixture
from partitune.models.fields import Fields
from partitune.models.weight_counter import WeightCounter

#: The feed-forward block of a layer, from an empty counter of its module and the layer's index.
FfnOfLayer = Callable[[WeightCounter, int], FfnBlock]

SLIDING_NAMES = {"sliding_attention", "chunked_attention"}
LAYER_TYPES = SLIDING_NAMES | {"full_attention"}


def head_shape(fields: Fields) -> HeadShape:
    """Heads of grouped-query attention: `head_dim` defaults to hidden_size / num_attention_heads.

    Raises:
        SpecError: key/value heads that do not divide the query heads, or a head width that is no whole number.
    """
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads", high=65_536)
    kv_heads = fields.integer("num_key_value_heads", "num_attention_groups", default=heads, high=65_536)
    width = fields.integer_or_none("head_dim", "attention_head_dim", high=65_536)
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"{kv_heads} given, allowed is a divisor of the {heads} query heads")
    if width is None:
        if hidden % heads:
            raise fields.error("head_dim", f"missing, and hidden_size {hidden} is no multiple of {heads} heads")
        width = hidden // heads
    return HeadShape(hidden, heads, kv_heads, width)


def windows(fields: Fields, layers: int) -> list[int | None]:
    """Attention window of every layer in tokens, None for full attention.

    `layer_types` names them; without it `sliding_window_pattern` n means every n-th layer is full (Gemma), and a lone
    `sliding_window` means all layers slide (Mistral), unless `use_sliding_window` is false (Qwen).

    Raises:
        SpecError: ill-typed keys, too few `layer_types`, or sliding layers without a window.
    """
    window = fields.integer_or_none("sliding_window", "sliding_window_size", "attention_chunk_size")
    kinds = fields.per_layer("layer_types", layers, LAYER_TYPES)
    if kinds is not None:
        sliding = [kind in SLIDING_NAMES for kind in kinds]
        if any(sliding) and window is None:
            raise fields.error("sliding_window", "missing, and layer_types has sliding layers")
        return [window if slides else None for slides in sliding]
    if window is None or not fields.flag("use_sliding_window", default=True):
        return [None] * layers
    pattern = fields.integer_or_none("sliding_window_pattern", high=layers)
    if pattern is None:
        first = fields.integer("max_window_layers", default=0, low=0) if fields.has("use_sliding_window") else 0
        return [window if layer >= first else None for layer in range(layers)]
    return [None if (layer + 1) % pattern == 0 else window for layer in range(layers)]


def shared_kv_sources(fields: Fields, kinds: Sequence[object]) -> list[int]:
    """For every layer the layer whose KV it reads, by Gemma's `num_kv_shared_layers`.

    The last n layers read the cache of the last earlier layer of their own kind (transformers 5.24 `gemma3n`).

    Args:
        fields: of the text model.
        kinds: for every layer, what tells its kind from others: its window.

    Raises:
        SpecError: no layer keeps a cache, or a layer has no earlier one of its kind.
    """
    layers = len(kinds)
    shared = fields.integer("num_kv_shared_layers", default=0, low=0, high=layers)
    if shared >= layers:
        raise fields.error("num_kv_shared_layers", f"{shared} given, allowed is less than the {layers} layers")
    first = layers - shared
    sources = list(range(layers))
    for layer in range(first, layers):
        owners = [owner for owner in range(first) if kinds[owner] == kinds[layer]]
        if not owners:
            raise fields.error("num_kv_shared_layers", f"layer {layer} has no earlier layer of its kind to read from")
        sources[layer] = owners[-1]
    return sources


def dense_prefix(fields: Fields, layers: int) -> list[bool]:
    """Which layers hold experts, by `mlp_layer_types`, `moe_layer_freq` or `first_k_dense_replace`.

    Raises:
        SpecError: ill-typed keys, or lists with too few entries.
    """
    kinds = fields.per_layer("mlp_layer_types", layers, {"dense", "sparse"})
    if kinds is not None:
        return [kind == "sparse" for kind in kinds]
    first = fields.integer("first_k_dense_replace", default=0, low=0, high=layers)
    fields.asked.add("moe_layer_freq")
    if isinstance(fields.data.get("moe_layer_freq"), list):
        return [value == 1 for value in fields.per_layer("moe_layer_freq", layers, {0, 1}) or []]
    every = fields.integer("moe_layer_freq", default=1, high=layers)
    return [layer >= first and layer % every == 0 for layer in range(layers)]


def routed_or_dense(
    fields: Fields, experts: ExpertShape, routed: Sequence[bool], inner: int | None = None, *, drafts: bool = True
) -> FfnOfLayer:
    """Blocks of a stack in which some layers hold experts and the others a dense MLP.

    Args:
        fields: asked for `intermediate_size`, where a layer is dense.
        experts: of the layers that hold any.
        routed: for every layer, whether it holds experts.
        inner: width of the dense MLPs, where it is not called `intermediate_size`.
        drafts: whether draft layers hold experts.

    Raises:
        SpecError: `intermediate_size` is needed and missing or ill-typed.
    """
    if inner is None:
        inner = experts.inner if all(routed) else fields.integer("intermediate_size")

    def block(counter: WeightCounter, index: int) -> FfnBlock:
        if routed[index] if index < len(routed) else drafts:
            return mixture(counter, experts)
        return dense(counter, experts.hidden, inner)

    return block


def experts_and_visits(fields: Fields, *names: str) -> tuple[int, int]:
    """How many routed experts a layer has, by the first of `names` that is present, and how many a token visits."""
    experts = fields.integer(*names, high=65_536)
    return experts, visits(fields, experts)


def visits(fields: Fields, experts: int) -> int:
    """How many of `experts` routed experts a token visits."""
    return fields.integer(
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "moe_top_k",
        "moe_topk",
        "moe_k",
        high=experts,
    )


def draft_layers(fields: Fields) -> int:
    """Multi-token-prediction layers the checkpoint holds."""
    return fields.integer("num_nextn_predict_layers", default=0, low=0, high=64)
