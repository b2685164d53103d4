"""Item 14: a quantisation that partitune does not know has ways round, each with its doubt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partitune.errors import SpecError
from partitune.models.reader import load_architecture, read_architecture
from tests.models.test_quantisation import LLAMA


def _bits_a_weight(section: dict[str, object], **stated: object) -> tuple[float, str]:
    found = read_architecture({**LLAMA, "quantization_config": section, **stated}, name="x", source="c.json")
    layer = found.layers[0]
    matrices = layer.params - layer.other_params
    return 8 * (layer.weight_bytes - 2 * layer.other_params) / matrices, "; ".join(found.doubts)


@pytest.mark.parametrize(
    ("section", "bits"),
    [
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, 4 + 24 / 128),
        ({"quant_method": "intel/auto-round", "bits": 2, "group_size": 64}, 2 + 24 / 64),
        ({"quant_method": "awq_marlin", "bits": 4, "group_size": 32}, 4 + 24 / 32),
        ({"quant_method": "exl3", "bits": 3.5, "head_bits": 6}, 3.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 4 + 8 / 64),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
    ],
)
def test_14_what_names_its_bits_is_read(section: dict[str, object], bits: float) -> None:
    found, doubts = _bits_a_weight(section)
    assert found == pytest.approx(bits, rel=0.01)
    assert not doubts


def _torchao(kind: str, data: dict[str, object]) -> dict[str, object]:
    scheme = {"_type": kind, "_version": 2, "_data": data}
    return {"quant_method": "torchao", "quant_type": {"default": scheme}, "modules_to_not_convert": ["lm_head"]}


def _hqq(bits: int, group: int) -> dict[str, object]:
    params = {"nbits": bits, "group_size": group, "channel_wise": True, "axis": 1}
    return {"quant_method": "hqq", "quant_config": {"weight_quant_params": params}, "skip_modules": ["lm_head"]}


def _quark(weight: object, **further: object) -> dict[str, object]:
    return {"quant_method": "quark", "global_quant_config": {"weight": weight}, "exclude": ["lm_head"], **further}


_MX = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}


@pytest.mark.parametrize(
    ("section", "bits"),
    [
        (_torchao("Int4WeightOnlyConfig", {"group_size": 128}), 4 + 32 / 128),
        (_torchao("Int4WeightOnlyConfig", {}), 4.25),
        (_torchao("Int8WeightOnlyConfig", {}), 8),
        (_torchao("torchao.quantization.Float8DynamicActivationFloat8WeightConfig", {}), 8),
        (_torchao("NVFP4WeightOnlyConfig", {}), 4.5),
        (_hqq(4, 64), 4 + 32 / 64),
        (_hqq(8, 128), 8 + 32 / 128),
        (_quark(_MX), 4.25),
        (_quark({"dtype": "fp8_e4m3", "qscheme": "per_tensor"}), 8),
        (_quark({"dtype": "uint4", "qscheme": "per_group", "group_size": 128}), 4 + 16 / 128),
        (_quark([{"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, {"dtype": "int4", "qscheme": "per_channel"}]), 4),
        (_quark([{"dtype": "fp4", "qscheme": "per_group", "group_size": 16}, {"dtype": "fp8_e4m3"}]), 4.5),
    ],
)
def test_14_what_a_library_nests_is_read(section: dict[str, object], bits: float) -> None:
    found, doubts = _bits_a_weight(section)
    assert found == pytest.approx(bits, rel=0.01)
    assert not doubts


def test_14_parts_that_a_library_stores_otherwise_are_told_apart() -> None:
    parts = {
        "model.layers.0.mlp.up_proj": {"_type": "Int8WeightOnlyConfig", "_data": {}},
        "model.layers.1.mlp.up_proj": None,
        "_default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}},
    }
    config = {**LLAMA, "quantization_config": _torchao("FqnToConfig", {"fqn_to_config": parts})}
    first, second = read_architecture(config, name="x", source="c.json").layers
    kinds = [{matrix.name: matrix.dtype for matrix in layer.ffn.matrices} for layer in (first, second)]
    assert [kind["up_proj"] for kind in kinds] == ["int8", "bf16"]
    assert {kind["down_proj"] for kind in kinds} == {"int4"}
    by_layer = {"*.mlp.*": {"weight": _MX}, "*.self_attn.*": {"weight": None}}
    quark = {"quant_method": "quark", "global_quant_config": {}, "layer_quant_config": by_layer, "exclude": []}
    layer = read_architecture({**LLAMA, "quantization_config": quark}, name="x", source="c.json").layers[0]
    assert (layer.attention.dtype, layer.ffn.dtype) == ("bf16", "mxfp4")


def test_14_a_scheme_of_a_library_that_has_no_row_is_not_guessed_at() -> None:
    for section in (_torchao("IntxWeightOnlyConfig", {}), _quark({"dtype": "fp6_e2m3", "group_size": 32})):
        with pytest.raises(SpecError, match=r"is not known to partitune"):
            _bits_a_weight(section)


@pytest.mark.parametrize("method", ["gguf", "torchao", "hqq", "quark", "magic"])
def test_14_what_does_not_is_refused_with_every_way_round_and_read_by_weight_bits(method: str) -> None:
    with pytest.raises(SpecError, match=r"is not known to partitune; allowed: .*bits, a model.safetensors"):
        _bits_a_weight({"quant_method": method})
    found, doubts = _bits_a_weight({"quant_method": method}, weight_bits=4.85)
    assert found == pytest.approx(4.85)
    assert "4.85 bits, as the search space says" in doubts


def test_14_weight_bits_holds_for_a_config_without_a_quantisation() -> None:
    # A GGUF file beside the original's config.json; embedding and head stay 16-bit in the engines.
    found = load_architecture("llama-8b", {"weight_bits": 4.5})
    of_layers = sum(layer.weight_bytes - 2 * layer.other_params for layer in found.layers)
    params = sum(layer.params - layer.other_params for layer in found.layers)
    assert of_layers == pytest.approx(params * 4.5 / 8)
    assert found.doubts == ("every weight matrix is taken to have 4.5 bits, as the search space says",)
    with pytest.raises(SpecError, match=r"weight_bits: 0 given, allowed is a number from 1 to 16"):
        load_architecture("llama-8b", {"weight_bits": 0})


@pytest.mark.parametrize("gigabytes", [0.09, 0.12, 0.18])
def test_14_the_checkpoints_own_index_says_what_is_stored(tmp_path: Path, gigabytes: float) -> None:
    total = int(gigabytes * 1e9)
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": {"quant_method": "torchao"}}))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}}))
    if gigabytes < 0.13:
        with pytest.raises(SpecError, match=r"counts .* GB, and this model has"):
            load_architecture(tmp_path)
        return
    found = load_architecture(tmp_path)
    assert found.weight_bytes + found.edges.drafter_bytes == pytest.approx(total, rel=0.001)
    assert "torchao is not known" in found.doubts[0]


@pytest.mark.parametrize(("share", "doubted"), [(1.0, False), (0.97, False), (0.5, True), (1.2, True)])
def test_14_a_reading_that_the_checkpoints_index_contradicts_is_a_doubt(
    tmp_path: Path, share: float, doubted: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    plain = load_architecture(tmp_path)
    index = {"metadata": {"total_size": int(share * plain.weight_bytes)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert any("index counts" in doubt for doubt in load_architecture(tmp_path).doubts) is doubted
