"""Feed-forward blocks: dense MLP and mixture of experts.

Decision: routed experts are counted one expert at a time and kept apart from what every token passes (router, shared
experts, latent projections), because tensor and expert parallelism split them differently and only a few are visited.
Router, gate and latent projections are whole on every TP rank (vLLM 0.32 GateLinear and ReplicatedLinear in
`qwen2_moe.py`, `nemotron_h.py`, `models/kimi_k3/nvidia/model.py`); shared experts are split.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.models.architecture import Ffn, FfnBlock
from partitune.models.weight_counter import WeightCounter


def _mlp(counter: WeightCounter, prefix: str, hidden: int, inner: int, *, gated: bool, bias: bool = False) -> None:
    """Add an MLP of three matrices (gate, up, down), or of two where it is not `gated`."""
    for name in ("gate_proj", "up_proj") if gated else ("up_proj",):
        counter.matrix(f"{prefix}{name}", inner, hidden, bias=bias)
    counter.matrix(f"{prefix}down_proj", hidden, inner, bias=bias)


def dense(counter: WeightCounter, hidden: int, inner: int, *, gated: bool = True, bias: bool = False) -> FfnBlock:
    """A dense MLP of three matrices (gate, up, down) or two (up, down), counted by an empty counter of its module."""
    _mlp(counter, "", hidden, inner, gated=gated, bias=bias)
    return FfnBlock(kind=Ffn.DENSE, **counter.totals())


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Shape of a mixture of experts."""

    hidden: int
    experts: int
    per_token: int
    inner: int  # of one routed expert
    shared: int = 0  # width of all shared experts together
    latent: int | None = None  # width routed experts work in, when it is not the hidden size
    latent_norm: bool = False
    gated: bool = True  # three matrices an expert, else two
    bias: bool = False  # on experts and router
    shared_gate: bool = False  # a scalar gate on the shared expert
    routing_bias: bool = True  # a float32 correction per expert


def mixture(common: WeightCounter, shape: ExpertShape) -> FfnBlock:
    """A mixture of experts; `common`, an empty counter of its module, counts what every token passes."""
    common.matrix("gate", shape.experts, shape.hidden, bias=shape.bias, plain=True, whole=True)
    if shape.routing_bias:
        common.vector(shape.experts, bytes_each=4, whole=True)
    if shape.shared:
        _mlp(common, "shared_experts.", shape.hidden, shape.shared, gated=shape.gated)
    if shape.shared_gate:
        common.matrix("shared_expert_gate", 1, shape.hidden, plain=True, whole=True)
    if shape.latent is not None:
        # 16-bit in every published checkpoint: SGLang 0.5.23 `models/kimi_k3.py`, vLLM 0.32 `models/nemotron_h.py`.
        common.matrix("latent_down_proj", shape.latent, shape.hidden, plain=True, whole=True)
        common.matrix("latent_up_proj", shape.hidden, shape.latent, plain=True, whole=True)
        common.vector(shape.latent if shape.latent_norm else 0, whole=True)
    width = shape.latent or shape.hidden
    expert = common.inside("experts.0")
    _mlp(expert, "", width, shape.inner, gated=shape.gated, bias=shape.bias)
    return FfnBlock(
        kind=Ffn.MOE,
        **common.totals(),
        experts=shape.experts,
        experts_per_token=shape.per_token,
        expert_params=expert.params,
        expert_bytes=expert.weight_bytes,
        expert_dtype=expert.totals()["dtype"],
        expert_width=shape.latent or 0,
        expert_matrices=tuple(expert.matrices),
    )
