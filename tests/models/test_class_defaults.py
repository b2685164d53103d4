"""Configs that lean on their class, and classes of two-matrix MLPs: published sizes, values of transformers 5.24."""

from __future__ import annotations

import pytest

from partitune.models.architecture import Architecture
from partitune.models.class_defaults import CLASS_DEFAULTS
from partitune.models.families import FAMILIES
from partitune.models.published import catalog_names
from partitune.models.reader import load_architecture, read_architecture


def _sized(
    kind: str, hidden: int, inner: int, layers: int, heads: int, vocabulary: int, **more: object
) -> Architecture:
    config: dict[str, object] = {
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
    }
    return read_architecture({**config, **more}, name=kind, source="config.json")


@pytest.mark.parametrize(
    ("model", "params"),
    [
        (_sized("phi", 2560, 10240, 32, 32, 51200), 2_779_683_840),  # Phi-2
        (_sized("stablelm", 2560, 6912, 32, 32, 50304), 2_795_443_200),  # StableLM-3B-4E1T
        (_sized("starcoder2", 3072, 12288, 30, 24, 49152), 3_030_371_328),  # StarCoder2-3B, two KV heads by its class
        (_sized("gpt_neox", 6144, 24576, 44, 64, 50432), 20_554_567_680),  # GPT-NeoX-20B
        (_sized("opt", 4096, 16384, 32, 32, 50272), 6_658_473_984),  # OPT-6.7B
    ],
)
def test_16_published_sizes_of_models_that_were_read_as_a_llama(model: Architecture, params: int) -> None:
    assert model.params == pytest.approx(params, rel=0.002)
    assert not model.doubts


def test_16_what_a_class_fills_in_changes_windows_and_heads() -> None:
    mistral = _sized("mistral", 4096, 14336, 8, 32, 32000)
    assert {layer.attention.window for layer in mistral.layers} == {4096}
    written = _sized("mistral", 4096, 14336, 8, 32, 32000, sliding_window=None)
    assert {layer.attention.window for layer in written.layers} == {None}
    qwen = _sized("qwen3", 1024, 3072, 4, 16, 151936, num_key_value_heads=8)
    assert qwen.layers[0].attention.kv_bytes_per_token == 2 * 2 * 8 * 128  # head_dim of the class, not 1024 / 16
    olmo = _sized("olmo3", 4096, 11008, 8, 32, 100278)
    assert [layer.attention.window is None for layer in olmo.layers] == [False, False, False, True] * 2


def test_16_no_model_of_the_catalog_leans_on_its_class_for_what_its_config_was_shortened_by() -> None:
    leaning = {name: load_architecture(name).notes for name in catalog_names()}
    assert not {name: notes for name, notes in leaning.items() if any("not in the config" in note for note in notes)}


def test_16_every_class_with_defaults_has_a_reader() -> None:
    assert set(CLASS_DEFAULTS) <= set(FAMILIES)
