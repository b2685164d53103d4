"""Which reader reads which model: one dict, looked up by `model_type`, then by class name.

Decision: a literal table instead of registration by import, so that what is supported is read in one place.
"""

from __future__ import annotations

from partitune.models.families import (
    deepseek,
    deepseek_v4,
    kimi,
    llama4,
    mamba,
    minimax,
    nemotron_h,
    plain,
    qwen_next,
    sliding_moe,
)
from partitune.models.stack import FamilyReader

#: Reader -> every `model_type` and class name that it reads.
_READ_BY: dict[FamilyReader, tuple[str, ...]] = {
    plain.LLAMA: ("llama", "LlamaForCausalLM", "mistral", "ministral3", "MistralForCausalLM", "phi3"),
    plain.QWEN2: ("qwen2", "Qwen2ForCausalLM"),
    plain.QWEN3: ("qwen3", "qwen3_vl_text", "Qwen3ForCausalLM"),
    plain.GEMMA: ("gemma", "granite", "smollm3", "ernie4_5", "Ernie4_5_ForCausalLM"),
    plain.GEMMA2: ("gemma2",),
    plain.GLM4: ("glm4", "Glm4ForCausalLM", "seed_oss"),
    plain.COHERE: ("cohere", "CohereForCausalLM", "cohere2", "Cohere2ForCausalLM"),
    plain.STABLELM: ("stablelm", "StableLmForCausalLM"),
    plain.STARCODER2: ("starcoder2", "Starcoder2ForCausalLM"),
    plain.PHI: ("phi", "PhiForCausalLM"),
    plain.GPT_NEOX: ("gpt_neox", "GPTNeoXForCausalLM"),
    plain.OPT: ("opt", "OPTForCausalLM"),
    plain.OLMO2: ("olmo2", "Olmo2ForCausalLM", "olmo3", "Olmo3ForCausalLM"),
    plain.OLMOE: ("olmoe", "OlmoeForCausalLM"),
    plain.PHI_MOE: ("phimoe", "PhiMoEForCausalLM"),
    plain.ERNIE_MOE: ("ernie4_5_moe", "Ernie4_5_MoeForCausalLM"),
    plain.DOTS1: ("dots1", "Dots1ForCausalLM"),
    plain.GRANITE_MOE: ("granitemoe", "GraniteMoeForCausalLM", "granitemoeshared", "GraniteMoeSharedForCausalLM"),
    plain.HUNYUAN_MOE: ("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM"),
    plain.GEMMA3: ("gemma3_text",),
    plain.MIXTRAL: ("mixtral", "MixtralForCausalLM"),
    plain.QWEN2_MOE: ("qwen2_moe",),
    plain.QWEN3_MOE: ("qwen3_moe", "qwen3_vl_moe_text", "Qwen3MoeForCausalLM"),
    plain.GLM4_MOE: ("glm4_moe", "Glm4MoeForCausalLM"),
    plain.MINIMAX_M2: ("minimax_m2", "MiniMaxM2ForCausalLM"),
    minimax.read_m1: ("minimax_m1", "MiniMaxM1ForCausalLM"),
    minimax.read_m3: ("minimax_m3", "MiniMaxM3ForCausalLM"),
    deepseek.read: (
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        "deepseek_v3",
        "deepseek_v32",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "glm4_moe_lite",
        "Glm4MoeLiteForCausalLM",
        "kimi_k2",
        "glm_moe_dsa",
        "GlmMoeDsaForCausalLM",
        "mistral_large4",
        "mistral_large4_text",
    ),
    deepseek_v4.read: ("deepseek_v4", "DeepseekV4ForCausalLM"),
    kimi.read: ("kimi_linear", "KimiLinearForCausalLM"),
    qwen_next.read: (
        "qwen3_next",
        "Qwen3NextForCausalLM",
        "qwen3_5",
        "qwen3_5_text",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
    ),
    nemotron_h.read: ("nemotron_h", "NemotronHForCausalLM"),
    plain.GPT_OSS: ("gpt_oss", "GptOssForCausalLM"),
    mamba.read: ("jamba", "JambaForCausalLM"),
    llama4.read: ("llama4_text", "Llama4ForCausalLM"),
    sliding_moe.read_mimo: ("mimo_v2_flash", "MiMoV2FlashForCausalLM"),
    sliding_moe.read_step: ("step3p5", "step3p7", "Step3p5ForCausalLM", "Step3p7FlashForCausalLM"),
}
FAMILIES = {name: reader for reader, names in _READ_BY.items() for name in names}
