"""What SGLang makes of a model: copies of its ends that a pipeline does not need, and kernels that were measured.

Source: SGLang 0.5.23 `srt/models/*.py`, `layers/quantization/mxfp4.py` and PR 34299; aiconfigurator-core 0.12.0
(releases and names of its tables).
"""

from __future__ import annotations

from partitune.costs.measured.operations import GDN_KERNELS, SGLANG_TABLES, MeasuredEngine
from partitune.costs.memory import ReplicatedEmbeddings
from partitune.engines.architectures import Registry
from partitune.engines.known_times import has_mxfp4_experts, is_data_centre_blackwell
from partitune.engines.quantisations import QuantisationTable
from partitune.engines.versions import Version, VersionRange
from partitune.hardware.gpus import Gpu
from partitune.models.architecture import Architecture

#: Its classes, and those with a pipeline (`forward` takes `pp_proxy_tensors`).
REGISTRY = Registry("sglang", "SGLang", "SGLang srt/models")
QUANTISATIONS = QuantisationTable("sglang", "SGLang", "SGLang srt/layers/quantization/__init__.py")
_EMBEDDING = frozenset({"MiniMaxM2ForCausalLM", "Qwen3NextForCausalLM"})
_HEAD = frozenset({
    "Glm4MoeForCausalLM", "GptOssForCausalLM", "MixtralForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM",
})  # fmt: skip
#: From the oldest release of fidelity/data/whole_servers.csv to that of the kernel tables.
TIMED = VersionRange("SGLang", Version(0, 5, 9), Version(0, 5, 14))
#: Kernels of a prompt, and of a decode.
_KDA = (("causal_conv1d_fn_qkv3", "chunk_kda"), ("causal_conv1d_update", "fused_recurrent_kda_packed_decode"))
MEASURED = MeasuredEngine(SGLANG_TABLES, (("KDAKernel", _KDA), ("GDNKernel", GDN_KERNELS)), whole_latent_block=False)


def replicated_embeddings(architecture: Architecture) -> ReplicatedEmbeddings:
    """What SGLang builds on every stage."""
    name = architecture.architecture
    return ReplicatedEmbeddings(embedding=name in _EMBEDDING, head=name in _HEAD, tower=False)


def expert_kernels(architecture: Architecture, gpu: Gpu) -> dict[str, str | None]:
    """Values of `moe_runner_backend` of which there are times: two kernels for MXFP4 weights.

    On data-centre Blackwell `flashinfer_mxfp4`, with 8-bit activations, is what `auto` becomes: SGLang 0.5.23
    `arg_groups/model_overrides/kimi_k3.py`.
    """
    if not has_mxfp4_experts(architecture):
        return {"auto": None}
    marlin: dict[str, str | None] = {"marlin": "w4a16_marlin"}
    if not is_data_centre_blackwell(gpu):
        return {"auto": None, **marlin}
    return {**dict.fromkeys(("auto", "flashinfer_mxfp4"), "w4a8_mxfp4_mxfp8"), **marlin}
