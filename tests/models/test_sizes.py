"""Parameters, stored bytes and KV of shipped models against the figures their makers publish."""

from __future__ import annotations

import pytest

from partitune.models.published import MODELS, CatalogModel, Counts
from partitune.models.reader import load_architecture

GIB = 2**30


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_parameters_are_within_two_percent_of_the_published_size(model: CatalogModel) -> None:
    architecture = load_architecture(model.name)
    counted = architecture.params
    if model.counts is Counts.DRAFTED:
        counted += architecture.edges.drafter_params
    if model.counts is Counts.SEEING:
        counted += architecture.edges.vision_params
    assert counted == pytest.approx(model.params, rel=0.02), model.where


@pytest.mark.parametrize(
    ("name", "total", "where"),
    [
        ("qwen3.5-27b", 27.78e9, "safetensors count with vision and MTP"),
        ("qwen3.5-122b-a10b", 125.1e9, "safetensors count with vision and MTP"),
        ("qwen3.5-397b-a17b", 403.4e9, "safetensors count with vision and MTP"),
    ],
)
def test_vision_and_drafter_complete_the_file(name: str, total: float, where: str) -> None:
    architecture = load_architecture(name)
    edges = architecture.edges
    assert architecture.params + edges.drafter_params + edges.vision_params == pytest.approx(total, rel=0.005), where


@pytest.mark.parametrize(
    ("name", "gigabytes", "where"),
    [
        ("deepseek-v3", 685.0, "671 GB main model and 14 GB MTP less its copies of embedding and head, FP8"),
        ("kimi-k2.5", 595.0, "INT4 checkpoint"),
        ("kimi-k3", 1560.0, "1.56 TB on disk"),
        ("gpt-oss-120b", 60.8 * GIB / 1e9, "model card: 60.8 GiB"),
        ("gpt-oss-20b", 12.8 * GIB / 1e9, "model card: 12.8 GiB"),
        ("minimax-m3", 854.0, "repository size, BF16"),
        ("qwen3.8-2.4t-a95b", 4890.0, "vLLM-Ascend tutorial: 4.89 TB"),
    ],
)
def test_stored_bytes_match_the_checkpoint(name: str, gigabytes: float, where: str) -> None:
    architecture = load_architecture(name)
    stored = architecture.weight_bytes + architecture.edges.drafter_bytes
    assert stored / 1e9 == pytest.approx(gigabytes, rel=0.02), where


def test_deepseek_v4_pro_stores_experts_in_four_bits() -> None:
    # The safetensors index counts 862 B elements: FP4 pairs packed in bytes, FP8 as bytes, embedding and head once.
    architecture = load_architecture("deepseek-v4-pro")
    edges = architecture.edges
    stored = architecture.weight_bytes + edges.drafter_bytes - edges.embedding_params - edges.head_params
    assert stored == pytest.approx(862e9, rel=0.005)
    assert architecture.layers[5].ffn.expert_dtype == "mxfp4"
    assert architecture.layers[5].attention.dtype == "fp8"


def test_deepseek_v3_drafter_has_the_documented_unique_parameters() -> None:
    # README_WEIGHTS.md: 11.5 B unique parameters, embedding and head shared.
    edges = load_architecture("deepseek-v3").edges
    assert edges.drafter_params == pytest.approx(11.5e9, rel=0.02)


def test_mimo_drafter_has_the_documented_size() -> None:
    assert load_architecture("mimo-v2-flash").edges.drafter_params == pytest.approx(0.33e9, rel=0.02)  # model card


@pytest.mark.parametrize(
    ("name", "kilobytes"),
    [("deepseek-v3", 70.272), ("llama-3.1-405b", 516.096)],
)
def test_kv_per_token(name: str, kilobytes: float) -> None:
    # DeepSeek, "Insights into DeepSeek-V3" (ISCA 2025), table 1, BF16.
    assert sum(layer.attention.kv_bytes_per_token for layer in load_architecture(name).layers) == kilobytes * 1000


def test_deepseek_v4_pro_kv_of_a_million_tokens() -> None:
    # 9.62 GiB a sequence at 2^20 tokens in 16-bit: 512 values and a 128-wide index key every 4 tokens, or 512 values
    # every 128.
    layers = load_architecture("deepseek-v4-pro").layers
    indexed = sum(layer.attention.topk is not None for layer in layers)
    heavy = sum(layer.attention.topk is None and layer.attention.kind.value == "sparse" for layer in layers)
    assert (indexed, heavy) == (30, 31)
    in_16_bit = 2**20 * (indexed * 2 * (512 + 128) / 4 + heavy * 2 * 512 / 128)
    assert in_16_bit / GIB == pytest.approx(9.62, abs=0.01)
    # The engine stores 584 bytes an entry and 132 an index key (vLLM 0.32).
    stored = [layer.attention.kv_bytes_per_token for layer in layers]
    assert set(stored) == {round((584 + 132) / 4), round(584 / 128)}


def test_tied_embedding_is_counted_once_and_held_twice() -> None:
    from partitune.models.reader import read_architecture

    config = {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
    tied = read_architecture(config, name="qwen3-0.6b", source="config.json")
    assert tied.params == pytest.approx(0.596e9, rel=0.005)  # safetensors count of Qwen3-0.6B without the tied copy
    assert tied.edges.head_params == 0
    assert tied.edges.head_bytes == tied.edges.embedding_bytes
    untied = read_architecture({**config, "tie_word_embeddings": False}, name="x", source="config.json")
    assert untied.params - tied.params == 151936 * 1024
