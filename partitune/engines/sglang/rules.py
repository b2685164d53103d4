"""What SGLang refuses, found before the launch instead of minutes after it.

Decision: as for vLLM, one function per rule, all of them run, each violation with its source; only what the engine's
code says.

Source: SGLang 0.5.23 `srt/arg_groups/validation_hook.py`, `parallel_hook.py`, `moe_hook.py`,
`srt/layers/moe/fused_moe_triton/layer.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment, command_flags
from partitune.engines.flags import unknown_flag, whole_number
from partitune.engines.rules import Violation, head_faults
from partitune.engines.sglang.coverage import SGLANG_COVERAGE
from partitune.engines.sglang.defaults import effective_flags, is_on
from partitune.engines.sglang.flags import ALL2ALL_BACKENDS, NAMES_OF_VLLM, SGLANG_FLAGS
from partitune.engines.sglang.kv_planning import rank_cache_bytes
from partitune.engines.sglang.weights import QUANTISING
from partitune.errors import InfeasibleSpace, nearest
from partitune.hardware.parallelism import Layout
from partitune.models.architecture import Architecture, Ffn

_VALIDATION = "SGLang 0.5.23 srt/arg_groups/validation_hook.py"
_PARALLEL = "SGLang 0.5.23 srt/arg_groups/parallel_hook.py"
_MOE = "SGLang 0.5.23 srt/arg_groups/moe_hook.py"


def check_sglang(deployment: Deployment) -> tuple[Violation, ...]:
    """Every rule that the deployment breaks."""
    faults = tuple(_flag_faults(deployment))
    if any(fault.rule == "flag-value" for fault in faults):
        return faults  # nothing follows from a value that is none
    return (
        *faults,
        *_layout_faults(deployment),
        *_shape_faults(deployment, effective_flags(deployment)),
        *_mode_faults(deployment),
        *QUANTISING.faults(deployment),
        *_types_of_cache(deployment),
    )


def _flag_faults(deployment: Deployment) -> Iterator[Violation]:
    source = "SGLang 0.5.23 srt/arg_groups/fields"
    for name, value in command_flags(deployment.flags).items():
        if name in SGLANG_FLAGS:
            if fault := SGLANG_FLAGS[name].fault(value):
                yield Violation("flag-value", f"{name}: {fault}", source)
        elif name in NAMES_OF_VLLM:
            yield Violation("unknown-flag", f"{name}: vLLM's name; SGLang has {NAMES_OF_VLLM[name]}", source)
        elif name not in SGLANG_COVERAGE and nearest(name.replace("-", "_"), SGLANG_COVERAGE, alike=0.85):
            yield Violation("unknown-flag", unknown_flag(name, SGLANG_COVERAGE, f"SGLang {deployment.version}"), source)


def _shape_faults(deployment: Deployment, effective: Mapping[str, FlagValue]) -> Iterator[Violation]:
    stages, world = deployment.stages, deployment.layout.stage_gpus
    if stages > (layers := len(deployment.architecture.layers)):
        source = "SGLang 0.5.23 srt/utils/common.py make_layers"
        yield Violation("fewer-layers-than-stages", f"{layers} layers for {stages} stages", source)
    nodes = max(deployment.nodes, whole_number(effective, "nnodes", 1))
    if world * stages % nodes:
        yield Violation("nodes", f"{world} x {stages} GPUs cannot be divided over {nodes} nodes", _VALIDATION)
    elif stages % nodes and nodes % stages:
        message = f"{stages} stages over {nodes} nodes leave a stage unstarted"
        yield Violation("stages-over-nodes", message, "SGLang 0.5.23 entrypoints/engine.py")
    chunk, page = whole_number(effective, "chunked_prefill_size", 0), whole_number(effective, "page_size", 1)
    if chunk > 0 and page > 0 and chunk % page:
        message = f"chunked_prefill_size {chunk} must be a multiple of page_size {page}"
        yield Violation("chunk-of-pages", message, _VALIDATION)


def _layout_faults(deployment: Deployment) -> Iterator[Violation]:
    layout = deployment.layout
    yield from head_faults(deployment, _VALIDATION)
    yield from _expert_faults(layout, deployment.architecture)
    yield from _all2all_faults(layout)
    if layout.dcp > 1 and layout.tp % layout.dcp:
        yield Violation("dcp", f"dcp {layout.dcp} reuses tensor ranks and does not divide tp {layout.tp}", _PARALLEL)
    if layout.pcp > 1 and layout.dcp > 1:
        yield Violation("pcp", "dcp and pcp (enable_prefill_cp) exclude each other", _PARALLEL)
    if layout.pcp > 1 and not deployment.flags.get("cp_strategy"):
        yield Violation("pcp-strategy", "pcp needs the flag cp_strategy: zigzag or interleave", _PARALLEL)


def _expert_faults(layout: Layout, architecture: Architecture) -> Iterator[Violation]:
    if (width := layout.expert_ranks) == 1:
        return
    if not architecture.has_experts:
        yield Violation("experts-missing", f"{architecture.name} has no routed experts to spread", _MOE)
    elif layout.stage_gpus % width:
        message = f"expert_parallel {width} does not divide the {layout.stage_gpus} ranks of a stage"
        yield Violation("expert-width", message, _PARALLEL)
    source = "SGLang 0.5.23 srt/layers/moe/fused_moe_triton/layer.py"
    for count in sorted({layer.ffn.experts for layer in architecture.layers if layer.ffn.kind is Ffn.MOE}):
        if count % width:
            yield Violation("expert-width", f"{count} experts do not divide by expert_parallel {width}", source)


def _all2all_faults(layout: Layout) -> Iterator[Violation]:
    backend, faults = layout.all2all_backend, []
    if backend not in (None, *ALL2ALL_BACKENDS):
        faults.append(f"{backend!r} is not one of {', '.join(ALL2ALL_BACKENDS)}")
    elif backend not in (None, "none") and layout.expert_ranks != layout.stage_gpus:
        faults.append(f"{backend} spreads experts over all ranks: expert_parallel: true")
    if backend == "pplx" and layout.dp < 2:
        faults.append("pplx needs dp 2 or more")
    if backend in ("flashinfer", "flashinfer_megamoe") and layout.dp != layout.stage_gpus:
        faults.append(f"{backend} needs attention on data ranks only: tp 1")
    yield from (Violation("all2all-backend", f"all2all_backend {fault}", _MOE) for fault in faults)


def _types_of_cache(deployment: Deployment) -> Iterator[Violation]:
    try:
        rank_cache_bytes(deployment)
    except InfeasibleSpace as refused:
        yield Violation("kv-cache-dtype", str(refused), "SGLang 0.5.23 srt/model_executor/pool_configurator.py")


def _mode_faults(deployment: Deployment) -> Iterator[Violation]:
    """Options that exclude a pipeline."""
    flags = deployment.flags
    if deployment.layout.dp > 1 and deployment.nodes > 1 and not deployment.architecture.has_experts:
        yield Violation("nodes", "data ranks of a dense model (dp) must stay on one node", _VALIDATION)
    if deployment.stages == 1:
        return
    for name in ("elastic_ep_backend", "dwdp_size"):
        if flags.get(name, 1) not in (1, None):
            yield Violation("not-with-pipeline", f"{name} is refused with more than one pipeline stage", _PARALLEL)
    for name in ("min_free_slots_delay", "enable_pdmux"):
        if flags.get(name, False) is not False:
            yield Violation("not-with-pipeline", f"{name} is refused with more than one pipeline stage", _VALIDATION)
    if (algorithm := flags.get("speculative_algorithm")) is None:
        return
    prefill_node = flags.get("disaggregation_mode") == "prefill"
    relayed = is_on(flags, "SGLANG_ENABLE_PP_SPEC")
    eagle = str(algorithm).upper() == "EAGLE" and not flags.get("enable_multi_layer_eagle")
    fault = ""
    if not eagle and not (algorithm == "DSPARK" and prefill_node):
        fault = f"speculative_algorithm {algorithm} is refused; only EAGLE runs"
    elif eagle and relayed and deployment.layout.dp > 1:
        fault = "SGLANG_ENABLE_PP_SPEC excludes data ranks (dp)"
    elif eagle and relayed == prefill_node:
        fault = "EAGLE with a pipeline needs either disaggregation_mode prefill or SGLANG_ENABLE_PP_SPEC=1, not both"
    if fault:
        yield Violation("draft-with-pipeline", fault, _VALIDATION)
