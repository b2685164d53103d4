"""How many bytes a weight matrix takes, from the `quantization_config` of a checkpoint.

Decision: bytes are counted matrix by matrix, scales included, and by the engines' rules for what stays 16-bit
(embedding, head, router, norms, and the modules named in the config), because a partition is decided by gigabytes per
layer and an average over the file hides them. An unknown method is an error: a guessed weight size is worse than none.

Formats follow vLLM 0.32 `model_executor/layers/quantization`: block FP8 has one float32 scale per 128x128 block,
MXFP4 and MXFP8 one byte per 32 weights, NVFP4 one FP8 scale per 16, integer formats one 16-bit scale per group.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from partitune.models.fields import Fields


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Storage of one matrix: element width and the scales beside it."""

    name: str
    bits: float
    scale_bytes: int = 0
    scale_rows: int = 1  # rows that share a scale; 0: all
    scale_columns: int = 0  # columns that share a scale; 0: all

    def matrix_bytes(self, rows: int, columns: int) -> float:
        """Bytes of a rows x columns matrix with its scales."""
        groups = -(-rows // (self.scale_rows or rows)) * -(-columns // (self.scale_columns or columns))
        return rows * columns * self.bits / 8 + groups * self.scale_bytes


BF16 = WeightFormat("bf16", 16)
FP8_CHANNEL = WeightFormat("fp8", 8, scale_bytes=4)
MXFP4 = WeightFormat("mxfp4", 4, scale_bytes=1, scale_columns=32)
MXFP8 = WeightFormat("fp8", 8, scale_bytes=1, scale_columns=32)
NVFP4 = WeightFormat("nvfp4", 4, scale_bytes=1, scale_columns=16)
METHODS = ("fp8", "fbgemm_fp8", "compressed-tensors", "mxfp4", "mxfp8", "modelopt", "awq", "gptq", "bitsandbytes")

#: A pattern in an ignore list is run against module names; one that backtracks without end must not hang the reader.
_REGEX_LENGTH = 200
_REGEX_WILDCARDS = 6
_QUANTIFIED_GROUP = re.compile(r"\)\s*[*+{]")


class ModuleNames:
    """The names in an ignore list, as the engines match them.

    A name matches every module whose dotted path holds it (`gate`, `self_attn`, a full path); `*` is a wildcard from
    the start of the path; `re:` starts a regular expression matched from there (compressed-tensors).
    """

    __slots__ = ("_exact", "_globs", "_regexes")

    def __init__(self, fields: Fields, *keys: str) -> None:
        self._exact: set[str] = set()
        self._globs: list[re.Pattern[str]] = []
        self._regexes: list[re.Pattern[str]] = []
        for key in keys:
            for index, entry in enumerate(fields.sequence(key) or []):
                if not isinstance(entry, str):
                    raise fields.wrong(f"{key}[{index}]", entry, "a module name or re:PATTERN")
                self._add(fields, f"{key}[{index}]", entry)

    def _add(self, fields: Fields, key: str, entry: str) -> None:
        if entry.startswith("re:"):
            self._regexes.append(_safe_regex(fields, key, entry[3:]))
            return
        name = entry.replace("language_model.", "").replace("backbone.", "model.").replace("model.model.", "model.")
        if "*" in name:
            self._globs.append(re.compile(fnmatch.translate(name)))
        else:
            self._exact.add(name)

    def match(self, module: str) -> bool:
        """True when the module is named."""
        parts = module.split(".")
        ends = range(1, len(parts) + 1)
        if self._exact and any(".".join(parts[start:end]) in self._exact for end in ends for start in range(end)):
            return True
        if any(glob.match(".".join(parts[:end])) for glob in self._globs for end in ends):
            return True
        return any(regex.match(module) for regex in self._regexes)


def _safe_regex(fields: Fields, key: str, pattern: str) -> re.Pattern[str]:
    wildcards = sum(pattern.count(mark) for mark in "*+{")
    if len(pattern) > _REGEX_LENGTH or wildcards > _REGEX_WILDCARDS or _QUANTIFIED_GROUP.search(pattern):
        raise fields.error(
            key,
            f"allowed is a pattern of at most {_REGEX_LENGTH} characters and {_REGEX_WILDCARDS} "
            "repetitions, none of a group",
        )
    try:
        return re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise fields.error(key, f"not a regular expression: {error}") from None


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What each module of a checkpoint is stored in."""

    rules: tuple[tuple[ModuleNames | None, WeightFormat], ...] = ()  # first match wins; None matches every matrix
    kept: ModuleNames | None = None  # modules that stay 16-bit
    experts: WeightFormat | None = None  # of routed experts, before the rules

    def format_of(self, module: str) -> WeightFormat:
        """Format of the matrix called `module` (`model.layers.3.mlp.experts.0.up_proj`)."""
        if self.kept is not None and self.kept.match(module):
            return BF16
        if self.experts is not None and ".experts." in module:
            return self.experts
        for names, weight_format in self.rules:
            if names is None or names.match(module):
                return weight_format
        return BF16


def read_quantisation(config: Fields) -> Quantisation:
    """The Quantisation of a `quantization_config` (or of an `hf_quant_config.json` put under that key).

    Raises:
        SpecError: an unknown method or ill-typed value.
    """
    section = config.section("quantization_config")
    if section is None:
        return Quantisation()
    method = section.text("quant_method") or ("modelopt" if section.has("quant_algo", "quantization") else "")
    kept = ModuleNames(section, "modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
    if method in _ONE_FORMAT:
        return Quantisation(((None, _ONE_FORMAT[method](section)),), kept)
    if method == "mxfp4":
        return Quantisation(kept=kept, experts=MXFP4)
    if method == "compressed-tensors":
        return Quantisation(_compressed_rules(section), kept)
    if method.startswith("modelopt"):
        return _modelopt(section, kept)
    if method == "bitsandbytes":
        return Quantisation(((None, _bitsandbytes(section)),), kept)
    if section.has(*_BITS):
        return Quantisation(((None, _grouped_integer(section)),), kept)
    raise section.wrong("quant_method", method, f"one of {', '.join(METHODS)}, or any with bits")


_BITS = ("bits", "w_bit")


def unknown_method(config: Fields) -> str | None:
    """The name of a method that `read_quantisation` refuses; None where it reads the config."""
    section = config.section("quantization_config")
    if section is None or section.has("quant_algo", "quantization", *_BITS):
        return None
    method = section.text("quant_method")
    return None if method in METHODS or method.startswith("modelopt") or not method else method


def named_method(config: Fields) -> str:
    """The method that engines look up for this config; empty where it names none."""
    section = config.section("quantization_config")
    if section is None:
        return ""
    default = "modelopt" if section.has("quant_algo", "quantization") else ""
    return section.text("quant_method", default).lower().replace("compressed_tensors", "compressed-tensors")


def uniform(config: Fields, bits: float) -> Quantisation:
    """Every matrix that the config does not keep 16-bit at `bits` a weight, scales included."""
    section = config.section("quantization_config")
    kept = ModuleNames(section, "modules_to_not_convert", "ignore") if section else None
    name = "bf16" if bits > 12 else "fp8" if bits > 6 else "int4"  # whose kernels are nearest
    return Quantisation(((None, WeightFormat(name, bits)),), kept)


def by_layer(config: Fields, widths: Mapping[int, float]) -> Quantisation:
    """Every matrix of a layer at its own bits a weight, scales included; other matrices at the mean."""
    rules: list[tuple[ModuleNames | None, WeightFormat]] = []
    for index, bits in widths.items():
        names = Fields({"modules": [f"layers.{index}"]}, config.source, config.path)
        rules.append((ModuleNames(names, "modules"), uniform(config, bits).rules[0][1]))
    mean = sum(widths.values()) / len(widths)
    rules.append((None, uniform(config, mean).rules[0][1]))
    return Quantisation(tuple(rules), uniform(config, mean).kept)


def _bitsandbytes(section: Fields) -> WeightFormat:
    """4 bits with a 32-bit maximum each 64 weights, itself stored in a byte where doubly quantised; else 8 by row."""
    if section.flag("load_in_8bit", default=False):
        return WeightFormat("int8", 8, scale_bytes=4)
    if not section.flag("load_in_4bit", default=False):
        raise section.error("load_in_4bit", "missing; allowed: load_in_4bit or load_in_8bit that is true")
    twice = section.flag("bnb_4bit_use_double_quant", default=False)
    return WeightFormat("int4", 4, scale_bytes=1 if twice else 4, scale_columns=64)


def _fp8(section: Fields, key: str = "weight_block_size") -> WeightFormat:
    block = section.integers(key, low=1, high=2**16)
    if not block:
        return FP8_CHANNEL
    if len(block) != 2:
        raise section.error(key, "allowed is a list of two whole numbers, as [128, 128]")
    return WeightFormat("fp8", 8, scale_bytes=4, scale_rows=block[0], scale_columns=block[1])


def _grouped_integer(section: Fields) -> WeightFormat:
    key = next((name for name in _BITS if section.has(name)), "bits")
    bits = section.number_or_none(key, low=1, high=16) or 4
    group = section.integer_or_none("group_size", "q_group_size", low=-1, high=2**16)
    return WeightFormat(f"int{round(bits)}", bits, scale_bytes=3, scale_columns=max(group or 0, 0))


#: Methods that store every matrix alike: name -> its format by the config.
_ONE_FORMAT: Mapping[str, Callable[[Fields], WeightFormat]] = {
    "fp8": _fp8,
    "fbgemm_fp8": lambda _: FP8_CHANNEL,
    "mxfp8": lambda _: MXFP8,
    "awq": _grouped_integer,
    "gptq": _grouped_integer,
}


def _compressed_rules(section: Fields) -> tuple[tuple[ModuleNames | None, WeightFormat], ...]:
    groups = section.section("config_groups")
    if groups is None or not groups.data:
        raise section.error("config_groups", "missing; compressed-tensors names its formats there")
    rules: list[tuple[ModuleNames | None, WeightFormat]] = []
    for name in groups.data:
        group = groups.section(name)
        weights = group.section("weights") if group is not None else None
        if group is None or weights is None:
            raise section.error(f"config_groups.{name}.weights", "missing; an object with num_bits and type is needed")
        every = "Linear" in (group.sequence("targets") or ["Linear"])
        rules.append((None if every else ModuleNames(group, "targets"), _compressed_format(weights)))
    return tuple(rules)


def _compressed_format(weights: Fields) -> WeightFormat:
    bits = weights.integer("num_bits", low=2, high=16)
    kind = weights.text("type", "int")
    group = weights.integer_or_none("group_size", low=-1, high=2**16)
    columns = max(group or 0, 0)
    if kind == "float" and bits == 4:
        return MXFP4 if columns == 32 else NVFP4
    if kind == "float" and bits == 8:
        return MXFP8 if columns == 32 else _fp8(weights, "block_structure")
    if kind == "int":
        return WeightFormat(f"int{bits}", bits, scale_bytes=2, scale_columns=columns)
    raise weights.wrong("type", kind, f"int, or float with num_bits 4 or 8 (it is {bits})")


def _modelopt(section: Fields, kept: ModuleNames) -> Quantisation:
    inner = section.section("quantization") or section
    if inner is not section:
        kept = ModuleNames(inner, "exclude_modules", "ignore")
    algorithm = inner.text("quant_algo").upper()
    formats = {"FP8": FP8_CHANNEL, "NVFP4": NVFP4, "MXFP8": MXFP8, "FP8_PB_WO": WeightFormat("fp8", 8, 4, 128, 128)}
    if algorithm in formats:
        return Quantisation(((None, formats[algorithm]),), kept)
    layers = inner.section("quantized_layers")
    if algorithm != "MIXED_PRECISION" or layers is None:
        raise inner.wrong("quant_algo", algorithm, f"one of {', '.join(formats)}, MIXED_PRECISION")
    modules: dict[str, list[str]] = {name: [] for name in formats}
    for module in layers.data:
        entry = layers.section(module)
        if entry and (name := entry.text("quant_algo").upper()) in modules:
            modules[name].append(module)
    named = Fields(modules, inner.source, inner.path)
    return Quantisation(tuple((ModuleNames(named, name), formats[name]) for name in formats), kept)
