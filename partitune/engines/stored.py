"""A model as a start keeps it: weights that are quantised while they are loaded, KV in a type that the flags name.

Decision: what kernels read follows from it, so that times are asked of this model and memory of it too; rules and KV
planning are asked with the checkpoint's own. A checkpoint is quantised again by reading its config with another
`quantization_config`, so that what stays in 16 bits is decided in the one place that decides it for checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from partitune.models.architecture import Architecture
from partitune.models.reader import quantised

_EXPERTS = ("re:.*experts.*",)


def _floats(bits: int, group: int, targets: Sequence[str] = ("Linear",)) -> Mapping[str, object]:
    weights = {"num_bits": bits, "type": "float", "group_size": group}
    return _compressed(weights, targets)


def _compressed(weights: Mapping[str, object], targets: Sequence[str]) -> Mapping[str, object]:
    groups = {"group_0": {"targets": list(targets), "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


#: How weights are stored -> the `quantization_config` of a checkpoint that is stored so.
FORMATS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "fp8": {"quant_method": "fp8"},
        "fp8 blocks": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        "mxfp8": {"quant_method": "mxfp8"},
        "mxfp4": _floats(4, 32),
        "experts int8": _compressed({"num_bits": 8, "type": "int", "group_size": -1}, _EXPERTS),
        "experts nvfp4": _floats(4, 16, _EXPERTS),
        "experts mxfp4": {"quant_method": "mxfp4"},
        "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    }
)


def quantised_as(architecture: Architecture, name: str) -> Architecture:
    """The model with its weights stored in one of `FORMATS`; itself where its config is not known."""
    return quantised(architecture, FORMATS[name]) if architecture.config else architecture


def with_cache_bytes(architecture: Architecture, token_bytes: Iterable[float]) -> Architecture:
    """The model with what one token takes in the cache of every layer on one rank."""
    layers = tuple(
        replace(layer, attention=replace(layer.attention, cached_bytes=size)) if size else layer
        for layer, size in zip(architecture.layers, token_bytes, strict=True)
    )
    return replace(architecture, layers=layers)
