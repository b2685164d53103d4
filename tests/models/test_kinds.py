"""What kind each layer is, and where a stack must not be cut, by family."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import files

import pytest

from partitune.models.architecture import Attention, CutKind
from partitune.models.reader import load_architecture, read_architecture
from tests.small_models import PLAIN


def _kinds(name: str) -> Counter[str]:
    return Counter(layer.kind for layer in load_architecture(name).layers)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("gpt-oss-120b", {"sliding+moe": 18, "full+moe": 18}),
        ("qwen3-next-80b", {"gdn+moe": 36, "full+moe": 12}),
        ("qwen3.5-27b", {"gdn+dense": 48, "full+dense": 16}),
        ("nemotron-h-56b", {"mamba": 54, "full": 10, "dense": 54}),
        ("nemotron-3-ultra", {"mamba": 48, "full": 12, "moe": 48}),
        ("kimi-linear-48b", {"kda+dense": 1, "kda+moe": 19, "mla+moe": 7}),
        ("deepseek-v3", {"mla+dense": 3, "mla+moe": 58}),
        ("deepseek-v3.2", {"sparse+dense": 3, "sparse+moe": 58}),
        ("glm-4.6", {"full+dense": 3, "full+moe": 89}),
        ("minimax-m1", {"lightning+moe": 70, "full+moe": 10}),
        ("minimax-m3", {"full+dense": 3, "sparse+moe": 57}),
        ("mimo-v2-flash", {"full+dense": 1, "full+moe": 8, "sliding+moe": 39}),
        ("llama-4-maverick", {"sliding+dense": 24, "sliding+moe": 12, "full+moe": 12}),
        # attention at 4, 12, 20, 28: even layers, which are dense
        ("jamba-1.5-mini", {"mamba+dense": 12, "mamba+moe": 16, "full+dense": 4}),
        ("llama-3.1-70b", {"full+dense": 80}),
    ],
)
def test_counts(name: str, kinds: dict[str, int]) -> None:
    assert _kinds(name) == kinds


def test_gpt_oss_alternates_from_a_sliding_layer() -> None:
    layers = load_architecture("gpt-oss-120b").layers
    assert [layer.attention.window for layer in layers[:4]] == [128, None, 128, None]


def test_qwen3_next_has_full_attention_every_fourth_layer() -> None:
    architecture = load_architecture("qwen3-next-80b")
    full = [layer.index for layer in architecture.layers if layer.attention.kind is Attention.FULL]
    assert full == list(range(3, 48, 4))
    assert architecture.is_hybrid
    # 32 value heads of 128 x 128 in the engine's 16-bit default, and 3 inputs of 8192 convolution channels
    assert architecture.layers[0].attention.state_bytes == 32 * 128 * 128 * 2 + 8192 * 3 * 2


def test_nemotron_h_follows_its_pattern() -> None:
    layers = load_architecture("nemotron-h-56b").layers
    assert [layer.kind for layer in layers[:9]] == [
        *("mamba", "dense", "mamba", "dense", "mamba", "dense", "mamba", "full"),
        "dense",
    ]
    # 256 heads of 64 x 256 in float32, and 3 inputs of 16384 + 2 * 8 * 256 convolution channels
    assert layers[0].attention.state_bytes == 256 * 64 * 256 * 4 + 20480 * 3 * 2
    assert not layers[1].has_token_kv


def test_grouped_kv_is_shared_out_and_latent_kv_is_not() -> None:
    llama = load_architecture("llama-3.1-70b").layers[0].attention
    assert llama.kv_bytes_per_token == 2 * 8 * 128 * 2
    assert llama.kv_bytes_per_token_rank(tp=4) == llama.kv_bytes_per_token / 4
    assert llama.kv_bytes_per_token_rank(tp=16) == llama.kv_bytes_per_token / 8  # 8 heads at most
    sparse = load_architecture("deepseek-v3.2").layers[0].attention
    assert sparse.kv_bytes_per_token_rank(tp=8) == 1152 + 132  # vLLM 0.32: index key of 128 FP8 and one float32
    assert sparse.topk == 2048
    assert sparse.indexer_flops_per_pair == 2 * 64 * 128


def test_deepseek_v4_hands_over_its_residual_streams() -> None:
    assert (
        load_architecture("deepseek-v4-pro").handoff_vectors(10) == 4
    )  # hc_mult; vLLM 0.32 deepseek_v4/nvidia/model.py
    assert load_architecture("deepseek-v3").handoff_vectors(10) == 2


def test_index_sharing_binds_layers() -> None:
    architecture = load_architecture("glm-5.2")
    legal = sorted(set(range(1, 78)) - architecture.bound_cuts[CutKind.INDEX])
    assert legal == [1, 2, *range(6, 78, 4)]  # only before a layer that runs its own indexer
    assert load_architecture("glm-5.1").bound_cuts == {}


def test_index_sharing_rule_agrees_with_the_list() -> None:
    text = files("partitune.models").joinpath("configs", "zai-org--GLM-5.2.json").read_text()
    config = json.loads(text)
    del config["indexer_types"]  # what is left: index_topk_freq 4, index_skip_topk_offset 3
    by_rule = read_architecture(config, name="x", source="config.json")
    assert by_rule.bound_cuts == load_architecture("glm-5.2").bound_cuts
    assert by_rule.params == load_architecture("glm-5.2").params


def test_shared_latents_bind_layers() -> None:
    config = json.loads(
        files("partitune.models").joinpath("configs", "mistralai--Mistral-Large-4-1T-A52B.json").read_text()
    )
    sources = list(range(72))
    sources[39] = sources[43] = 35
    shared = read_architecture({**config, "kv_source_layers": sources}, name="x", source="config.json")
    assert shared.bound_cuts == {CutKind.SHARED_KV: frozenset(range(36, 44))}
    assert shared.layers[39].attention.kv_bytes_per_token < shared.layers[38].attention.kv_bytes_per_token


def test_gemma_style_kv_sharing_binds_layers() -> None:
    config: dict[str, object] = {
        "model_type": "gemma3_text",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "vocab_size": 1000,
        "sliding_window": 512,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 2,
    }
    architecture = read_architecture(config, name="x", source="config.json")
    # layers 4 and 5 read the caches of 2 (sliding) and 3 (full)
    assert architecture.bound_cuts == {CutKind.SHARED_KV: frozenset({3, 4, 5})}
    assert [layer.attention.kv_bytes_per_token > 0 for layer in architecture.layers] == [True] * 4 + [False] * 2
    assert architecture.edges.tied  # the family's default


def test_what_any_plain_decoder_may_say_is_read_of_dense_models_and_of_mixtures() -> None:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    mixture = {**PLAIN, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **experts}
    for config in (PLAIN, mixture):
        as_it_is = read_architecture(config, name="x", source="config.json")
        normed = read_architecture({**config, "use_qk_norm": True}, name="x", source="config.json")
        assert normed.params - as_it_is.params == 4 * 2 * 32  # RMSNorm on query and key heads of 256 / 8, in 4 layers
        shared = read_architecture({**config, "num_kv_shared_layers": 1}, name="x", source="config.json")
        assert shared.bound_cuts == {CutKind.SHARED_KV: frozenset({3})}
