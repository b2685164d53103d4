"""Names, paths, wrappers, and what is said about input that is wrong."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from pathlib import Path

import pytest

from partitune.errors import SpecError
from partitune.models.published import MODELS, catalog_names
from partitune.models.reader import load_architecture, read_architecture
from tests.small_models import PLAIN


def _shipped(file: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(files("partitune.models").joinpath("configs", file).read_text())
    return found


@pytest.mark.parametrize("name", ["kimi-k3", "KIMI-K3", "moonshotai/Kimi-K3", " k3 ", "Kimi-k3"])
def test_catalog_names_ignore_case_and_have_aliases(name: str) -> None:
    assert load_architecture(name).name == "kimi-k3"


def test_catalog_and_files_agree() -> None:
    shipped = {
        item.name for item in files("partitune.models").joinpath("configs").iterdir() if item.name.endswith("json")
    }
    assert shipped == {model.file for model in MODELS}
    assert catalog_names() == tuple(sorted(model.name for model in MODELS))
    aliases = [alias.lower() for model in MODELS for alias in {model.name, *(a.lower() for a in model.aliases)}]
    assert len(aliases) == len(set(aliases))
    assert all(_shipped(model.file)["_source"] for model in MODELS)


def test_file_and_folder(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PLAIN))
    by_folder, by_file = load_architecture(folder), load_architecture(str(folder / "config.json"))
    assert by_folder == by_file
    assert by_folder.name == "My-Model"
    assert by_folder.source == str(folder / "config.json")
    assert by_folder.repository is None


@pytest.mark.parametrize(
    ("name", "catalog_name", "repository"),
    [
        ("kimi-k3", "kimi-k3", "moonshotai/Kimi-K3"),
        ("K3", "kimi-k3", "moonshotai/Kimi-K3"),
        ("MOONSHOTAI/kimi-k3", "kimi-k3", "moonshotai/Kimi-K3"),
        ("llama-70b", "llama-3.1-70b", "meta-llama/Meta-Llama-3.1-70B"),
        # checkpoints of one architecture: the one that was asked for is the one to serve
        ("glm-4.6", "glm-4.6", "zai-org/GLM-4.6"),
        ("glm-4.7", "glm-4.6", "zai-org/GLM-4.7"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3", "deepseek-ai/DeepSeek-V3.1"),
    ],
)
def test_a_catalog_model_names_what_to_serve(name: str, catalog_name: str, repository: str) -> None:
    found = load_architecture(name)
    assert (found.name, found.repository) == (catalog_name, repository)


def test_a_catalog_model_says_the_same_source_everywhere() -> None:
    for model in MODELS:
        found = load_architecture(model.name)
        assert found.source == f"partitune/models/configs/{model.repository.replace('/', '--')}.json"
        assert found.repository == model.repository


def test_a_local_folder_wins_over_the_catalog_only_with_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kimi-k3").mkdir()
    assert len(load_architecture("kimi-k3").layers) == 93
    (tmp_path / "kimi-k3" / "config.json").write_text(json.dumps(PLAIN))
    assert len(load_architecture("kimi-k3").layers) == 4


@pytest.mark.parametrize(
    ("name", "near"),
    [("kimi-k4", "kimi-k3"), ("deepseek-ai/DeepSeek-V33", "deepseek-v3"), ("lama-70b", "llama-3.1-70b")],
)
def test_unknown_names_get_the_nearest_ones(name: str, near: str) -> None:
    with pytest.raises(SpecError, match="is not in the catalog") as caught:
        load_architecture(name)
    assert near in str(caught.value)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize("name", ["", "x" * 10_000, "a\0b", "./nowhere", "/"])
def test_hopeless_names(name: str) -> None:
    with pytest.raises(SpecError):
        load_architecture(name)


def test_broken_files(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n "hidden_size": 4,\n "x": \n}')
    with pytest.raises(SpecError, match=r"config\.json:4: not JSON"):
        load_architecture(path)
    path.write_text("[1]")
    with pytest.raises(SpecError, match=r"config\.json:1: a JSON object is expected, not a list"):
        load_architecture(path)
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(SpecError, match="not UTF-8"):
        load_architecture(path)
    path.write_text("[" * 100_000)
    with pytest.raises(SpecError, match=r"config\.json"):
        load_architecture(path)
    path.write_text('{"hidden_size": 1' + "0" * 5000 + "}")
    with pytest.raises(SpecError, match=r"config\.json"):
        load_architecture(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match=r"holds no config\.json"):
        load_architecture(tmp_path / "empty")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_hidden_layers", 0, "num_hidden_layers: 0 given, allowed is a whole number from 1 to 4096"),
        ("num_hidden_layers", 10**9, "num_hidden_layers: 1000000000 given"),
        ("num_hidden_layers", "4", "num_hidden_layers: '4' given"),
        ("num_hidden_layers", None, "num_hidden_layers: missing"),
        ("hidden_size", -256, "hidden_size: -256 given"),
        ("hidden_size", True, "hidden_size: True given"),
        ("hidden_size", math.nan, "hidden_size: nan given"),
        ("hidden_size", 256.0, "hidden_size: 256.0 given"),
        ("hidden_size", 255, "head_dim: missing, and hidden_size 255 is no multiple of 8 heads"),
        ("num_key_value_heads", 3, "num_key_value_heads: 3 given, allowed is a divisor of the 8 query heads"),
        ("vocab_size", [], "vocab_size: .* given"),
        ("tie_word_embeddings", "yes", "tie_word_embeddings: 'yes' given, allowed is true or false"),
        ("layer_types", ["full_attention"], "layer_types: 1 entries for 4 layers"),
        ("layer_types", ["full_attention"] * 3 + ["round"], r"layer_types\[3\]: 'round' given, allowed is .*sliding"),
        ("layer_types", ["sliding_attention"] * 4, "sliding_window: missing"),
        ("architectures", "LlamaForCausalLM", "architectures: .* given, allowed is a list"),
        ("max_position_embeddings", 0, "max_position_embeddings: 0 given"),
    ],
)
def test_wrong_values_name_file_key_and_what_is_allowed(key: str, value: object, message: str) -> None:
    with pytest.raises(SpecError, match=rf"^dir/config\.json: {message}"):
        read_architecture({**PLAIN, key: value}, name="x", source="dir/config.json")


def test_kimi_layer_lists_must_cover_every_layer_once() -> None:
    config = _shipped("moonshotai--Kimi-Linear-48B-A3B-Instruct.json")
    linear = dict(config["linear_attn_config"])  # type: ignore[call-overload]
    linear["kda_layers"] = linear["kda_layers"][1:]
    with pytest.raises(SpecError, match=r"linear_attn_config\.kda_layers: .* must name layers 1 to 27 once each"):
        read_architecture({**config, "linear_attn_config": linear}, name="x", source="c.json")


def test_nemotron_pattern_must_match_the_layer_count() -> None:
    config = _shipped("nvidia--Nemotron-H-56B-Base-8K.json")
    with pytest.raises(SpecError, match="num_hidden_layers: 117 given, but the pattern has 118 layers"):
        read_architecture({**config, "num_hidden_layers": 117}, name="x", source="c.json")
    with pytest.raises(SpecError, match="hybrid_override_pattern: allowed is"):
        read_architecture({**config, "hybrid_override_pattern": "MX"}, name="x", source="c.json")


@pytest.mark.parametrize(
    "path", [("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config")]
)
def test_wrappers(path: tuple[str, ...]) -> None:
    config: dict[str, object] = {**PLAIN}
    for key in reversed(path):
        config = {key: config}
    config |= {
        "architectures": ["SomeVLForConditionalGeneration"],
        "model_type": "some_vl",
        "tie_word_embeddings": True,
    }
    wrapped = read_architecture(config, name="x", source="c.json")
    assert wrapped.architecture == "SomeVLForConditionalGeneration"  # what engines start
    assert wrapped.edges.tied  # said by the wrapper only
    assert len(wrapped.layers) == 4
    broken = {**config, path[0]: {"hidden_size": "?"}}
    with pytest.raises(SpecError, match=rf"c\.json: {path[0]}\."):
        read_architecture(broken, name="x", source="c.json")


def test_unknown_plain_class_is_read_with_a_doubt() -> None:
    unknown = {**PLAIN, "model_type": "brandnew", "architectures": ["BrandNewForCausalLM"]}
    dense = read_architecture(unknown, name="x", source="c.json")
    assert dense.params == read_architecture(PLAIN, name="x", source="c.json").params
    assert "class is unknown" in dense.doubts[0]
    sparse = read_architecture(
        {**unknown, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}, name="x", source="c.json"
    )
    assert sparse.layers[0].kind == "full+moe"
    assert "class is unknown" in sparse.doubts[0]


@pytest.mark.parametrize("extra", [{"mamba_d_state": 16}, {"kv_lora_rank": 512}, {"linear_num_key_heads": 4}])
def test_unknown_class_with_uncommon_fields_is_refused(extra: dict[str, object]) -> None:
    unknown = {**PLAIN, "model_type": "brandnew", "architectures": ["BrandNewForCausalLM"], **extra}
    with pytest.raises(SpecError, match=r"BrandNewForCausalLM is not known .*supported: .*deepseek_v3.*kimi_linear"):
        read_architecture(unknown, name="x", source="c.json")


def test_empty_config_is_refused() -> None:
    with pytest.raises(SpecError, match=r"c\.json: model_type: no class is not known"):
        read_architecture({}, name="x", source="c.json")


def test_missing_context_length_is_a_note() -> None:
    config = {key: value for key, value in PLAIN.items() if key != "max_position_embeddings"}
    assert "max_position_embeddings is missing" in read_architecture(config, name="x", source="c.json").notes[0]


@pytest.mark.parametrize(
    ("model", "started"),
    [("kimi-k3", "KimiK3ForConditionalGeneration"), ("kimi-k2.5", "KimiK25ForConditionalGeneration")],
)
def test_the_class_is_the_one_that_engines_start_and_not_the_text_model_inside(model: str, started: str) -> None:
    assert load_architecture(model).architecture == started
