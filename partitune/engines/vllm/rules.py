"""What vLLM refuses, found before the launch instead of minutes after it.

Decision: one function per rule, all of them always run, each violation with its source. A rule is here only when the
engine's code or a report says so; a warning of the engine is not a violation.

Source: vLLM 0.32.0 `config/scheduler.py` (verify_max_model_len), `config/model.py` (verify_with_parallel_config),
`config/vllm.py`, `config/parallel.py`, `config/speculative.py`; 0.33.0 is the same.
"""

from __future__ import annotations

from math import lcm

from partitune.engines.deployment import Deployment, command_flags
from partitune.engines.flags import mapping, unknown_flag, whole_number
from partitune.engines.rules import Violation
from partitune.engines.versions import Version, parse_version
from partitune.engines.vllm.defaults import effective_flags
from partitune.engines.vllm.flags import FLAG_RELEASES, OTHER_NAMES, REMOVED_FLAGS, VLLM_FLAGS
from partitune.engines.vllm.kv_choices import cache_fault
from partitune.engines.vllm.kv_groups import Cache, group_layers
from partitune.engines.vllm.kv_pages import cache_model, layer_cache_bytes
from partitune.engines.vllm.parallel_rules import LAYOUT_RULES, Effective, Faults, layout_flags
from partitune.engines.vllm.pipelining import RUNNERS, choose_regime
from partitune.engines.vllm.state_types import STATE_FLAGS
from partitune.engines.vllm.weights import quantising
from partitune.errors import PartituneError, SpecError

_CACHE_FLAGS = ("kv_cache_dtype", "kv_cache_dtype_skip_layers", *STATE_FLAGS)
_DRAFT_ON_ONE_STAGE = Version(0, 32)
_ARG_UTILS_PY = "vLLM 0.33 engine/arg_utils.py"
_MODEL_PY = "vLLM 0.32 config/model.py"
_SCHEDULER_PY = "vLLM 0.32 config/scheduler.py"
_VLLM_PY = "vLLM 0.32 config/vllm.py"


def check_vllm(deployment: Deployment) -> tuple[Violation, ...]:
    """Every rule that the deployment breaks, but those of partitions, in the order in which a person looks for them."""
    effective = effective_flags(deployment)
    return tuple(Violation(*fault) for rule in _RULES for fault in rule(deployment, effective))


def _flags(deployment: Deployment, _: Effective) -> Faults:
    """Flags that this release lacks, as far as releases were read, and values that none takes."""
    version = parse_version(deployment.version)
    for name, value in command_flags(deployment.flags).items():
        missing = version >= FLAG_RELEASES.span[0] and not FLAG_RELEASES.has([name], version)
        if name in OTHER_NAMES:
            yield "unknown-flag", f"{name}: write it {OTHER_NAMES[name]}, of which it is a second name", _ARG_UTILS_PY
        elif name not in {*VLLM_FLAGS, *REMOVED_FLAGS, *FLAG_RELEASES.runs}:
            yield "unknown-flag", unknown_flag(name, VLLM_FLAGS, f"vLLM {version}"), _ARG_UTILS_PY
        elif missing:
            yield "removed-flag", f"{name}: {_missing(name, version)}", _ARG_UTILS_PY
        elif fault := VLLM_FLAGS[name].fault(value) if name in VLLM_FLAGS else "":
            yield "flag-value", f"{name}: {fault}", _ARG_UTILS_PY


def _missing(name: str, version: Version) -> str:
    when, instead = FLAG_RELEASES.when([name], version), REMOVED_FLAGS.get(name)
    if when.startswith("comes"):
        return f"vLLM {version} does not have it yet; it {when}"
    left = f", it {when}" if when else ""
    return f"vLLM {version} no longer has it{left}{f'; {instead}' if instead else ''}"


def _runner(deployment: Deployment, _: Effective) -> Faults:
    if deployment.runner not in RUNNERS:
        yield "runner", f"runner: {deployment.runner!r} is not one of {', '.join(RUNNERS)}", _VLLM_PY
    elif refusal := choose_regime(deployment).refusal:
        yield "async-pipeline-v1", refusal, f"{_VLLM_PY}, PR 56250"


def _budgets(_: Deployment, effective: Effective) -> Faults:
    tokens, seqs = whole_number(effective, "max_num_batched_tokens", 0), whole_number(effective, "max_num_seqs", 0)
    longest = whole_number(effective, "max_model_len", 0)
    threshold = whole_number(effective, "long_prefill_token_threshold", 0)
    active = whole_number(effective, "max_num_active_seqs", 0)
    if tokens < seqs:
        message = f"max_num_batched_tokens {tokens} must be at least max_num_seqs {seqs}"
        yield "budget-below-seqs", message, _SCHEDULER_PY
    if not effective.get("enable_chunked_prefill", True) and 0 < tokens < longest:
        message = (
            f"max_num_batched_tokens {tokens} must be at least max_model_len {longest} when chunked prefill is off"
        )
        yield "whole-prompt-budget", message, _SCHEDULER_PY
    if threshold > longest > 0:
        message = f"long_prefill_token_threshold {threshold} must not exceed max_model_len {longest}"
        yield "long-prefill-threshold", message, _SCHEDULER_PY
    if active > seqs:
        yield "active-seqs", f"max_num_active_seqs {active} must not exceed max_num_seqs {seqs}", _SCHEDULER_PY


def _contradiction(deployment: Deployment, _: Effective) -> Faults:
    for name, value in layout_flags(deployment.layout).items():
        given = deployment.flags.get(name, value)
        if given != value:
            message = f"{name} {given!r} contradicts the deployment's {value}; leave the flag out"
            yield "parallel-size", message, "partitune"


def _pipeline(deployment: Deployment, effective: Effective) -> Faults:
    architecture, stages = deployment.architecture, deployment.stages
    if stages > len(architecture.layers):
        message = (
            f"{architecture.name} has {len(architecture.layers)} layers for {stages} stages; a stage without layers "
            "crashes in KV planning"
        )
        yield "fewer-layers-than-stages", message, "vLLM 0.33 v1/core/kv_cache_planning.py"
    if stages == 1:
        return
    for name, source in (
        ("enable_return_routed_experts", _VLLM_PY),
        ("enable_elastic_ep", "vLLM 0.32 config/parallel.py"),
        ("enable_hc_sp", _MODEL_PY),
    ):
        if effective.get(name) is True:
            yield "not-with-pipeline", f"{name} is refused with more than one pipeline stage", source
    if effective.get("distributed_executor_backend") == "uni":
        message = f"distributed_executor_backend uni runs one process and cannot hold {stages} stages; use mp or ray"
        yield "executor-backend", message, _ARG_UTILS_PY


def _speculation(deployment: Deployment, effective: Effective) -> Faults:
    version = parse_version(deployment.version)
    if deployment.stages > 1 and draft_method(effective) == "mtp" and version < _DRAFT_ON_ONE_STAGE:
        message = (
            f"speculative decoding with MTP and {deployment.stages} stages needs vLLM {_DRAFT_ON_ONE_STAGE} or later, "
            f"not {version}: earlier releases refuse to start or accept almost no draft"
        )
        yield "mtp-with-pipeline", message, "vLLM issues 52069, 49355; PR 46994; vLLM 0.32 config/speculative.py"


def draft_method(effective: Effective) -> str:
    """The method of speculative decoding; empty without one. `deepseek_mtp` and its like are old names of `mtp`."""
    named = effective.get("spec_method")
    method = named if isinstance(named, str) else str(mapping(effective.get("speculative_config")).get("method", ""))
    return "mtp" if method.endswith("_mtp") else method


def _quantization(deployment: Deployment, _: Effective) -> Faults:
    yield from quantising(deployment).faults(deployment)


def _types_of_cache(deployment: Deployment, effective: Effective) -> Faults:
    if any(VLLM_FLAGS[name].fault(effective[name]) for name in _CACHE_FLAGS if name in effective):
        return  # a typing error, which is told as one
    try:
        layer_cache_bytes(deployment, effective)
    except SpecError as refused:
        yield "kv-cache-dtype", str(refused), "vLLM 0.33 v1/attention/backends"


def _cache_choices(deployment: Deployment, _: Effective) -> Faults:
    if fault := cache_fault(deployment):
        yield "hybrid-cache", fault, "vLLM 0.33 config/vllm.py, v1/core/kv_cache_planning.py"


def _retention(deployment: Deployment, effective: Effective) -> Faults:
    """Checkpoints once in so many tokens: whole blocks, of a model that has any (0.33 kv_cache_coordinator.py)."""
    interval = whole_number(effective, "prefix_cache_retention_interval", 0)
    if interval <= 0 or choose_regime(deployment).refusal:
        return
    try:
        caches = [group.caches[0] for group in group_layers(cache_model(deployment))]
    except PartituneError:  # another rule says why there is no cache
        return
    source = "vLLM 0.33 v1/core/kv_cache_coordinator.py"
    block = lcm(*(cache.block_size for cache in caches))
    if all(cache.kind is Cache.TOKENS for cache in caches):
        message = f"prefix_cache_retention_interval {interval}: the model has neither windows nor states; leave it out"
        yield "retention", message, source
    elif interval % block:
        message = f"prefix_cache_retention_interval {interval} must be a multiple of a block, which has {block} tokens"
        yield "retention", message, source


_RULES = (
    _quantization,
    _types_of_cache,
    _cache_choices,
    _flags,
    _runner,
    _budgets,
    _retention,
    *LAYOUT_RULES,
    _contradiction,
    _pipeline,
    _speculation,
)
