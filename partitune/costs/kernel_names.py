"""Which kernels a figure assumes, by name: for experts, attention and all-reduces.

Decision: an engine has several kernels for the same work, which differ by a factor of three (a Kimi-K3 expert block of
2,048 tokens on B300: 7.9 ms with Marlin, 2.2 ms with 8-bit activations). A time without the kernel it was taken with
can neither be believed nor doubted, so the cost model names them, in the words of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.costs.measured.operations import MeasuredEngine
from partitune.hardware.placement import Placement
from partitune.models.architecture import Architecture, Attention

#: Of mixers over states: what the tables call the operation.
_STATE_OPERATIONS = {Attention.KDA: "KDAKernel", Attention.GDN: "GDNKernel"}
_LATENT = (Attention.MLA, Attention.SPARSE)


def kernel_names(
    architecture: Architecture, placement: Placement, expert_kernel: str, engine: MeasuredEngine | None
) -> Mapping[str, str]:
    """Work -> the kernels that its times are those of; work that the model or the layout has none of is left out.

    Args:
        architecture: the model.
        placement: where it stands.
        expert_kernel: of routed experts.
        engine: whose tables are used; None: none are.
    """
    names = {}
    if architecture.has_experts:
        names["experts"] = expert_kernel
    mixers = dict.fromkeys(layer.attention.kind for layer in architecture.layers)
    names["attention"] = ", ".join(_mixer(kind, engine) for kind in mixers if kind is not Attention.NONE)
    if placement.layout.tp > 1:
        own = placement.layout.all_reduce_backend != "nccl" and placement.tensor_link is None
        names["all-reduce"] = "the engine's own" if own else "NCCL"
    return names


def _mixer(kind: Attention, engine: MeasuredEngine | None) -> str:
    if engine is None:
        return f"{kind} (roofline)"
    tables = f"{engine.tables.engine} {engine.tables.release}"
    of_state = dict(engine.state_kernels).get(_STATE_OPERATIONS.get(kind, ""))
    if of_state is not None:
        prompt, decode = of_state
        return f"{kind} {'+'.join(prompt)} for prompts, {'+'.join(decode)} for decodes"
    if kind in _LATENT:
        return f"{kind} {'whole block' if engine.whole_latent_block else 'kernels'} of {tables}"
    return f"{kind} back end of {tables}"
