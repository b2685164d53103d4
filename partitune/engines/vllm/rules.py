"""What vLLM refuses, found before the launch instead of minutes after it.

Decision: one function per rule, all of them always run, each violation with its source. A rule is here only when the
engine's code or a report says so; a warning of the engine is not a violation.

Source: vLLM 0.32.0 `config/scheduler.py` (verify_max_model_len), `config/model.py` (verify_with_parallel_config),
`config/vllm.py`, `config/parallel.py`, `config/speculative.py`; 0.33.0 is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment, command_flags
from partitune.engines.flags import mapping, unknown_flag, whole_number
from partitune.engines.rules import Violation, partition_faults
from partitune.engines.versions import Version, parse_version
from partitune.engines.vllm.defaults import effective_flags
from partitune.engines.vllm.flags import REMOVED_FLAGS, VLLM_FLAGS
from partitune.engines.vllm.model_runner import RUNNERS, choose_regime
from partitune.engines.vllm.models import NO_PIPELINE
from partitune.engines.vllm.parallel_rules import check_layout, layout_flags

_FLAGS_READ = Version(0, 32)
_DRAFT_ON_ONE_STAGE = Version(0, 32)
_MODEL_PY = "vLLM 0.32 config/model.py"
_SCHEDULER_PY = "vLLM 0.32 config/scheduler.py"
_VLLM_PY = "vLLM 0.32 config/vllm.py"

Effective = Mapping[str, FlagValue]


def check_vllm(deployment: Deployment) -> tuple[Violation, ...]:
    """Every rule that the deployment breaks."""
    effective = effective_flags(deployment)
    return tuple(broken for rule in _RULES for broken in rule(deployment, effective))


def _flags(deployment: Deployment, _: Effective) -> Iterator[Violation]:
    source = "vLLM 0.32 engine/arg_utils.py"
    version = parse_version(deployment.version)
    for name, value in command_flags(deployment.flags).items():
        if name in VLLM_FLAGS:
            fault = VLLM_FLAGS[name].fault(value)
            if fault:
                yield Violation("flag-value", f"{name}: {fault}", source)
        elif name in REMOVED_FLAGS:
            if version >= _FLAGS_READ:
                yield Violation(
                    "removed-flag", f"{name}: vLLM {version} no longer has it; {REMOVED_FLAGS[name]}", source
                )
        else:
            yield Violation("unknown-flag", unknown_flag(name, VLLM_FLAGS, f"vLLM {version}"), source)


def _runner(deployment: Deployment, _: Effective) -> Iterator[Violation]:
    if deployment.runner not in RUNNERS:
        yield Violation("runner", f"runner: {deployment.runner!r} is not one of {', '.join(RUNNERS)}", _VLLM_PY)
        return
    if refusal := choose_regime(deployment).refusal:
        yield Violation("async-pipeline-v1", refusal, f"{_VLLM_PY}, PR 56250")


def _budgets(_: Deployment, effective: Effective) -> Iterator[Violation]:
    tokens, seqs = whole_number(effective, "max_num_batched_tokens", 0), whole_number(effective, "max_num_seqs", 0)
    longest = whole_number(effective, "max_model_len", 0)
    if tokens < seqs:
        yield Violation(
            "budget-below-seqs", f"max_num_batched_tokens {tokens} must be at least max_num_seqs {seqs}", _SCHEDULER_PY
        )
    if not effective.get("enable_chunked_prefill", True) and 0 < tokens < longest:
        yield Violation(
            "whole-prompt-budget",
            f"max_num_batched_tokens {tokens} must be at least max_model_len {longest} when chunked prefill is off",
            _SCHEDULER_PY,
        )
    threshold = whole_number(effective, "long_prefill_token_threshold", 0)
    if threshold > longest > 0:
        yield Violation(
            "long-prefill-threshold",
            f"long_prefill_token_threshold {threshold} must not exceed max_model_len {longest}",
            _SCHEDULER_PY,
        )
    active = whole_number(effective, "max_num_active_seqs", 0)
    if active > seqs:
        yield Violation(
            "active-seqs", f"max_num_active_seqs {active} must not exceed max_num_seqs {seqs}", _SCHEDULER_PY
        )


def _said_twice(deployment: Deployment, _: Effective) -> Iterator[Violation]:
    for name, value in layout_flags(deployment.layout).items():
        given = deployment.flags.get(name, value)
        if given != value:
            message = f"{name} {given!r} contradicts the deployment's {value}; leave the flag out"
            yield Violation("parallel-size", message, "partitune")


def _pipeline(deployment: Deployment, effective: Effective) -> Iterator[Violation]:
    architecture, stages = deployment.architecture, deployment.stages
    if stages > len(architecture.layers):
        yield Violation(
            "fewer-layers-than-stages",
            f"{architecture.name} has {len(architecture.layers)} layers for {stages} stages; a stage without layers "
            "crashes in KV planning",
            "vLLM 0.33 v1/core/kv_cache_planning.py",
        )
    if stages == 1:
        return
    if architecture.architecture in NO_PIPELINE:
        yield Violation(
            "no-pipeline-support", f"{architecture.architecture} has no pipeline parallelism in vLLM", _MODEL_PY
        )
    for name, source in (
        ("enable_return_routed_experts", _VLLM_PY),
        ("enable_elastic_ep", "vLLM 0.32 config/parallel.py"),
        ("enable_hc_sp", _MODEL_PY),
    ):
        if effective.get(name) is True:
            yield Violation("not-with-pipeline", f"{name} is refused with more than one pipeline stage", source)
    if effective.get("distributed_executor_backend") == "uni":
        yield Violation(
            "executor-backend",
            f"distributed_executor_backend uni runs one process and cannot hold {stages} stages; use mp or ray",
            "vLLM 0.32 engine/arg_utils.py",
        )


def _speculation(deployment: Deployment, effective: Effective) -> Iterator[Violation]:
    version = parse_version(deployment.version)
    if deployment.stages > 1 and draft_method(effective) == "mtp" and version < _DRAFT_ON_ONE_STAGE:
        yield Violation(
            "mtp-with-pipeline",
            f"speculative decoding with MTP and {deployment.stages} stages needs vLLM {_DRAFT_ON_ONE_STAGE} or later, "
            f"not {version}: earlier releases refuse to start or accept almost no draft",
            "vLLM issues 52069, 49355; PR 46994; vLLM 0.32 config/speculative.py",
        )


def _partition(deployment: Deployment, _: Effective) -> Iterator[Violation]:
    return partition_faults(deployment, "vLLM 0.32 distributed/utils.py, v1/core/kv_cache_utils.py")


def draft_method(effective: Effective) -> str:
    """The method of speculative decoding; empty without one. `deepseek_mtp` and its like are old names of `mtp`."""
    named = effective.get("spec_method")
    method = named if isinstance(named, str) else str(mapping(effective.get("speculative_config")).get("method", ""))
    return "mtp" if method.endswith("_mtp") else method


_RULES: tuple[Callable[[Deployment, Effective], Iterator[Violation]], ...] = (
    _flags,
    _runner,
    _budgets,
    check_layout,
    _said_twice,
    _pipeline,
    _speculation,
    _partition,
)
