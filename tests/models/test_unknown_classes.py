"""Item 16: a class nobody taught us is read only where every key that could say otherwise was read, with a doubt."""

from __future__ import annotations

import pytest

from partitune.errors import SpecError
from partitune.models.architecture import Architecture, CutKind
from partitune.models.reader import load_architecture, read_architecture
from tests.small_models import PLAIN

ERNIE_300B = {
    "architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "hidden_size": 8192,
    "intermediate_size": 28672, "num_hidden_layers": 54, "num_attention_heads": 64, "num_key_value_heads": 8,
    "moe_num_experts": 64, "moe_k": 8, "moe_intermediate_size": 3584, "moe_layer_start_index": 3,
    "moe_layer_end_index": 53, "moe_layer_interval": 1, "moe_num_shared_experts": 0, "vocab_size": 103424,
    "max_position_embeddings": 131072, "use_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
_UNKNOWN = {"model_type": "brandnew", "architectures": ["BrandNewForCausalLM"]}


def _read(config: dict[str, object]) -> Architecture:
    return read_architecture(config, name="x", source="c.json")


#: model -> (the keys of its config.json that size it, published parameters, where).
PUBLISHED: dict[str, tuple[dict[str, object], float, str]] = {
    "ERNIE-4.5-300B-A47B": (ERNIE_300B, 300e9, "model card: 300B; 558 GiB of bf16"),
    "ERNIE-4.5-21B-A3B": (
        {**ERNIE_300B, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28,
         "num_attention_heads": 20, "num_key_value_heads": 4, "moe_k": 6, "moe_intermediate_size": 1536,
         "moe_layer_start_index": 1, "moe_layer_end_index": 27, "moe_num_shared_experts": 2,
         "tie_word_embeddings": True},
        21.9e9, "Hugging Face safetensors count: 21.9B",
    ),
    "dots.llm1": (
        {"model_type": "dots1", "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408,
         "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 32, "n_routed_experts": 128,
         "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "vocab_size": 152064},
        142.8e9, "model card: 142B; safetensors 143B",
    ),
    "GLM-4-32B-0414": (
        {"model_type": "glm4", "hidden_size": 6144, "intermediate_size": 23040, "num_hidden_layers": 61,
         "num_attention_heads": 48, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 151552,
         "attention_bias": False},
        32.6e9, "safetensors count: 32.6B",
    ),
    "GLM-4.7-Flash": (
        {"model_type": "glm4_moe_lite", "hidden_size": 2048, "intermediate_size": 10240, "moe_intermediate_size": 1536,
         "num_hidden_layers": 47, "num_attention_heads": 20, "n_routed_experts": 64, "n_shared_experts": 1,
         "num_experts_per_tok": 4, "kv_lora_rank": 512, "q_lora_rank": 768, "v_head_dim": 256,
         "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "vocab_size": 154880},
        30e9, "model card: 30B",
    ),
    "OLMoE-1B-7B": (
        {"model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
         "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 50304},
        6.92e9, "safetensors count: 6.92B",
    ),
    "Phi-3.5-MoE": (
        {"model_type": "phimoe", "hidden_size": 4096, "intermediate_size": 6400, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 16, "num_experts_per_tok": 2,
         "vocab_size": 32064, "attention_bias": True},
        41.9e9, "model card: 41.9B",
    ),
    "Hunyuan-A13B": (
        {"model_type": "hunyuan_v1_moe", "hidden_size": 4096, "intermediate_size": 3072, "num_hidden_layers": 32,
         "moe_intermediate_size": [3072] * 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_experts": 64,
         "moe_topk": [8] * 32, "num_shared_expert": [1] * 32, "vocab_size": 128167, "tie_word_embeddings": True,
         "use_qk_norm": True},
        80.4e9, "model card: 80B; safetensors 80.4B",
    ),
    "Command-A": (
        {"model_type": "cohere2", "hidden_size": 12288, "intermediate_size": 36864, "num_hidden_layers": 64,
         "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 256000},
        111e9, "model card: 111B",
    ),
    "Mistral-Small-24B": (
        {"model_type": "mistral", "hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
         "sliding_window": None},
        23.6e9, "safetensors count: 23.6B",
    ),
    "Gemma-2-27B": (
        {"model_type": "gemma2", "hidden_size": 4608, "intermediate_size": 36864, "num_hidden_layers": 46,
         "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128},
        27.2e9, "safetensors count: 27.2B",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_16_families_people_ask_for_weigh_what_their_makers_say(name: str) -> None:
    config, published, where = PUBLISHED[name]
    found = _read(config)
    assert found.params == pytest.approx(published, rel=0.03), where
    assert not found.doubts


def test_16_ernie_weighs_558_gib() -> None:
    assert _read(ERNIE_300B).weight_bytes / 2**30 == pytest.approx(558, rel=0.01)


def test_16_gemma_3_leans_on_its_class() -> None:
    # The text_config of google/gemma-3-4b-it, whole: heads, key/value heads, head width and vocabulary are the class's.
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    tower = {"hidden_size": 1152, "intermediate_size": 4304, "model_type": "siglip_vision_model"}
    tower |= {"num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "image_size": 896}
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    found = _read({**config, "text_config": {**text, "sliding_window": 1024}, "vision_config": tower})
    assert found.params + found.edges.vision_params == pytest.approx(4.30e9, rel=0.02)  # safetensors count: 4.30B
    assert found.edges.tied
    assert [layer.attention.window for layer in found.layers[:7]] == [1024] * 5 + [None, 1024]
    assert any("num_attention_heads" in note and "transformers 5.24" in note for note in found.notes)


@pytest.mark.parametrize(
    "key",
    [
        "moe_num_experts",
        "my_expert_count",
        "attn_res_rank",
        "cross_attention_layers",
        "num_kv_groups",
        "ngram_sizes",
        "residual_streams",
        "conv_kernel",
        "num_loops_recurrent",
    ],
)
def test_16_an_unread_key_that_speaks_of_another_shape_refuses_the_plain_reading(key: str) -> None:
    with pytest.raises(SpecError, match=rf"^c\.json: {key}: BrandNewForCausalLM is not known, and its {key} may") as no:
        _read({**PLAIN, **_UNKNOWN, key: 4})
    assert f"config: {{{key}: null}}" in str(no.value)
    assert _read({**PLAIN, **_UNKNOWN, key: None}).doubts  # what is off says nothing


def test_16_an_unknown_class_with_erniess_keys_is_not_read_as_dense() -> None:
    with pytest.raises(SpecError, match="moe_intermediate_size, moe_k"):
        _read({**ERNIE_300B, **_UNKNOWN})


def test_16_a_plain_reading_is_a_doubt_beside_every_figure() -> None:
    found = _read({**PLAIN, **_UNKNOWN, "router_aux_loss_coef": 0.1, "residual_multiplier": 0.2, "rope_theta": 1e4})
    assert found.doubts == ("the model's class is unknown: it is read as a plain dense transformer of the Llama shape",)
    assert not _read(PLAIN).doubts


def test_16_a_user_states_what_the_reader_cannot_know() -> None:
    plain = load_architecture("qwen3-8b")
    wider = load_architecture("qwen3-8b", {"intermediate_size": 2 * 12288})
    assert wider.params > 1.4 * plain.params
    assert wider.doubts == ("the search space states intermediate_size of the model's config",)
    towered = load_architecture("kimi-k2.5", {"vision_config": {"vt_num_hidden_layers": 54}})
    assert towered.edges.vision_params > 1.5 * load_architecture("kimi-k2.5").edges.vision_params


def test_16_layers_fed_by_the_tower_stay_on_the_first_stage() -> None:
    # Qwen3-VL-8B: three taps, so vLLM and SGLang assert start_layer >= 3 on every later stage.
    text = {"model_type": "qwen3_vl_text", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36}
    text |= {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
    tower = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 4096}
    config = {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "text_config": text}
    found = _read({**config, "vision_config": {**tower, "deepstack_visual_indexes": [8, 16, 24]}})
    assert found.bound_cuts == {CutKind.VISION: {1, 2}}
    assert not found.doubts
    assert not _read({**config, "vision_config": {**tower, "deepstack_visual_indexes": []}}).bound_cuts
