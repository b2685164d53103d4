"""Write a model that a real engine serves on two CPU cores: `ENGINE_PYTHON tests/real_engine/model.py FOLDER`.

Decision: a config.json of known shape and a tokenizer made on the spot, served with `--load-format dummy` (random
weights), so that nothing is downloaded. Of its 16 layers the first 8 are dense and heavy and the others a light mixture
of experts: cut in half, the first stage is the slower by far, so that the partition matters and can be measured. The
tokenizer knows whole words only, so that a benchmark's random tokens survive decoding and encoding and every prompt has
exactly the length that was asked for.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer  # type: ignore[import-not-found]
from tokenizers.models import WordLevel  # type: ignore[import-not-found]
from tokenizers.pre_tokenizers import Whitespace  # type: ignore[import-not-found]

WORDS = 2048
LAYERS, DENSE = 16, 8
CONFIG = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "vocab_size": WORDS,
    "hidden_size": 512,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 4096,
    "mlp_only_layers": list(range(DENSE)),
    "decoder_sparse_step": 1,
    "num_experts": 4,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "norm_topk_prob": False,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SPECIAL = ("<unk>", "<s>", "</s>")


def write_model(folder: Path) -> None:
    """Write config.json and the tokenizer's files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    words = [*_SPECIAL, *(f"w{number}" for number in range(WORDS - len(_SPECIAL)))]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token=_SPECIAL[0]))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": _SPECIAL[0],
        "bos_token": _SPECIAL[1],
        "eos_token": _SPECIAL[2],
        "model_max_length": CONFIG["max_position_embeddings"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2) + "\n")


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
