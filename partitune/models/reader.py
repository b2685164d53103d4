"""config.json -> Architecture, by catalog name, by file, or by the folder of a checkpoint.

Decision: the reader knows wrappers (multimodal configs hold the text model in a section), finds the family in one table
and adds what is the same for every family: embedding, head, vision tower. An unknown class is read as a plain
transformer only when its fields say nothing that a plain transformer does not have; otherwise it is refused, because a
wrong layer list gives a wrong plan that looks right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from partitune.errors import SpecError, nearest, shortened
from partitune.models.architecture import Architecture, CutKind, Edges
from partitune.models.checkpoint import stored_layers
from partitune.models.class_defaults import filled_in
from partitune.models.families import FAMILIES, plain
from partitune.models.fields import Fields
from partitune.models.published import BY_ALIAS, catalog_names, find_model
from partitune.models.quantisation import named_method
from partitune.models.stack import FamilyReader
from partitune.models.stored import INDEX_BYTES, LAYER_BYTES, contradictions, stored_in
from partitune.models.vision import cuts_before_fed_layers, read_vision

_WRAPPERS = ("text_config", "llm_config", "language_config", "thinker_config")
_SIZE_MAX = 16 * 2**20
_CONTEXT_DEFAULT = 32_768
#: A key of our own beside those of a config: the keys that a search space states.
_STATED = "_stated"
#: A key that starts so belongs to a mechanism that a plain transformer does not have.
_UNCOMMON = (
    "attn_layer_",
    "attn_type_list",
    "compress_ratios",
    "hybrid_",
    "index_topk",
    "kv_lora_rank",
    "layers_block_type",
    "linear_",
    "lru_",
    "mamba_",
    "moe_latent_size",
    "q_lora_rank",
    "sparse_attention_config",
    "ssm_",
    "state_size",
    "hidden_size_per_layer_input",
    "num_decoder_layers",
    "is_encoder_decoder",
)


#: A key with one of these words may change what a layer holds; it must have been read, or the plain reading is a guess.
_TELLING = frozenset({
    "expert", "experts", "moe", "router", "head", "heads", "rank", "ranks", "lora", "residual", "res", "cross",
    "hyper", "latent", "latents", "shared", "share", "kv", "altup", "laurel", "ngram", "engram", "indexer",
    "index", "conv", "ssm", "memory", "recurrent", "loop", "loops", "deepstack",
})  # fmt: skip
#: Ends of keys that are numbers of training or of scaling, and weigh nothing.
_HARMLESS = ("_coef", "_loss", "_multiplier", "_dropout", "_pdrop", "_factor", "_noise", "_logits", "_std", "_eps")


def read_architecture(config: Mapping[str, object], *, name: str, source: str) -> Architecture:
    """The Architecture a config.json describes.

    Args:
        config: the parsed JSON object; nothing in it is trusted.
        name: what to call the model.
        source: file, for messages and reports.

    Raises:
        SpecError: a missing, ill-typed or absurd value, or a family nobody taught us.
    """
    outer = Fields(config, source)
    text, by_class = _text_fields(outer)
    class_name = _class_name(text) or _class_name(outer)
    read = _family(text, outer, class_name)
    stack = read(text)
    quantisation, stored_doubts = stored_in(text, outer, stack)
    if read in (plain.GENERIC, plain.GENERIC_MIXTURE):
        stack.layers(quantisation, text.integer("hidden_size"))  # some keys are read layer by layer
        _refuse_what_is_not_plain(text, class_name)
    hidden = text.integer("hidden_size")
    layers, drafter = stack.layers(quantisation, hidden)
    vocabulary = text.integer("vocab_size")
    tied = text.flag("tie_word_embeddings", default=stack.tied)
    table = vocabulary * hidden
    vision = read_vision(outer, hidden)
    context = text.integer_or_none("max_position_embeddings", "max_seq_len", high=2**31)
    of_catalog = (note for note in outer.sequence("_notes") or [] if isinstance(note, str))
    notes = [*stack.notes, *vision.notes, *of_catalog]
    if context is None:
        notes.append(f"max_position_embeddings is missing; {_CONTEXT_DEFAULT} is assumed")
    if by_class:
        notes.append(f"{', '.join(by_class)}: not in the config, as transformers 5.24 has it for this class")
    if outer.has("audio_config"):
        notes.append("the audio tower is not counted")
    # Engines keep embedding and head 16-bit whatever the quantisation of the layers.
    edges = Edges(
        vocab_size=vocabulary,
        embedding_params=table,
        embedding_bytes=2.0 * table,
        tied=tied,
        head_params=0 if tied else table,
        head_bytes=2.0 * table,
        drafter_params=drafter.params,
        drafter_bytes=drafter.weight_bytes,
        vision_params=vision.params,
        vision_bytes=2.0 * vision.params,
    )
    read_bytes = sum(layer.weight_bytes for layer in layers) + drafter.weight_bytes + 2.0 * (1 + (not tied)) * table
    return Architecture(
        name=name,
        architecture=_class_name(outer) or class_name or text.text("model_type"),
        hidden_size=hidden,
        layers=layers,
        edges=edges,
        max_position=context or _CONTEXT_DEFAULT,
        source=source,
        bound_cuts={
            kind: cuts
            for kind, cuts in {**stack.bound_cuts, CutKind.VISION: cuts_before_fed_layers(outer)}.items()
            if cuts
        },
        residual_block=stack.residual_block,
        handoff_base=stack.handoff_base,
        quantisation=named_method(text),
        config=config,
        notes=tuple(notes),
        doubts=(
            *stack.doubts,
            *stored_doubts,
            *contradictions(outer, layers, read_bytes + 2.0 * vision.params),
            *_stated(outer),
        ),
    )


def _text_fields(outer: Fields) -> tuple[Fields, tuple[str, ...]]:
    """The section that describes the language model, filled in by its wrapper and its class, and what its class did."""
    inner = outer
    for _ in range(2):  # Qwen-Omni: thinker_config.text_config
        inner = next((inner.section(key) for key in _WRAPPERS if inner.has(key)), None) or inner
    filled = {
        key: outer.data[key]
        for key in ("tie_word_embeddings", "quantization_config", "vocab_size", "weight_bits")
        if outer.has(key) and not inner.has(key)
    }
    whole, absent = filled_in({**inner.data, **filled})
    return Fields(whole, outer.source, inner.path), absent


def _refuse_what_is_not_plain(text: Fields, class_name: str) -> None:
    """A class nobody taught us is read as a plain one only if every key that could say otherwise was read."""
    telling = [key for key in text.unread() if _TELLING & set(key.lower().split("_")) and not key.endswith(_HARMLESS)]
    if telling:
        raise text.error(
            telling[0],
            f"{class_name[:80] or 'the class'} is not known, and its {', '.join(key[:40] for key in telling[:4])} may "
            "change what a layer holds; allowed: a known class (config: {model_type: mixtral} in the search space), or "
            f"config: {{{telling[0][:40]}: null}} where it changes no weight",
        )


def _stated(outer: Fields) -> tuple[str, ...]:
    keys = [str(key) for key in outer.sequence(_STATED) or [] if key != "weight_bits"]
    return (f"the search space states {', '.join(keys)} of the model's config",) if keys else ()


def quantised(architecture: Architecture, section: Mapping[str, object]) -> Architecture:
    """The same model with its 16-bit weights stored as a `quantization_config` says; what it keeps stays as it is."""
    config = {**architecture.config, "quantization_config": section, INDEX_BYTES: None}
    read = read_architecture(config, name=architecture.name, source=architecture.source)
    return replace(read, repository=architecture.repository, doubts=architecture.doubts, notes=architecture.notes)


def _class_name(fields: Fields) -> str:
    names = fields.sequence("architectures") or [""]
    if not isinstance(names[0], str):
        raise fields.error("architectures", "allowed is a list of class names")
    return names[0]


def _family(text: Fields, outer: Fields, class_name: str) -> FamilyReader:
    for key in (text.text("model_type"), class_name, _class_name(outer)):
        if key in FAMILIES:
            return FAMILIES[key]
    uncommon = sorted(key for key in text.data if key.startswith(_UNCOMMON) and text.data[key] not in (None, False))
    sized = text.has("hidden_size") and text.has("num_hidden_layers") and text.has("num_attention_heads")
    if not sized or uncommon:
        supported = sorted(key for key in FAMILIES if key == key.lower())
        why = (
            f"it has {', '.join(key[:40] for key in uncommon[:4])}"
            if uncommon
            else "it names no hidden_size, layers and heads"
        )
        raise text.error(
            "model_type",
            f"{(class_name or text.text('model_type') or 'no class')[:80]} is not known and does not look like a plain "
            f"transformer ({why}); supported: {', '.join(supported)}",
        )
    if text.has("num_experts", "num_local_experts", "n_routed_experts"):
        return plain.GENERIC_MIXTURE
    return plain.GENERIC


def load_architecture(name_or_path: str | Path, stated: Mapping[str, object] = MappingProxyType({})) -> Architecture:
    """An Architecture by catalog name (`kimi-k3`, `moonshotai/Kimi-K3`), config.json, or folder that holds one.

    Args:
        name_or_path: of the model.
        stated: keys that stand instead of the config's own, sections merged key by key; null takes a key out.

    Raises:
        SpecError: unknown name, unreadable file, or a config that read_architecture refuses.
    """
    path = _existing_config(name_or_path)
    if path is not None:
        name = path.resolve().parent.name if path.name == "config.json" else path.name.removesuffix(".json")
        config = _merged(_with_what_lies_beside(_parse(path), path), stated)
        return read_architecture(config, name=name, source=str(path))
    model = find_model(str(name_or_path))
    if model is None:
        raise SpecError(_unknown(str(name_or_path)))
    source = f"partitune/models/configs/{model.file}"
    config = _merged(_decode(model.config_text(), source), stated)
    architecture = read_architecture(config, name=model.name, source=source)
    return replace(architecture, repository=model.repository_called(str(name_or_path)))


def _existing_config(name_or_path: str | Path) -> Path | None:
    text = str(name_or_path)
    path = Path(text).expanduser()
    try:
        if path.is_dir() and (path / "config.json").is_file():
            return path / "config.json"
        # A bare word is a catalog name first, whatever lies in the current folder under it.
        if path.is_file() and (find_model(text) is None or isinstance(name_or_path, Path)):
            return path
        if path.is_dir() and find_model(text) is None:
            raise SpecError(f"{path}: this folder holds no config.json")
    except (OSError, ValueError) as error:  # name too long, null byte
        raise SpecError(f"{text[:80]!r} is neither a catalog name nor a path: {error}") from None
    return None


def _unknown(name: str) -> str:
    tail = name.lower().rsplit("/", 1)[-1]
    near = [*nearest(name, BY_ALIAS, most=3, alike=0.5), *nearest(tail, BY_ALIAS, most=3)]
    names = list(dict.fromkeys(BY_ALIAS[match].name for match in near))[:3] or list(catalog_names()[:3])
    return (
        f"model {shortened(name, 80)!r} is not in the catalog (nearest: {', '.join(names)}) and no such file exists; "
        "pass the path of a config.json, or of the folder that holds one, as ./My-Model"
    )


def _parse(path: Path) -> dict[str, object]:
    try:
        if path.stat().st_size > _SIZE_MAX:
            raise SpecError(f"{path}: larger than {_SIZE_MAX // 2**20} MiB; a config.json is expected")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 text (byte {error.start}); a config.json is expected") from None
    return _decode(text, str(path))


def _decode(text: str, source: str) -> dict[str, object]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise SpecError(f"{source}:{error.lineno}: not JSON: {error.msg} (column {error.colno})") from None
    except (RecursionError, ValueError) as error:
        raise SpecError(f"{source}: not a usable JSON file: {error}") from None
    if not isinstance(data, dict):
        raise SpecError(f"{source}:1: a JSON object is expected, not a {type(data).__name__}")
    return data


def _with_what_lies_beside(config: dict[str, object], path: Path) -> dict[str, object]:
    """Add what the checkpoint's index counts, and ModelOpt's separate quantisation where the config names none.

    The engines read `hf_quant_config.json` as well.
    """
    if path.name != "config.json":
        return config
    quantised, index = path.parent / "hf_quant_config.json", path.parent / "model.safetensors.index.json"
    whole = {key: value for key, value in config.items() if key not in (INDEX_BYTES, LAYER_BYTES, _STATED)}
    if "quantization_config" not in config and quantised.is_file():
        whole["quantization_config"] = _parse(quantised)
    shards = {"model.safetensors"}
    if index.is_file():
        entries = Fields(_parse(index), str(index))
        metadata, tensors = entries.section("metadata"), entries.section("weight_map")
        total = metadata.integer_or_none("total_size", high=2**60) if metadata else None
        whole |= {} if total is None else {INDEX_BYTES: total}
        shards = {str(shard) for shard in tensors.data.values()} if tensors else set()
    return {**whole, LAYER_BYTES: stored_layers(path.parent, shards)}


def _merged(config: Mapping[str, object], stated: Mapping[str, object]) -> dict[str, object]:
    def laid_over(under: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
        whole = dict(under)
        for key, value in over.items():
            below = under.get(key)
            whole[key] = laid_over(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
        return whole

    return {**laid_over(config, stated), _STATED: list(stated)} if stated else dict(config)
