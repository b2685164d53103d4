"""What flags of vLLM make of a checkpoint's weights: towers left out, copies of experts, bytes in the host.

Decision: what the engine builds is asked of the flags as the engine asks them. A tower is left out where every modality
it reads is limited to nothing, so that `{"image": 0}` alone keeps a tower that reads videos as well.

Source: vLLM 0.33.0 `config/multimodal.py` (get_limit_per_prompt), `model_executor/models/interfaces.py`
(_mark_tower_model; since 0.15, before it each model looks by itself, from 0.11 on in the same way), the models' own
calls of it; `config/parallel.py` (EPLBConfig), `config/offload.py`, `model_executor/offloader/uva.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.flags import mapping, whole_number
from partitune.engines.quantising import Quantising
from partitune.engines.versions import Version, parse_version
from partitune.hardware.gpus import GIB
from partitune.models.architecture import Architecture

#: vLLM 0.33.0 `config/quantization.py` (_ONLINE_SHORTHANDS), `config/model.py` (_verify_quantization),
#: `layers/quantization/experts_int8.py`, `fp8.py` (no longer online since 0.31).
QUANTISING = Quantising(
    "vLLM",
    "vLLM 0.33 config/model.py",
    online={
        "fp8_per_tensor": "fp8",
        "fp8_per_channel": "fp8",
        "fp8_per_block": "fp8 blocks",
        "mxfp8": "mxfp8",
        "mxfp4": "mxfp4",
        "experts_int8": "experts int8",
        "int8_per_channel_weight_only": "experts int8",
        "nvfp4_per_token": "experts nvfp4",
    },
    goes_with={
        "auto_awq": ("awq",), "awq_marlin": ("awq",), "auto_gptq": ("gptq",), "gptq_marlin": ("gptq",),
        "moe_wna16": ("awq", "gptq"), "modelopt_fp4": ("modelopt",), "modelopt_mxfp8": ("modelopt",),
        "modelopt_mixed": ("modelopt",), "gpt_oss_mxfp4": ("mxfp4",), "deepseek_v4_fp8": ("fp8",),
        "humming": ("awq", "gptq", "fp8", "mxfp4", "modelopt", "compressed-tensors"),
    },
    removed={"fp8": "no longer quantises while loading since 0.31; write fp8_per_tensor"},
    opaque=frozenset({"online", "torchao", "inc", "quark", "bitsandbytes", "fp_quant", "fbgemm_fp8"}),
)  # fmt: skip
_FP8_ONLINE_UNTIL = Version(0, 31)

#: What the tower of a class reads; every other one reads images and videos.
_IMAGES = ("image",)
_READS: Mapping[str, tuple[str, ...]] = {
    "KimiK25ForConditionalGeneration": ("vision_chunk",),
    **dict.fromkeys(
        (
            "AriaForConditionalGeneration", "BagelForConditionalGeneration", "Cohere2VisionForConditionalGeneration",
            "DeepseekOCR2ForCausalLM", "DeepseekOCRForCausalLM", "DeepseekV4ForConditionalGeneration",
            "DeepseekVLV2ForCausalLM", "Gemma3nForConditionalGeneration", "KimiK3ForConditionalGeneration",
            "KimiVLForConditionalGeneration", "Lfm2VlForConditionalGeneration", "LlavaForConditionalGeneration",
            "LlavaNextForConditionalGeneration", "Mistral3ForConditionalGeneration", "MolmoForCausalLM", "Ovis",
            "Phi3VForCausalLM", "PixtralForConditionalGeneration", "Step3VLForConditionalGeneration",
            "Step3p7ForConditionalGeneration", "StepVLForConditionalGeneration",
        ),
        _IMAGES,
    ),
}  # fmt: skip


def builds_tower(architecture: Architecture, flags: Mapping[str, FlagValue]) -> bool:
    """False where no modality that the model's tower reads may come in a prompt."""
    if flags.get("language_model_only"):
        return False
    limits = mapping(flags.get("limit_mm_per_prompt"))
    return any(_limit(limits.get(name)) != 0 for name in _READS.get(architecture.served_class, ("image", "video")))


def _limit(given: object) -> object:
    """A limit is a number, or the `count` of a profile; nothing is no limit."""
    return given.get("count") if isinstance(given, dict) else given


def redundant_experts(flags: Mapping[str, FlagValue]) -> int:
    """Copies of experts in every layer of experts, where load balancing is on."""
    given = mapping(flags.get("eplb_config")).get("num_redundant_experts", 0)
    return given if flags.get("enable_eplb") is True and isinstance(given, int) else 0


def offloaded_bytes(flags: Mapping[str, FlagValue]) -> int:
    """Bytes of layers that every GPU reads from the host: `cpu_offload_gb`, unless layers are fetched in groups."""
    prefetched = flags.get("offload_backend") == "prefetch" or whole_number(flags, "offload_group_size", 0) > 0
    return 0 if prefetched else int(float(flags.get("cpu_offload_gb", 0)) * GIB)


def quantising(deployment: Deployment) -> Quantising:
    """What `quantization` takes in this release."""
    if parse_version(deployment.version) >= _FP8_ONLINE_UNTIL:
        return QUANTISING
    return replace(QUANTISING, online={"fp8": "fp8", **QUANTISING.online}, removed={})
