"""What the weights of a model are stored in, by the first that says so, and who contradicts it.

Decision: a search space's word stands, then the config's, then the bytes that the checkpoint's files count in every
layer, then the sum in its index; nothing is guessed. Where the config is read and the files count otherwise, that is a
doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partitune.errors import shortened
from partitune.models.architecture import Layer
from partitune.models.fields import Fields
from partitune.models.library_formats import stored_formats
from partitune.models.quantisation import METHODS, Quantisation, by_layer, named_method, uniform
from partitune.models.stack import Stack
from partitune.models.vision import read_vision

#: Keys of our own beside those of a config: bytes that the checkpoint's index counts, and those of each layer.
INDEX_BYTES = "_safetensors_bytes"
LAYER_BYTES = "_layer_bytes"
_COUNT_OFF = 0.05  # by which a reading may differ from the count: drafters and towers are counted roughly


def stored_in(text: Fields, outer: Fields, stack: Stack) -> tuple[Quantisation, tuple[str, ...]]:
    """What the weights are stored in: as stated, as the config says, or as the checkpoint's own files or index say.

    Raises:
        SpecError: a method nobody taught us, and neither `weight_bits` nor an index beside the config.
    """
    bits = text.number_or_none("weight_bits", low=1, high=16)
    if bits is not None:
        return uniform(text, bits), (f"every weight matrix is taken to have {bits:g} bits, as the search space says",)
    formats = stored_formats(text)
    if formats is not None:
        return formats, ()
    method = named_method(text)
    hidden = text.integer("hidden_size")
    if (counted := _counted_layers(outer)) and (formats := _by_layer(text, stack, hidden, counted)):
        return formats, (f"{method} is not known: each layer has the bytes that the checkpoint's files count",)
    total = outer.integer_or_none(INDEX_BYTES, high=2**60)
    if total is None:
        raise text.error(
            "quantization_config.quant_method",
            f"{shortened(repr(method), 60)} is not known to partitune; allowed: one of {', '.join(METHODS)}, any "
            "method with bits, a model.safetensors.index.json with its total_size beside the config.json, or "
            "config: {weight_bits: 4.5} in the search space",
        )
    table = text.integer("vocab_size") * hidden
    tables = 2.0 * table * (1 if text.flag("tie_word_embeddings", default=stack.tied) else 2)
    tables += 2.0 * read_vision(outer, hidden).params

    def stored(width: float) -> float:
        layers, drafter = stack.layers(uniform(text, width), hidden)
        return tables + sum(layer.weight_bytes for layer in layers) + drafter.weight_bytes

    low, high = stored(1), stored(16)
    bits = 1 + 15 * (total - low) / (high - low)
    if not 1 <= bits <= 16:
        raise text.error(
            INDEX_BYTES,
            f"the index beside the config counts {total / 1e9:.1f} GB, and this model has {low / 1e9:.1f} GB at one "
            f"bit and {high / 1e9:.1f} GB at 16 bits a weight; allowed: the index of this model",
        )
    doubt = f"{method} is not known: weight matrices are taken to have {bits:.2f} bits each, by the checkpoint's total"
    return uniform(text, bits), (f"{doubt} of {total / 1e9:.1f} GB",)


def contradictions(outer: Fields, layers: Sequence[Layer], read_bytes: float) -> tuple[str, ...]:
    """What the checkpoint's own files, or else its index, say against the reading.

    Args:
        outer: the config, with what was counted beside it.
        layers: as read.
        read_bytes: of the whole checkpoint.
    """
    return _miscounted(outer, layers) or _counted(outer, read_bytes)


def _counted_layers(outer: Fields) -> Mapping[int, int]:
    counted = outer.data.get(LAYER_BYTES)
    return counted if isinstance(counted, dict) else {}


def _by_layer(text: Fields, stack: Stack, hidden: int, counted: Mapping[int, int]) -> Quantisation | None:
    """The width of each layer's matrices that gives the bytes which were counted; None where none from 1 to 16 does."""
    low, high = stack.layers(uniform(text, 1), hidden)[0], stack.layers(uniform(text, 16), hidden)[0]
    widths = {}
    for narrow, wide in zip(low, high, strict=True):
        stored, span = counted.get(narrow.index, 0), wide.weight_bytes - narrow.weight_bytes
        widths[narrow.index] = 1 + 15 * (stored - narrow.weight_bytes) / span if span else 16.0
    return by_layer(text, widths) if all(1 <= width <= 16 for width in widths.values()) else None


def _miscounted(outer: Fields, layers: Sequence[Layer]) -> tuple[str, ...]:
    """Where the checkpoint's files store another number of bytes in a layer than was read."""
    counted = _counted_layers(outer)
    off = [
        layer
        for layer in layers
        if counted and abs(layer.weight_bytes / (counted.get(layer.index) or 1) - 1) > _COUNT_OFF
    ]
    if not off:
        return ()
    first = off[0]
    sizes = f"as {first.weight_bytes / 1e6:.1f} MB, stored in {counted.get(first.index, 0) / 1e6:.1f} MB"
    many = f"{len(off)} of {len(layers)} layers are read otherwise than the checkpoint's files store them"
    return (f"{many}: layer {first.index} {sizes}",)


def _counted(outer: Fields, read_bytes: float) -> tuple[str, ...]:
    """What the checkpoint's own index says against the reading."""
    total = outer.integer_or_none(INDEX_BYTES, high=2**60)
    if total is None or abs(read_bytes / total - 1) <= _COUNT_OFF:
        return ()
    return (f"read as {read_bytes / 1e9:.1f} GB of weights, and the checkpoint's index counts {total / 1e9:.1f} GB",)
