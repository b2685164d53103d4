"""What a config.json leaves to its class: transformers writes only what differs from these.

Decision: a key that is missing has the value that the engines' own config class gives it, where a reader needs it; a
key that is null says "none" and stays so. Source: transformers 5.24, `models/NAME/configuration_NAME.py` of each. A
config that leans on them says so in a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_GEMMA_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
_GEMMA_SIZE = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "sliding_window": 4096}

#: `model_type` -> keys its class fills in.
CLASS_DEFAULTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "gemma": {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256_000},
        "gemma2": {
            **_GEMMA_HEADS,
            **_GEMMA_SIZE,
            "vocab_size": 256_000,
            "max_position_embeddings": 8192,
            "sliding_window_pattern": 2,
        },
        "gemma3_text": {
            **_GEMMA_HEADS,
            **_GEMMA_SIZE,
            "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
            "sliding_window_pattern": 6,
        },
        "mistral": {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32_000, "sliding_window": 4096},
        "ministral3": {"num_key_value_heads": 8, "head_dim": 128},
        "mixtral": {"num_key_value_heads": 8, "num_experts_per_tok": 2},
        "phi3": {"vocab_size": 32_064},
        "olmo3": {"sliding_window": 4096, "sliding_window_pattern": 4},
        "starcoder2": {"num_key_value_heads": 2, "use_bias": True},
        "qwen2": {"num_key_value_heads": 32},
        "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
        "qwen3_vl_text": {"num_key_value_heads": 32, "head_dim": 128},
        "qwen3_moe": {"num_key_value_heads": 4, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
        "qwen3_next": {"num_key_value_heads": 2, "head_dim": 256},
        "qwen3_5_text": {"num_key_value_heads": 4, "head_dim": 256},
        "qwen3_5_moe_text": {"num_key_value_heads": 2, "head_dim": 256},
        "gpt_oss": {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2},
        "glm4_moe": {"num_key_value_heads": 8, "first_k_dense_replace": 1, "n_shared_experts": 1},
        "minimax_m2": {"num_key_value_heads": 8, "head_dim": 128},
        "llama4_text": {"num_key_value_heads": 8, "head_dim": 128},
        "jamba": {"num_key_value_heads": 8},
        "nemotron_h": {"num_key_value_heads": 8},
        "deepseek_v2": {"q_lora_rank": 1536, "n_shared_experts": 2},
        "deepseek_v3": {"q_lora_rank": 1536, "n_shared_experts": 1, "first_k_dense_replace": 3},
        "deepseek_v32": {"q_lora_rank": 1536, "n_shared_experts": 1, "first_k_dense_replace": 3},
        "glm_moe_dsa": {"q_lora_rank": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3},
        "qwen2_moe": {"num_attention_heads": 16, "shared_expert_intermediate_size": 5632, "num_experts": 60}
        | {"moe_intermediate_size": 1408, "num_experts_per_tok": 4, "num_key_value_heads": 16},
        "ernie4_5": {"head_dim": 128, "num_key_value_heads": 2},
        "ernie4_5_moe": {"num_key_value_heads": 4, "moe_num_experts": 64, "moe_k": 6, "moe_num_shared_experts": 2}
        | {"moe_intermediate_size": 1536, "moe_layer_start_index": 1},
        "glm4": {"num_key_value_heads": 2, "head_dim": 128, "attention_bias": True},
        "glm4_moe_lite": {"first_k_dense_replace": 1, "num_key_value_heads": 20, "n_shared_experts": 1},
        "granite": {"tie_word_embeddings": False},
        "olmoe": {"num_experts": 64, "num_experts_per_tok": 8},
        "phimoe": {"num_key_value_heads": 8, "num_local_experts": 16, "num_experts_per_tok": 2},
        "seed_oss": {"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True},
        "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
        "smollm3": {"num_key_value_heads": 4},
    }
)
#: Lists with one entry a layer that a reader of one size for all takes where every entry is the same.
_ONE_FOR_ALL = ("moe_intermediate_size", "moe_topk", "num_shared_expert", "num_experts")


def filled_in(config: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
    """The config with what its class fills in, and the names of those keys."""
    defaults = CLASS_DEFAULTS.get(str(config.get("model_type")), {})
    told = {"sliding_window_pattern"} if config.get("layer_types") else set()
    absent = tuple(key for key in defaults if key not in config and key not in told)
    whole = {**{key: defaults[key] for key in absent}, **config}
    for key in _ONE_FOR_ALL:
        entries = whole.get(key)
        if isinstance(entries, list) and entries and all(entry == entries[0] for entry in entries):
            whole[key] = entries[0]
    return whole, absent
