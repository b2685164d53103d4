"""Bytes of every layer by the headers of the safetensors files beside a config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from partitune.models.checkpoint import layer_of, stored_layers
from partitune.models.reader import load_architecture
from tests.models.test_quantisation import LLAMA


def _shard(path: Path, tensors: Mapping[str, tuple[str, int, list[int]]]) -> None:
    """A safetensors file without its data: nobody may read further than the header."""
    header, start = {"__metadata__": {"format": "pt"}}, 0
    whole: dict[str, object] = {**header}
    for name, (dtype, size, shape) in tensors.items():
        whole[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}
        start += size
    text = json.dumps(whole).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def _checkpoint(folder: Path, layers: list[int], method: str | None) -> None:
    section = {} if method is None else {"quantization_config": {"quant_method": method}}
    (folder / "config.json").write_text(json.dumps({**LLAMA, **section}))
    shards = {f"model-0000{index}.safetensors": size for index, size in enumerate(layers)}
    names = {}
    for index, (shard, size) in enumerate(shards.items()):
        tensor = f"model.layers.{index}.mlp.up_proj.qweight"
        _shard(folder / shard, {tensor: ("I32", size, [1, size // 4]), "lm_head.weight": ("BF16", 4, [2])})
        names[tensor] = shard
    index_text = json.dumps({"metadata": {"total_size": 10**9}, "weight_map": names})
    (folder / "model.safetensors.index.json").write_text(index_text)


def test_14_layers_of_an_unknown_quantisation_have_the_bytes_that_the_files_count(tmp_path: Path) -> None:
    _checkpoint(tmp_path, [20_000_000, 9_000_000], "magic")
    model = load_architecture(tmp_path)
    assert [layer.weight_bytes for layer in model.layers] == pytest.approx([20_000_000, 9_000_000])
    assert model.doubts[0] == "magic is not known: each layer has the bytes that the checkpoint's files count"


def test_14_a_reading_that_the_files_contradict_names_the_layer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    read = int(load_architecture(tmp_path).layers[0].weight_bytes)
    _checkpoint(tmp_path, [read, read // 2], None)
    doubts = load_architecture(tmp_path).doubts
    assert len(doubts) == 1
    assert doubts[0].startswith("1 of 2 layers are read otherwise than the checkpoint's files store them: layer 1 as")
    _checkpoint(tmp_path, [read, read], None)
    assert load_architecture(tmp_path).doubts[0].startswith("read as")  # the index still counts a gigabyte


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1", b"\x02" + bytes(7) + b"[]"])
def test_14_files_that_are_no_safetensors_leave_what_the_index_says(tmp_path: Path, content: bytes) -> None:
    _checkpoint(tmp_path, [20_000_000, 9_000_000], None)
    (tmp_path / "model-00001.safetensors").write_bytes(content)
    assert stored_layers(tmp_path, ["model-00000.safetensors", "model-00001.safetensors"]) == {}
    assert load_architecture(tmp_path).doubts[0].startswith("read as")


def test_14_weights_that_are_stored_in_32_bits_count_as_engines_load_them(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.mlp.gate.weight": ("F32", 400, [10, 10]),
        "model.layers.0.mlp.gate.e_score_correction_bias": ("F32", 40, [10]),
    }
    _shard(tmp_path / "model.safetensors", tensors)
    assert stored_layers(tmp_path, ["model.safetensors"]) == {0: 240}


@pytest.mark.parametrize(
    ("tensor", "layer"),
    [
        ("model.layers.12.self_attn.q_proj.weight", 12),
        ("language_model.model.layers.3.mlp.experts.7.w1.weight_packed", 3),
        ("transformer.h.5.attn.c_attn.weight", 5),
        ("vision_tower.encoder.layers.3.fc1.weight", None),
        ("model.visual.blocks.3.fc1.weight", None),
        ("mtp.layers.0.fc.weight", None),
        ("lm_head.weight", None),
    ],
)
def test_14_which_layer_a_tensor_belongs_to(tensor: str, layer: int | None) -> None:
    assert layer_of(tensor) == layer
