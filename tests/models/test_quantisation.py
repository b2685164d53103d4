"""Which matrices are stored in how many bytes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from partitune.errors import SpecError
from partitune.models.architecture import Architecture
from partitune.models.fields import Fields
from partitune.models.quantisation import BF16, MXFP4, NVFP4, Quantisation, read_quantisation
from partitune.models.reader import load_architecture, read_architecture

LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 32000,
}


def _read(section: object) -> Quantisation:
    return read_quantisation(Fields({"quantization_config": section}, "config.json"))


def _llama(section: object) -> Architecture:
    return read_architecture({**LLAMA, "quantization_config": section}, name="x", source="config.json")


def test_block_fp8_has_one_scale_per_block() -> None:
    found = _read({"quant_method": "fp8", "weight_block_size": [128, 128]}).format_of("model.layers.0.mlp.up_proj")
    assert found.matrix_bytes(256, 384) == 256 * 384 + 2 * 3 * 4
    assert found.matrix_bytes(1, 1) == 1 + 4


@pytest.mark.parametrize(("stored", "bits"), [(MXFP4, 4.25), (NVFP4, 4.5), (BF16, 16)])
def test_bits_per_weight(stored: object, bits: float) -> None:
    assert isinstance(stored, type(BF16))
    assert stored.matrix_bytes(64, 1024) * 8 / (64 * 1024) == bits


def test_kimi_k2_5_keeps_everything_but_routed_experts() -> None:
    layer = load_architecture("kimi-k2.5").layers[5]
    assert (layer.attention.dtype, layer.ffn.dtype, layer.ffn.expert_dtype) == ("bf16", "bf16", "int4")
    assert layer.ffn.expert_bytes == 3 * 7168 * 2048 * (0.5 + 2 / 32)  # 16-bit scale per 32
    assert load_architecture("kimi-k2.5").layers[0].ffn.dtype == "bf16"  # the dense MLP


def test_gpt_oss_quantises_only_experts() -> None:
    layer = load_architecture("gpt-oss-120b").layers[0]
    assert layer.attention.dtype == "bf16"
    assert layer.ffn.expert_dtype == "mxfp4"


def test_head_and_embedding_stay_16_bit() -> None:
    edges = load_architecture("deepseek-v3").edges
    assert edges.head_bytes == edges.embedding_bytes == 2 * 129280 * 7168


def test_minimax_router_stays_16_bit_and_gate_projections_do_not() -> None:
    # modules_to_not_convert says "gate": the router, not gate_proj
    quantisation = _read({"quant_method": "fp8", "modules_to_not_convert": ["gate", "lm_head"]})
    assert quantisation.format_of("model.layers.3.mlp.gate") is BF16
    assert quantisation.format_of("model.layers.3.mlp.gate_proj").name == "fp8"


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ("model.layers.1.self_attn", True),
        ("model.language_model.layers.1.self_attn.q_proj", True),
        ("language_model.model.layers.1.self_attn.q_proj", True),
        ("model.layers.*.self_attn", True),
        ("re:.*self_attn.*", True),
        ("re:.*mlp.*", False),
        ("model.layers.11.self_attn", False),
        ("q_pro", False),
    ],
)
def test_ignore_lists(entry: str, kept: bool) -> None:
    quantisation = _read({"quant_method": "fp8", "ignore": [entry]})
    assert (quantisation.format_of("model.layers.1.self_attn.q_proj") is BF16) is kept


def test_a_named_layer_is_kept_and_its_neighbour_is_not() -> None:
    plain = read_architecture(LLAMA, name="x", source="config.json")
    quantised = _llama({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0"]})
    assert quantised.layers[0].weight_bytes == plain.layers[0].weight_bytes
    assert quantised.layers[1].weight_bytes < 0.51 * plain.layers[1].weight_bytes


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "exclude_modules": []}}, "nvfp4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "bf16"),  # a dense model has no routed experts
    ],
)
def test_methods(section: object, name: str) -> None:
    assert _llama(section).layers[0].attention.dtype == name


def test_mixed_precision_is_read_by_module() -> None:
    layers = {
        "model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4"},
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
    }
    quantisation = _read({"quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    names = [quantisation.format_of(f"model.layers.0.{m}").name for m in ("mlp.up_proj", "self_attn.q_proj", "mlp.x")]
    assert names == ["nvfp4", "fp8", "bf16"]


def test_separate_modelopt_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert load_architecture(tmp_path).layers[0].attention.dtype == "bf16"
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert load_architecture(tmp_path).layers[0].attention.dtype == "fp8"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"quant_method": "magic"},
            r"quantization_config\.quant_method: 'magic' is not known to partitune; allowed: one of fp8",
        ),
        ({}, r"quantization_config\.quant_method"),
        ("fp8", r"config\.json: quantization_config: 'fp8' given, allowed is an object"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"weight_block_size: allowed is a list of two"),
        ({"quant_method": "fp8", "weight_block_size": [128, -1]}, r"weight_block_size\[1\]: -1 given"),
        ({"quant_method": "fp8", "ignore": [3]}, r"ignore\[0\]: 3 given, allowed is a module name"),
        ({"quant_method": "fp8", "ignore": ["re:("]}, r"ignore\[0\]: not a regular expression"),
        ({"quant_method": "compressed-tensors"}, r"config_groups: missing"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"]}}}, r"g\.weights"),
        ({"quant_method": "modelopt", "quant_algo": "INT2"}, r"quant_algo: 'INT2' given, allowed is one of"),
    ],
)
def test_wrong_sections_are_refused(section: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        _llama(section)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(.*)*x", ".*" * 40 + "x", "a" * 1000])
def test_patterns_that_could_hang_are_refused(pattern: str) -> None:
    start = time.monotonic()
    with pytest.raises(SpecError, match=r"ignore\[0\]: allowed is a pattern"):
        _llama({"quant_method": "fp8", "ignore": [f"re:{pattern}"]})
    assert time.monotonic() - start < 5
