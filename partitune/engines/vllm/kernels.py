"""The kernels that vLLM runs and that were measured under it.

Source: aiconfigurator-core 0.12.0 (releases and names of its tables). The fused decode of KDA holds the
convolution and the norm.
"""

from __future__ import annotations

from partitune.costs.measured.operations import GDN_KERNELS, Measured, MeasuredEngine

#: Kernels of a prompt, and of a decode.
_KDA = (("causal_conv1d_fn_qkv3", "flashkda_fwd"), ("fused_kda_decode",))
MEASURED = MeasuredEngine(
    Measured("vllm", "0.24.0", "0.14.0"),
    (("KDAKernel", _KDA), ("GDNKernel", GDN_KERNELS)),
    whole_latent_block=True,
)
