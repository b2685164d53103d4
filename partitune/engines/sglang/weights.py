"""What flags of SGLang make of a checkpoint's weights: towers left out, copies of experts, bytes in the host.

Decision: a flag that names the language model leaves a tower out only where the model's own code asks for it; most
build it all the same and skip its weights alone (Kimi-K3 under `language_only`), which frees nothing.

Source: SGLang 0.5.23 `srt/configs/model_config.py` (mm_disabled_models), `srt/models/qwen3_vl.py`, `qwen3_5.py`,
`mllama4.py`, `kimi_k25.py`, `deepseek_v2.py` (ep_num_redundant_experts), `srt/utils/offloader.py` (OffloaderV1).
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.candidate import FlagValue
from partitune.engines.flags import whole_number
from partitune.engines.quantising import Quantising
from partitune.hardware.gpus import GIB
from partitune.models.architecture import Architecture

#: SGLang 0.5.23 `srt/arg_groups/choices.py` (QUANTIZATION_CHOICES), `srt/configs/model_config.py`
#: (_verify_quantization), `srt/layers/quantization/fp8.py`, `w8a8_fp8.py`, `mxfp4.py`, `bitsandbytes.py`.
QUANTISING = Quantising(
    "SGLang",
    "SGLang 0.5.23 srt/configs/model_config.py",
    online={
        "fp8": "fp8", "w8a8_fp8": "fp8", "mxfp8": "mxfp8", "mxfp4": "experts mxfp4", "bitsandbytes": "nf4",
    },
    goes_with={
        "modelopt_fp8": ("modelopt",), "modelopt_fp4": ("modelopt",), "modelopt_mixed": ("modelopt",),
        "petit_nvfp4": ("modelopt",), "gptq_marlin": ("gptq",), "awq_marlin": ("awq",),
        "moe_wna16": ("awq", "gptq"), "w8a8_int8": ("compressed-tensors",), "w8a8_fp8": ("compressed-tensors",),
        "auto-round-int8": ("compressed-tensors",),
    },
    removed={},
    opaque=frozenset({
        "auto-round", "gguf", "humming", "mlx_q4", "mlx_q8", "modelopt", "modelslim", "mxfp_w4a8", "nvfp4_online",
        "quark", "quark_int4fp8_moe", "quark_mxfp4", "unquant", "w4afp8",
    }),
)  # fmt: skip
QUANTIZATION_CHOICES = (
    "awq", "fp8", "mxfp8", "gptq", "gptq_marlin", "awq_marlin", "bitsandbytes", "gguf", "modelopt", "modelopt_fp8",
    "modelopt_fp4", "nvfp4_online", "modelopt_mixed", "petit_nvfp4", "w8a8_int8", "w8a8_fp8", "moe_wna16", "w4afp8",
    "mxfp4", "auto-round", "auto-round-int8", "compressed-tensors", "modelslim", "mxfp_w4a8", "quark",
    "quark_int4fp8_moe", "quark_mxfp4", "mlx_q4", "mlx_q8", "unquant", "humming",
)  # fmt: skip
_ASK_FOR_TEXT_ONLY = frozenset({
    "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
})  # fmt: skip
#: Built only where `enable_multimodal` says so.
_TEXT_BY_DEFAULT = frozenset({"Llama4ForConditionalGeneration"})


def builds_tower(architecture: Architecture, flags: Mapping[str, FlagValue]) -> bool:
    """False where the model leaves its tower out under these flags."""
    name = architecture.served_class
    if name in _TEXT_BY_DEFAULT:
        return flags.get("enable_multimodal") is True
    return not (name in _ASK_FOR_TEXT_ONLY and flags.get("language_model_only") is True)


def redundant_experts(flags: Mapping[str, FlagValue]) -> int:
    """Copies of experts in every layer of experts."""
    return whole_number(flags, "ep_num_redundant_experts", 0)


def offloaded_bytes(flags: Mapping[str, FlagValue]) -> int:
    """Bytes of layers that every GPU keeps in the host and copies for each step."""
    return whole_number(flags, "cpu_offload_gb", 0) * GIB
