"""The kernels that SGLang runs and that were measured under it.

Source: aiconfigurator-core 0.12.0 (releases and names of its tables); `layers/quantization/mxfp4.py` and PR 34299.
"""

from __future__ import annotations

from partitune.costs.measured.operations import GDN_KERNELS, SGLANG_TABLES, MeasuredEngine
from partitune.hardware.gpus import Gpu
from partitune.models.architecture import Architecture, Ffn

#: Kernels of a prompt, and of a decode.
_KDA = (("causal_conv1d_fn_qkv3", "chunk_kda"), ("causal_conv1d_update", "fused_recurrent_kda_packed_decode"))
MEASURED = MeasuredEngine(SGLANG_TABLES, (("KDAKernel", _KDA), ("GDNKernel", GDN_KERNELS)), whole_latent_block=False)


def expert_kernel(architecture: Architecture, gpu: Gpu) -> str | None:
    """8-bit activations with mxfp4 weights on data-centre Blackwell; None: the usual kernel."""
    mxfp4 = any(layer.ffn.kind is Ffn.MOE and layer.ffn.expert_dtype == "mxfp4" for layer in architecture.layers)
    special = architecture.architecture.startswith("GptOss")
    blackwell = gpu.generation.value.data_centre_blackwell
    return "w4a8_mxfp4_mxfp8" if mxfp4 and not special and blackwell else None
