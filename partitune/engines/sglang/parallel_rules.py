"""How SGLang spells parallel sizes, and what it derives from them.

Decision: SGLang counts all ranks of a stage as `tp_size` and says beside it how many of them are data or context ranks
of the attention; our `tp` is what is left. Data ranks of a model with experts are attention data parallelism (one
scheduler each, experts shared); those of a dense model are whole replicas (`dp_size`).

Source: SGLang 0.5.23 `srt/arg_groups/fields/parallel.py`, `fields/exec_.py`, `srt/runtime_context.py`
(derive_attn_tp_size), `srt/arg_groups/moe_hook.py`.
"""

from __future__ import annotations

from dataclasses import replace

from partitune.candidate import FlagValue
from partitune.hardware.parallelism import Exchange, Layout
from partitune.models.architecture import Architecture


def attention_replicas(layout: Layout, architecture: Architecture) -> int:
    """Attention data ranks inside the ranks of one engine."""
    return layout.dp if architecture.has_experts else 1


def engine_ranks(layout: Layout, architecture: Architecture) -> int:
    """All ranks of a stage that one engine starts, which SGLang calls its `tp_size`."""
    return layout.tp * layout.pcp * attention_replicas(layout, architecture)


def resolved_layout(layout: Layout, architecture: Architecture, version: str) -> Layout:  # noqa: ARG001
    """`layout` with the exchange that SGLang picks: gathered over data ranks, or routed by an all-to-all back end."""
    if not architecture.has_experts:
        return layout
    if layout.all2all_backend not in (None, "none"):
        return replace(layout, exchange=Exchange.ROUTED)
    return replace(layout, exchange=Exchange.GATHER if layout.dp > 1 else Exchange.REDUCE)


def layout_flags(layout: Layout, architecture: Architecture) -> dict[str, FlagValue]:
    """The layout as flags; sizes of 1 and defaults are left out, except the two that name a pipeline."""
    data_ranks = "attn_dp_size" if attention_replicas(layout, architecture) > 1 else "dp_size"
    further: dict[str, FlagValue | None] = {
        data_ranks: layout.dp,
        "attn_cp_size": layout.pcp,
        "enable_prefill_cp": layout.pcp > 1,
        "dcp_size": layout.dcp,
        "ep_size": layout.expert_ranks,
        "moe_a2a_backend": layout.all2all_backend,
        "disable_custom_all_reduce": layout.all_reduce_backend == "nccl",
    }
    sizes: dict[str, FlagValue] = {"pp_size": layout.pp, "tp_size": engine_ranks(layout, architecture)}
    return sizes | {name: value for name, value in further.items() if value is True or value not in (None, False, 1)}
