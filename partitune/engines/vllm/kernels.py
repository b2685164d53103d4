"""The kernels that vLLM runs and that were measured under it.

Source: aiconfigurator-core 0.12.0 (releases and names of its tables). The fused decode of KDA holds the
convolution and the norm.
"""

from __future__ import annotations

from partitune.costs.measured.operations import Measured, MeasuredEngine

MEASURED = MeasuredEngine(
    Measured("vllm", "0.24.0", "0.14.0"),
    (
        ("KDAKernel", (("causal_conv1d_fn_qkv3", "flashkda_fwd"), ("fused_kda_decode",))),
        (
            "GDNKernel",
            (
                ("causal_conv1d_fn", "chunk_gated_delta_rule"),
                ("causal_conv1d_update", "fused_sigmoid_gating_delta_rule_update"),
            ),
        ),
    ),
    whole_latent_block=True,
)
