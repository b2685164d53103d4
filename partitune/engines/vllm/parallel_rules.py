"""Which parallel sizes vLLM takes together, how it spells them, and what it derives from them.

Decision: like vllm_rules.py one function per rule, all of them run, each violation with its source; they stand apart
because they look at sizes and the model alone and so decide which layouts a search may propose at all.

Source: vLLM 0.32.0 `config/parallel.py` (_validate_parallel_config, use_sequence_parallel_moe), `config/model.py`
(verify_with_parallel_config), `v1/worker/gpu/pcp_manager.py`, `model_executor/layers/fused_moe/{layer,config}.py`,
`models/kimi_k3/nvidia/{model,mla}.py`; 0.33.0 is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.flags import mapping
from partitune.engines.rules import Violation, head_faults, kv_heads
from partitune.engines.vllm.flags import ALL2ALL_BACKENDS, GATHERING
from partitune.hardware.parallelism import Exchange, Layout
from partitune.models.architecture import STATE_KINDS, Architecture, Attention, Ffn

#: Back ends with which tokens are cut over the tensor ranks first (`use_sequence_parallel_moe`).
_CUT_FIRST = frozenset(ALL2ALL_BACKENDS) - {"moonep", "flashinfer_nvlink_two_sided"}
#: Back ends that notice a dead peer (`distributed/device_communicators/all2all.py` support_fault_tolerance).
_FAULT_TOLERANT = ("deepep_low_latency", "nixl_ep")
#: Back ends that dual batch overlap can split (`config/vllm.py`).
_OVERLAPPING = ("deepep_low_latency", "deepep_high_throughput", "nixl_ep")
#: Communicators of EPLB that share NCCL with the model's own collectives (`config/parallel.py` EPLBConfig).
_NCCL_COMMUNICATORS = ("torch_nccl", "pynccl")
_PARALLEL_PY = "vLLM 0.32 config/parallel.py"
_MODEL_PY = "vLLM 0.32 config/model.py"
_PCP_PY = "vLLM 0.32 v1/worker/gpu/pcp_manager.py"
_VLLM_PY = "vLLM 0.32 config/vllm.py"

Effective = Mapping[str, FlagValue]


def resolved_layout(layout: Layout, architecture: Architecture) -> Layout:
    """`layout` with the exchange and the cutting of tokens that vLLM picks.

    Kimi-K3 cuts tokens only without a pipeline (`models/kimi_k3/nvidia/model.py`, PR 54347 is open).
    """
    if not _experts(architecture):
        return layout
    backend, spread = layout.all2all_backend or GATHERING, layout.expert_ranks > 1
    cut = spread and layout.tp > 1 and layout.dp > 1 and backend in _CUT_FIRST
    if architecture.residual_block is not None and layout.pp > 1:
        cut = False
    exchange = Exchange.REDUCE
    if layout.dp > 1 or (spread and layout.pcp > 1):
        exchange = Exchange.ROUTED if spread and backend != GATHERING else Exchange.GATHER
    return replace(layout, exchange=exchange, sequence_parallel_moe=cut)


def layout_flags(layout: Layout) -> dict[str, FlagValue]:
    """The layout as flags of `vllm serve`; other sizes than tp and pp are left out where they are 1."""
    sizes = {
        "data_parallel_size": layout.dp,
        "prefill_context_parallel_size": layout.pcp,
        "decode_context_parallel_size": layout.dcp,
    }
    flags: dict[str, FlagValue] = {"pipeline_parallel_size": layout.pp, "tensor_parallel_size": layout.tp}
    flags |= {name: size for name, size in sizes.items() if size > 1}
    if layout.expert_ranks > 1:
        flags["enable_expert_parallel"] = True
    if layout.all2all_backend is not None:
        flags["all2all_backend"] = layout.all2all_backend
    if layout.all_reduce_backend == "nccl":
        flags["disable_custom_all_reduce"] = True
    return flags


def check_layout(deployment: Deployment, effective: Effective) -> Iterator[Violation]:
    """Every rule about parallel sizes that the deployment breaks."""
    for rule in _RULES:
        yield from rule(deployment, effective)


def _heads(deployment: Deployment, _: Effective) -> Iterator[Violation]:
    return head_faults(deployment, _MODEL_PY)


def _experts_over_ranks(deployment: Deployment, effective: Effective) -> Iterator[Violation]:
    layout, counts = deployment.layout, _experts(deployment.architecture)
    if layout.expert_ranks > 1 and not counts:
        yield Violation("experts-missing", f"{deployment.architecture.name} has no routed experts to spread", _MODEL_PY)
        return
    if layout.expert_ranks not in (1, layout.stage_gpus):
        yield Violation(
            "expert-width",
            f"expert_parallel {layout.expert_ranks}: vLLM spreads experts over all {layout.stage_gpus} ranks of a "
            f"stage (tp x pcp x dp) or over none; use true or false",
            "vLLM 0.32 model_executor/layers/fused_moe/config.py",
        )
    blocks = {layer.ffn for layer in deployment.architecture.layers if layer.ffn.kind is Ffn.MOE}
    widths = {one.outputs for block in blocks for one in block.expert_matrices if one.name == "up_proj"}
    for width in sorted(widths):
        if width % layout.expert_cut:
            yield Violation(
                "expert-cut",
                f"an expert is {width} wide, which {layout.expert_cut} ranks cannot share evenly; spread whole experts "
                "with expert_parallel: true",
                "vLLM 0.32 model_executor/layers/fused_moe/config.py",
            )
    if layout.all2all_backend is not None and layout.all2all_backend not in ALL2ALL_BACKENDS:
        names = ", ".join(ALL2ALL_BACKENDS)
        message = f"all2all_backend {layout.all2all_backend!r} is not one of {names}"
        yield Violation("all2all-backend", message, _PARALLEL_PY)
    if layout.all2all_backend == "moonep":
        dtypes = {layer.ffn.expert_dtype for layer in deployment.architecture.layers if layer.ffn.kind is Ffn.MOE}
        if dtypes - {"bf16"} or effective.get("enable_eplb") is True:
            yield Violation("all2all-backend", "all2all_backend moonep takes bf16 experts without EPLB only", _VLLM_PY)


def _balancing(deployment: Deployment, effective: Effective) -> Iterator[Violation]:
    config = mapping(effective.get("eplb_config"))
    layout = deployment.layout
    if effective.get("enable_eplb") is not True:
        if config.get("num_redundant_experts", 0):
            yield Violation("eplb", "eplb_config: num_redundant_experts needs enable_eplb: true", _PARALLEL_PY)
        if effective.get("enable_elastic_ep") is True:
            yield Violation("elastic-ep", "enable_elastic_ep needs enable_eplb: true", _PARALLEL_PY)
        return
    if layout.expert_ranks == 1:
        yield Violation("eplb", "enable_eplb needs expert_parallel: true and more than one rank a stage", _PARALLEL_PY)
    redundant = config.get("num_redundant_experts", 0)
    for count in sorted(_experts(deployment.architecture)):
        held = count + (redundant if isinstance(redundant, int) else 0)
        if held % layout.expert_ranks:
            yield Violation(
                "eplb",
                f"EPLB needs the same number of experts on every rank; {held} do not divide by {layout.expert_ranks}",
                "vLLM 0.32 model_executor/layers/fused_moe/layer.py",
            )
    if config.get("use_async", True):
        if config.get("communicator") in _NCCL_COMMUNICATORS:
            yield Violation(
                "eplb",
                f"asynchronous EPLB with communicator {config['communicator']} runs NCCL from two streams; use nixl or "
                "torch_gloo, or use_async false",
                f"{_PARALLEL_PY} EPLBConfig",
            )
        if config.get("policy", "default") != "default":
            yield Violation("eplb", "asynchronous EPLB takes the default policy only", f"{_PARALLEL_PY} EPLBConfig")


def _decode_context(deployment: Deployment, _: Effective) -> Iterator[Violation]:
    layout, architecture = deployment.layout, deployment.architecture
    tp, pcp, dcp = layout.tp, layout.pcp, layout.dcp
    if dcp == 1:
        return
    if pcp == 1 and tp % dcp:
        yield Violation("dcp", f"dcp {dcp} reuses tensor ranks and does not divide tp {tp}", _PARALLEL_PY)
    elif pcp > 1 and dcp not in (pcp, tp * pcp):
        message = f"with pcp {pcp} and tp {tp}, dcp {dcp} must be 1, {pcp} or {tp * pcp}"
        yield Violation("dcp", message, _PARALLEL_PY)
    for layer in architecture.layers:
        if layer.attention.kind is Attention.SLIDING:
            yield Violation(
                "dcp",
                f"dcp {dcp}: {architecture.name} has layers with a sliding window, whose cache cannot be dealt out",
                "vLLM 0.32 v1/core/single_type_kv_cache_manager.py",
            )
            break
    heads = max(layer.attention.heads for layer in architecture.layers)
    for count in sorted(kv_heads(architecture)):
        if tp <= count or dcp > tp // count:
            most = max(tp // count, 1)
            yield Violation(
                "dcp",
                f"dcp {dcp}: {count} KV heads over tp {tp} leave at most {most} ranks with the same head",
                _MODEL_PY,
            )
        elif heads // count % dcp:
            message = f"dcp {dcp} does not divide the {heads // count} query heads of a KV head"
            yield Violation("dcp", message, _MODEL_PY)


def _prefill_context(deployment: Deployment, effective: Effective) -> Iterator[Violation]:
    layout, architecture = deployment.layout, deployment.architecture
    if layout.pcp == 1:
        return
    kinds = {layer.attention.kind for layer in architecture.layers}
    if not kinds & {Attention.MLA, Attention.SPARSE} or kv_heads(architecture):
        yield Violation("pcp", f"pcp takes models with latent attention only, not {architecture.name}", _PCP_PY)
    elif architecture.residual_block is not None or kinds & STATE_KINDS:
        yield Violation("pcp", f"pcp: {architecture.name} refuses it", "vLLM 0.32 models/kimi_k3/nvidia/mla.py")
    if layout.dp > 1:
        yield Violation(
            "pcp", f"pcp {layout.pcp} with dp {layout.dp} is not supported yet", "vLLM PRs 49246, 57075 (open)"
        )
    if deployment.runner == "v1":
        yield Violation("pcp", "pcp needs the V2 model runner", "vLLM 0.32 config/vllm.py")
    if architecture.edges.vision_bytes and not effective.get("language_model_only"):
        yield Violation("pcp-images", "pcp takes no images; set language_model_only: true", _PCP_PY)
    sparse = Attention.SPARSE in kinds
    if layout.dcp > 1 and not sparse:
        yield Violation("pcp", "pcp with dcp takes sparse latent attention only", f"{_PCP_PY}, issue 53573")
    if layout.dcp == 1 and sparse and not effective.get("enforce_eager"):
        message = "pcp on sparse latent attention without dcp runs without CUDA graphs only; set enforce_eager: true"
        yield Violation("pcp-graphs", message, _PCP_PY)


def _overlap(deployment: Deployment, effective: Effective) -> Iterator[Violation]:
    if effective.get("enable_dbo") is not True:
        return
    layout, architecture = deployment.layout, deployment.architecture
    if layout.all2all_backend not in _OVERLAPPING:
        names = ", ".join(_OVERLAPPING)
        yield Violation("dbo", f"enable_dbo needs parallel.all2all_backend to be one of {names}", _VLLM_PY)
    if deployment.runner == "v1":
        return
    if deployment.runner == "auto":
        message = "enable_dbo makes vLLM fall back to the V1 model runner silently; say engine.runner: v1 or v2"
        yield Violation("dbo", message, _VLLM_PY)
        return
    together = (
        (layout.pp > 1, "a pipeline"),
        (layout.dcp > 1 or layout.pcp > 1, "context parallelism"),
        (bool(architecture.edges.vision_bytes), "images"),
        (architecture.is_hybrid, "a hybrid model"),
        (any(effective.get(name) for name in ("spec_method", "speculative_config")), "speculative decoding"),
    )
    for broken, what in together:
        if broken:
            yield Violation("dbo", f"enable_dbo does not go with {what} on the V2 model runner", _VLLM_PY)


def _fault_tolerance(deployment: Deployment, effective: Effective) -> Iterator[Violation]:
    if effective.get("enable_fault_tolerance") is not True:
        return
    layout = deployment.layout
    if effective.get("data_parallel_external_lb") is not True and effective.get("data_parallel_rank") is None:
        message = "enable_fault_tolerance needs data_parallel_external_lb: true, a balancer outside the engine"
        yield Violation("fault-tolerance", message, "vLLM 0.32 engine/arg_utils.py")
    if layout.dp == 1 or layout.expert_ranks == 1 or layout.all2all_backend not in _FAULT_TOLERANT:
        names = " or ".join(_FAULT_TOLERANT)
        yield Violation(
            "fault-tolerance",
            f"enable_fault_tolerance watches experts over data ranks: it needs dp, expert_parallel and {names}",
            "vLLM 0.32 distributed/device_communicators/all2all.py",
        )
    if isinstance(count := effective.get("api_server_count"), int) and count > 1:
        yield Violation("fault-tolerance", "enable_fault_tolerance needs api_server_count 1", _PARALLEL_PY)


def _experts(architecture: Architecture) -> set[int]:
    return {layer.ffn.experts for layer in architecture.layers if layer.ffn.kind is Ffn.MOE}


_RULES: tuple[Callable[[Deployment, Effective], Iterator[Violation]], ...] = (
    _heads,
    _experts_over_ranks,
    _balancing,
    _decode_context,
    _prefill_context,
    _overlap,
    _fault_tolerance,
)
