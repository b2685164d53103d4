"""Weight formats of the libraries that nest them: torchao, HQQ, AMD Quark.

Decision: read from what the library itself writes into `quantization_config`; a checkpoint that names only the library,
or a scheme that no row here has, is not guessed at and takes the ways round of an unknown method (its bits, its index).

Sources: torchao 0.18 `quantization/quant_api.py` and `core/config.py` (types, group sizes that are left out);
transformers 5.24 `utils/quantization_config.py` (TorchAoConfig, HqqConfig); vLLM 0.14.1 `quantization/hqq_marlin.py`;
vLLM 0.33.0 `quantization/quark/quark.py` and `quantization/torchao.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from partitune.models.fields import Fields
from partitune.models.quantisation import (
    BF16,
    FP8_CHANNEL,
    MXFP4,
    MXFP8,
    NVFP4,
    ModuleNames,
    Quantisation,
    WeightFormat,
    read_quantisation,
    unknown_method,
)

_INT8_ROWS = WeightFormat("int8", 8, scale_bytes=2)
_DEFAULT = "_default"  # torchao's name for all other modules
_Rule = tuple[ModuleNames | None, WeightFormat]


def stored_formats(config: Fields) -> Quantisation | None:
    """What the `quantization_config` of a model says of its matrices; None where it does not say.

    Raises:
        SpecError: an ill-typed value.
    """
    section = config.section("quantization_config")
    if section is not None and (read := _LIBRARIES.get(section.text("quant_method"))):
        return read(section)
    return None if unknown_method(config) is not None else read_quantisation(config)


def _torchao(section: Fields) -> Quantisation | None:
    types = section.section("quant_type")
    scheme = types.section("default") if types is not None else None
    data = scheme.section("_data") if scheme is not None else None
    if scheme is None or data is None:
        return None
    kept = ModuleNames(section, "modules_to_not_convert")
    named = data.section("fqn_to_config") or data.section("module_fqn_to_config")
    if named is None:
        stored = _torchao_format(scheme)
        return None if stored is None else Quantisation(((None, stored),), kept)
    rules: list[_Rule] = []
    for module in sorted(named.data, key=lambda name: name == _DEFAULT):
        part = named.section(module)
        stored = BF16 if part is None else _torchao_format(part)
        if stored is None:
            return None
        rules.append((None if module == _DEFAULT else _names(section, [module]), stored))
    return Quantisation(tuple(rules), kept)


def _torchao_format(scheme: Fields) -> WeightFormat | None:
    """Of one configuration class by its name; a scale and a zero of 16 bits each a group of 4-bit weights."""
    data = scheme.section("_data") or Fields({}, scheme.source, scheme.path)
    kind = scheme.text("_type").rsplit(".", 1)[-1]
    if kind in ("Int4WeightOnlyConfig", "Float8DynamicActivationInt4WeightConfig"):
        group = data.integer_or_none("group_size", low=1, high=2**16) or 128
        return WeightFormat("int4", 4, scale_bytes=4, scale_columns=group)
    if kind == "Int8WeightOnlyConfig":
        group = data.integer_or_none("group_size", low=1, high=2**16) or 0
        return WeightFormat("int8", 8, scale_bytes=2, scale_columns=group)
    if kind == "MXDynamicActivationMXWeightConfig":
        element = data.section("weight_dtype")
        return MXFP4 if element is not None and "float4" in element.text("_data") else MXFP8
    return _TORCHAO.get(kind)


_TORCHAO: Mapping[str, WeightFormat] = MappingProxyType(
    {
        "Int8DynamicActivationInt8WeightConfig": _INT8_ROWS,
        "Int8StaticActivationInt8WeightConfig": _INT8_ROWS,
        "Float8WeightOnlyConfig": FP8_CHANNEL,
        "Float8DynamicActivationFloat8WeightConfig": FP8_CHANNEL,
        "NVFP4DynamicActivationNVFP4WeightConfig": NVFP4,
        "NVFP4WeightOnlyConfig": NVFP4,
    }
)


def _hqq(section: Fields) -> Quantisation | None:
    scheme = section.section("quant_config")
    weights = scheme.section("weight_quant_params") if scheme is not None else None
    if weights is None:
        return None
    bits = weights.integer("nbits", low=1, high=8)
    group = weights.integer_or_none("group_size", low=1, high=2**16) or 0
    stored = WeightFormat(f"int{bits}", bits, scale_bytes=4, scale_columns=group)
    return Quantisation(((None, stored),), ModuleNames(section, "skip_modules"))


def _quark(section: Fields) -> Quantisation | None:
    rules: list[_Rule] = []
    by_layer = section.section("layer_quant_config")
    for pattern in by_layer.data if by_layer is not None else ():
        part = by_layer.section(pattern) if by_layer is not None else None
        stored = None if part is None else _quark_format(part)
        if stored is None:
            return None
        rules.append((_names(section, [pattern]), stored))
    everywhere = section.section("global_quant_config")
    if everywhere is not None and everywhere.data:
        stored = _quark_format(everywhere)
        if stored is None:
            return None
        rules.append((None, stored))
    return Quantisation(tuple(rules), ModuleNames(section, "exclude")) if rules else None


def _quark_format(part: Fields) -> WeightFormat | None:
    """Of the narrowest of its steps: others are of scales, or what the weights are widened to."""
    weight = part.data.get("weight")
    steps = weight if isinstance(weight, list) else [weight]
    formats = [_quark_step(Fields(step, part.source, part.path)) for step in steps if isinstance(step, dict)]
    if weight is None:
        return BF16
    known = [stored for stored in formats if stored is not None]
    return min(known, key=lambda stored: stored.bits) if known and len(known) == len(formats) else None


def _quark_step(step: Fields) -> WeightFormat | None:
    kind, scheme = step.text("dtype"), step.text("qscheme")
    group = step.integer_or_none("group_size", low=1, high=2**16) or 0
    columns = group if scheme == "per_group" else 0
    if kind == "fp4":
        return {16: NVFP4, 32: MXFP4}.get(group)
    if kind.startswith("fp8"):
        block = step.integers("block_size", low=1, high=2**16)
        if scheme == "per_block" and len(block) == 2:
            return WeightFormat("fp8", 8, scale_bytes=4, scale_rows=block[0], scale_columns=block[1])
        return MXFP8 if columns == 32 else FP8_CHANNEL
    if kind in ("int4", "uint4", "int8", "uint8"):
        bits = int(kind[-1])
        return WeightFormat(f"int{bits}", bits, scale_bytes=2, scale_columns=columns)
    return None


def _names(section: Fields, modules: list[str]) -> ModuleNames:
    return ModuleNames(Fields({"modules": modules}, section.source, section.path), "modules")


_LIBRARIES: Mapping[str, Callable[[Fields], Quantisation | None]] = MappingProxyType(
    {"torchao": _torchao, "hqq": _hqq, "quark": _quark}
)
