"""Which parallel sizes vLLM takes together, how it spells them, and what it derives from them.

Decision: like rules.py one function per rule, all of them run, each fault with its source; they stand apart because
they look at sizes and the model alone and so decide which layouts a search may propose at all.

Source: vLLM 0.32.0 `config/parallel.py` (_validate_parallel_config, use_sequence_parallel_moe), `config/model.py`
(verify_with_parallel_config), `v1/worker/gpu/pcp_manager.py`, `model_executor/layers/fused_moe/{layer,config}.py`,
`models/kimi_k3/nvidia/{model,mla}.py`; 0.33.0 is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.flags import mapping
from partitune.engines.rules import head_faults, kv_heads
from partitune.engines.versions import Version, parse_version
from partitune.engines.vllm.flags import ALL2ALL_BACKENDS, GATHERING
from partitune.engines.vllm.weights import builds_tower
from partitune.hardware.parallelism import Exchange, Layout
from partitune.models.architecture import STATE_KINDS, Architecture, Attention, Ffn, FfnBlock

#: Back ends with which tokens are cut over the tensor ranks first, and since which release: `use_sequence_parallel_moe`
#: in `config/parallel.py` of the wheels of 0.11.2 to 0.33.0. There is no flag for it.
_CUT_FIRST: Mapping[str, Version] = MappingProxyType(
    {
        **dict.fromkeys((GATHERING, "deepep_high_throughput", "deepep_low_latency"), Version(0, 11)),
        "nixl_ep": Version(0, 18),
        **dict.fromkeys(("mori_high_throughput", "mori_low_latency"), Version(0, 23)),
        "flashinfer_nvlink_one_sided": Version(0, 29),
        "deepep_v2": Version(0, 31),
    }
)
#: MoonEP gathers all experts on every rank at start, and fills so many further rows with copies of the busiest, step by
#: step (`layers/fused_moe/prepare_finalize/moonep.py` of 0.31 to 0.33, gather_moonep_weight_layout). It runs without
#: CUDA graphs (`config/vllm.py`).
_BALANCING_SLOTS = 4
_MOONEP_SINCE = Version(0, 31)
#: Back ends that notice a dead peer (`distributed/device_communicators/all2all.py` support_fault_tolerance).
_FAULT_TOLERANT = ("deepep_low_latency", "nixl_ep")
#: Back ends that dual batch overlap can split (`config/vllm.py`).
_OVERLAPPING = ("deepep_low_latency", "deepep_high_throughput", "nixl_ep")
#: Communicators of EPLB that share NCCL with the model's own collectives (`config/parallel.py` EPLBConfig).
_NCCL_COMMUNICATORS = ("torch_nccl", "pynccl")
_PARALLEL_PY = "vLLM 0.32 config/parallel.py"
_MODEL_PY = "vLLM 0.32 config/model.py"
_MOE_PY = "vLLM 0.32 model_executor/layers/fused_moe/config.py"
_PCP_PY = "vLLM 0.32 v1/worker/gpu/pcp_manager.py"
_VLLM_PY = "vLLM 0.32 config/vllm.py"

Effective = Mapping[str, FlagValue]
Faults = Iterator[tuple[str, str, str]]  # rule, message and source, as in `Violation`


def resolved_layout(layout: Layout, architecture: Architecture, version: str) -> Layout:
    """`layout` with the exchange and the cutting of tokens that vLLM picks.

    Kimi-K3 cuts tokens only without a pipeline (`models/kimi_k3/nvidia/model.py`, PR 54347 is open).
    """
    if not _expert_blocks(architecture):
        return layout
    backend, spread = layout.all2all_backend or GATHERING, layout.expert_ranks > 1
    cuts = backend in _CUT_FIRST and parse_version(version) >= _CUT_FIRST[backend]
    cut = cuts and spread and layout.tp > 1 and layout.dp > 1
    if architecture.residual_block is not None and layout.pp > 1:
        cut = False
    exchange = Exchange.REDUCE
    if layout.dp > 1 or (spread and layout.pcp > 1):
        exchange = Exchange.ROUTED if spread and backend != GATHERING else Exchange.GATHER
    slots = _BALANCING_SLOTS if backend == "moonep" and exchange is Exchange.ROUTED else None
    return replace(layout, exchange=exchange, sequence_parallel_moe=cut, balancing_slots=slots)


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


def _heads(deployment: Deployment, _: Effective) -> Faults:
    return head_faults(deployment, _MODEL_PY)


def _experts_over_ranks(deployment: Deployment, effective: Effective) -> Faults:
    layout, blocks = deployment.layout, _expert_blocks(deployment.architecture)
    if layout.expert_ranks > 1 and not blocks:
        yield "experts-missing", f"{deployment.architecture.name} has no routed experts to spread", _MODEL_PY
        return
    if layout.expert_ranks not in (1, layout.stage_gpus):
        message = (
            f"expert_parallel {layout.expert_ranks}: vLLM spreads experts over all {layout.stage_gpus} ranks of a "
            f"stage (tp x pcp x dp) or over none; use true or false"
        )
        yield "expert-width", message, _MOE_PY
    widths = {matrix.outputs for block in blocks for matrix in block.expert_matrices if matrix.name == "up_proj"}
    for width in sorted(widths):
        if width % layout.expert_cut:
            message = (
                f"an expert is {width} wide, which {layout.expert_cut} ranks cannot share evenly; spread whole experts "
                "with expert_parallel: true"
            )
            yield "expert-cut", message, _MOE_PY
    if layout.all2all_backend is not None and layout.all2all_backend not in ALL2ALL_BACKENDS:
        message = f"all2all_backend {layout.all2all_backend!r} is not one of {', '.join(ALL2ALL_BACKENDS)}"
        yield "all2all-backend", message, _PARALLEL_PY
    eplb = effective.get("enable_eplb") is True
    if layout.all2all_backend == "moonep":
        if eplb or {block.expert_dtype for block in blocks} - {"bf16"}:
            yield "all2all-backend", "all2all_backend moonep takes bf16 experts without EPLB only", _VLLM_PY
        if (version := parse_version(deployment.version)) < _MOONEP_SINCE:
            message = f"vLLM {version} has no all2all_backend moonep, which comes with {_MOONEP_SINCE}"
            yield "all2all-backend", message, "vLLM 0.31 config/parallel.py"


def _balancing(deployment: Deployment, effective: Effective) -> Faults:
    config, ranks = mapping(effective.get("eplb_config")), deployment.layout.expert_ranks
    if effective.get("enable_eplb") is not True:
        if config.get("num_redundant_experts", 0):
            yield "eplb", "eplb_config: num_redundant_experts needs enable_eplb: true", _PARALLEL_PY
        if effective.get("enable_elastic_ep") is True:
            yield "elastic-ep", "enable_elastic_ep needs enable_eplb: true", _PARALLEL_PY
        return
    if ranks == 1:
        yield "eplb", "enable_eplb needs expert_parallel: true and more than one rank a stage", _PARALLEL_PY
    redundant = config.get("num_redundant_experts", 0)
    for count in sorted({block.experts for block in _expert_blocks(deployment.architecture)}):
        held = count + (redundant if isinstance(redundant, int) else 0)
        if held % ranks:
            message = f"EPLB needs the same number of experts on every rank; {held} do not divide by {ranks}"
            yield "eplb", message, "vLLM 0.32 model_executor/layers/fused_moe/layer.py"
    if config.get("use_async", True):
        if config.get("communicator") in _NCCL_COMMUNICATORS:
            message = (
                f"asynchronous EPLB with communicator {config['communicator']} runs NCCL from two streams; use nixl or "
                "torch_gloo, or use_async false"
            )
            yield "eplb", message, f"{_PARALLEL_PY} EPLBConfig"
        if config.get("policy", "default") != "default":
            yield "eplb", "asynchronous EPLB takes the default policy only", f"{_PARALLEL_PY} EPLBConfig"


def _decode_context(deployment: Deployment, _: Effective) -> Faults:
    layout, architecture = deployment.layout, deployment.architecture
    tp, pcp, dcp = layout.tp, layout.pcp, layout.dcp
    if dcp == 1:
        return
    if pcp == 1 and tp % dcp:
        yield "dcp", f"dcp {dcp} reuses tensor ranks and does not divide tp {tp}", _PARALLEL_PY
    elif pcp > 1 and dcp not in (pcp, tp * pcp):
        yield "dcp", f"with pcp {pcp} and tp {tp}, dcp {dcp} must be 1, {pcp} or {tp * pcp}", _PARALLEL_PY
    if any(layer.attention.kind is Attention.SLIDING for layer in architecture.layers):
        message = f"dcp {dcp}: {architecture.name} has layers with a sliding window, whose cache cannot be dealt out"
        yield "dcp", message, "vLLM 0.32 v1/core/single_type_kv_cache_manager.py"
    heads = max(layer.attention.heads for layer in architecture.layers)
    for count in sorted(kv_heads(architecture)):
        if tp <= count or dcp > tp // count:
            most = max(tp // count, 1)
            message = f"dcp {dcp}: {count} KV heads over tp {tp} leave at most {most} ranks with the same head"
            yield "dcp", message, _MODEL_PY
        elif heads // count % dcp:
            yield "dcp", f"dcp {dcp} does not divide the {heads // count} query heads of a KV head", _MODEL_PY


def _prefill_context(deployment: Deployment, effective: Effective) -> Faults:
    layout, architecture = deployment.layout, deployment.architecture
    if layout.pcp == 1:
        return
    kinds = {layer.attention.kind for layer in architecture.layers}
    if not kinds & {Attention.MLA, Attention.SPARSE} or kv_heads(architecture):
        yield "pcp", f"pcp takes models with latent attention only, not {architecture.name}", _PCP_PY
    elif architecture.residual_block is not None or kinds & STATE_KINDS:
        yield "pcp", f"pcp: {architecture.name} refuses it", "vLLM 0.32 models/kimi_k3/nvidia/mla.py"
    if layout.dp > 1:
        message = f"pcp {layout.pcp} with dp {layout.dp} is not supported yet"
        yield "pcp", message, "vLLM PRs 49246, 57075 (open)"
    if deployment.runner == "v1":
        yield "pcp", "pcp needs the V2 model runner", _VLLM_PY
    if architecture.edges.vision_bytes and builds_tower(architecture, effective):
        yield "pcp-images", "pcp takes no images; set language_model_only: true", _PCP_PY
    sparse = Attention.SPARSE in kinds
    if layout.dcp > 1 and not sparse:
        yield "pcp", "pcp with dcp takes sparse latent attention only", f"{_PCP_PY}, issue 53573"
    if layout.dcp == 1 and sparse and not effective.get("enforce_eager"):
        message = "pcp on sparse latent attention without dcp runs without CUDA graphs only; set enforce_eager: true"
        yield "pcp-graphs", message, _PCP_PY


def _overlap(deployment: Deployment, effective: Effective) -> Faults:
    if effective.get("enable_dbo") is not True:
        return
    layout, architecture = deployment.layout, deployment.architecture
    if layout.all2all_backend not in _OVERLAPPING:
        message = f"enable_dbo needs parallel.all2all_backend to be one of {', '.join(_OVERLAPPING)}"
        yield "dbo", message, _VLLM_PY
    if deployment.runner == "auto":
        message = "enable_dbo makes vLLM fall back to the V1 model runner silently; say engine.runner: v1 or v2"
        yield "dbo", message, _VLLM_PY
    if deployment.runner in ("auto", "v1"):
        return
    together = {
        "a pipeline": layout.pp > 1,
        "context parallelism": layout.dcp > 1 or layout.pcp > 1,
        "images": architecture.edges.vision_bytes,
        "a hybrid model": architecture.is_hybrid,
        "speculative decoding": effective.get("spec_method") or effective.get("speculative_config"),
    }
    for what, present in together.items():
        if present:
            yield "dbo", f"enable_dbo does not go with {what} on the V2 model runner", _VLLM_PY


def _fault_tolerance(deployment: Deployment, effective: Effective) -> Faults:
    if effective.get("enable_fault_tolerance") is not True:
        return
    layout = deployment.layout
    if effective.get("data_parallel_external_lb") is not True and effective.get("data_parallel_rank") is None:
        message = "enable_fault_tolerance needs data_parallel_external_lb: true, a balancer outside the engine"
        yield "fault-tolerance", message, "vLLM 0.32 engine/arg_utils.py"
    if layout.dp == 1 or layout.expert_ranks == 1 or layout.all2all_backend not in _FAULT_TOLERANT:
        names = " or ".join(_FAULT_TOLERANT)
        message = f"enable_fault_tolerance watches experts over data ranks: it needs dp, expert_parallel and {names}"
        yield "fault-tolerance", message, "vLLM 0.32 distributed/device_communicators/all2all.py"
    if isinstance(count := effective.get("api_server_count"), int) and count > 1:
        yield "fault-tolerance", "enable_fault_tolerance needs api_server_count 1", _PARALLEL_PY


def _expert_blocks(architecture: Architecture) -> set[FfnBlock]:
    return {layer.ffn for layer in architecture.layers if layer.ffn.kind is Ffn.MOE}


#: Every rule about parallel sizes.
LAYOUT_RULES = (_heads, _experts_over_ranks, _balancing, _decode_context, _prefill_context, _overlap, _fault_tolerance)
