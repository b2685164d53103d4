"""vLLM: regimes by version, defaults, spelling and refusals. Values come from vLLM 0.32/0.33 sources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.rules import refused
from partitune.engines.vllm.engine import Vllm
from partitune.engines.vllm.pipelining import Regime, regime
from partitune.errors import OutOfMemory, SpecError
from partitune.hardware.generations import Generation
from partitune.hardware.gpus import Gpu
from partitune.hardware.parallelism import Layout
from partitune.models.architecture import Architecture
from partitune.planning.planner import allowed_windows, stage_bounds
from partitune.planning.solver import pareto_front, stage_tensor
from tests.small_models import H200, architecture, kimi_k3

VLLM = Vllm()
GIB = 1 << 30


def deployment(*, stages: int = 8, tp: int = 2, **changes: Any) -> Deployment:
    base = Deployment(version="0.33.0", architecture=kimi_k3(), layout=Layout(tp=tp, pp=stages), gpu=H200)
    return replace(base, **changes)


QWEN3 = architecture("f" * 64, model_class="Qwen3ForCausalLM")
LLAMA = architecture("f" * 80)
MOE = architecture("f" * 94, model_class="Qwen3MoeForCausalLM", moe=True)


@pytest.mark.parametrize(
    ("version", "runner", "flag", "model", "expected", "slots"),
    [
        # V1: async by default up to 0.30, switched off silently from 0.31 on.
        ("0.19.1", "auto", None, kimi_k3(), Regime.ASYNC_V1, 8),
        ("0.30.0", "v1", None, kimi_k3(), Regime.ASYNC_V1, 8),
        ("0.30.0", "v1", True, kimi_k3(), Regime.ASYNC_V1, 8),
        ("0.30.0", "v1", False, kimi_k3(), Regime.SYNC_V1, 8),
        ("0.31.0", "v1", None, kimi_k3(), Regime.SYNC_V1, 8),
        ("0.33.0", "v1", False, kimi_k3(), Regime.SYNC_V1, 8),
        # V2: side stream since 0.24, default of every model since 0.30.
        ("0.33.0", "auto", None, kimi_k3(), Regime.ASYNC_V2, 9),
        ("0.33.0", "auto", True, kimi_k3(), Regime.ASYNC_V2, 9),
        ("0.33.0", "auto", False, kimi_k3(), Regime.SYNC_V2, 8),
        ("0.34.0", "auto", None, kimi_k3(), Regime.ASYNC_V2, 9),
        ("0.24.0", "v2", None, MOE, Regime.ASYNC_V2, 9),
        ("0.22.1", "v2", None, MOE, Regime.ASYNC_V1, 8),
        ("0.22.1", "v2", False, MOE, Regime.SYNC_V1, 8),
        # Which models start on V2 by themselves.
        ("0.27.1", "auto", None, kimi_k3(), Regime.ASYNC_V2, 9),
        ("0.27.0", "auto", None, kimi_k3(), Regime.ASYNC_V1, 8),
        ("0.26.1rc1", "auto", None, kimi_k3(), Regime.ASYNC_V1, 8),
        ("0.28.0", "auto", None, MOE, Regime.ASYNC_V1, 8),
        ("0.30.0", "auto", None, MOE, Regime.ASYNC_V2, 9),
        ("0.26.0", "auto", None, QWEN3, Regime.ASYNC_V2, 9),
        ("0.24.0", "auto", None, LLAMA, Regime.ASYNC_V2, 9),
        ("0.22.1", "auto", None, LLAMA, Regime.ASYNC_V1, 8),
    ],
)
def test_regimes(
    version: str, runner: str, flag: bool | None, model: Architecture, expected: Regime, slots: int
) -> None:
    flags: dict[str, FlagValue] = {} if flag is None else {"async_scheduling": flag}
    start = deployment(version=version, runner=runner, flags=flags, architecture=model)
    chosen = regime(start).regime
    assert (chosen, chosen.queue_slots(start.stages)) == (expected, slots)


def test_silent_switch_off_is_a_note_and_the_explicit_flag_is_refused() -> None:
    quiet = deployment(version="0.31.0", runner="v1")
    assert any("switched off silently" in note for note in regime(quiet).notes)
    loud = replace(quiet, flags={"async_scheduling": True})
    with pytest.raises(SpecError, match="async_scheduling: true with the V1 model runner and 8 stages is refused"):
        regime(loud)
    assert [one.rule for one in VLLM.check(loud)] == ["async-pipeline-v1"]
    alone = regime(replace(loud, layout=Layout(tp=2))).regime
    assert (alone, alone.queue_slots(1)) == (Regime.ASYNC_V1, 2)


@pytest.mark.parametrize(
    ("gpu", "gib", "tokens", "seqs"),
    [
        ("B300", 268, 16384, 1024),
        ("B200", 178, 16384, 1024),
        ("H200", 139, 8192, 1024),
        ("H100", 79, 8192, 1024),
        ("A100-80GB", 79, 2048, 256),
        ("NVIDIA GB10", 120, 2048, 256),
        ("L4", 22, 2048, 256),
    ],
)
def test_default_budget(gpu: str, gib: int, tokens: int, seqs: int) -> None:
    card = Gpu(gpu, gib * GIB, 1.0, 1.0, 1.0, 1.0, "test", Generation.HOPPER)
    flags = VLLM.default_flags(deployment(gpu=card))
    assert (flags["max_num_batched_tokens"], flags["max_num_seqs"]) == (tokens, seqs)


@pytest.mark.parametrize(
    ("given", "tokens", "seqs"),
    [
        ({"performance_mode": "throughput"}, 16384, 2048),
        ({"max_num_seqs": 2, "max_model_len": 1000}, 2000, 2),
        ({"max_num_batched_tokens": 512}, 512, 512),
        ({"enable_chunked_prefill": False, "max_model_len": 100_000}, 100_000, 1024),
    ],
)
def test_one_default_caps_another(given: dict[str, FlagValue], tokens: int, seqs: int) -> None:
    flags = VLLM.effective_flags(deployment(flags=given))
    assert (flags["max_num_batched_tokens"], flags["max_num_seqs"]) == (tokens, seqs)
    assert VLLM.check(deployment(flags=given)) == ()


def test_state_layers_are_cached_at_block_ends_unless_prefix_caching_is_off() -> None:
    assert VLLM.effective_flags(deployment())["mamba_cache_mode"] == "align"
    assert VLLM.effective_flags(deployment(flags={"enable_prefix_caching": False}))["mamba_cache_mode"] == "none"


def test_command_line() -> None:
    flags: dict[str, FlagValue] = {
        "max_num_batched_tokens": 512,
        "async_scheduling": False,
        "enable_prefix_caching": True,
        "max_model_len": -1,
        "disable_log_stats": False,
        "gpu_memory_utilization": 0.9,
        "VLLM_HOST_IP": "10.0.0.1",
    }
    assert VLLM.launch.serve_arguments("K3", deployment(flags=flags)) == (
        "vllm", "serve", "K3", "--pipeline-parallel-size", "8", "--tensor-parallel-size", "2",
        "--max-num-batched-tokens", "512", "--no-async-scheduling", "--enable-prefix-caching", "--max-model-len=-1",
        "--gpu-memory-utilization", "0.9",
    )  # fmt: skip


def test_config_file_never_says_false() -> None:
    # vLLM 0.32 and 0.33 drop `async-scheduling: false` silently (run).
    flags: dict[str, FlagValue] = {
        "async_scheduling": False,
        "enable_prefix_caching": False,
        "max_num_seqs": 32,
        "headless": False,
    }
    config = VLLM.launch.config_yaml(deployment(flags=flags))
    assert config == {
        "pipeline-parallel-size": 8,
        "tensor-parallel-size": 2,
        "no-async-scheduling": True,
        "no-enable-prefix-caching": True,
        "max-num-seqs": 32,
    }
    read = VLLM.launch.read_config(yaml.safe_load(yaml.safe_dump(dict(config))))
    assert {name: read[name] for name in flags if name != "headless"} == {
        k: v for k, v in flags.items() if k != "headless"
    }
    assert VLLM.launch.read_config({"async-scheduling": False}) == {}


def test_environment() -> None:
    assert VLLM.launch.environment(deployment()) == {}
    chosen = deployment(
        partition=(12, 12, 12, 12, 12, 12, 12, 9), runner="v1", flags={"VLLM_X": True, "max_num_seqs": 3}
    )
    assert VLLM.launch.environment(chosen) == {
        "VLLM_PP_LAYER_PARTITION": "12,12,12,12,12,12,12,9",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_X": "1",
    }


@pytest.mark.parametrize(
    ("flags", "rule", "message"),
    [
        ({"max_num_batch_tokens": 512}, "unknown-flag", "did you mean max_num_batched_tokens?"),
        ({"max-num-seqs": 512}, "unknown-flag", "write it max_num_seqs"),
        ({"--max-num-seqs": 512}, "unknown-flag", "write it max_num_seqs"),
        ({"no_async_scheduling": True}, "unknown-flag", "write async_scheduling: false"),
        ({"zzz": 1}, "unknown-flag", "zzz: vLLM 0.33.0 has no such flag"),
        ({"max_num_partial_prefills": 4}, "removed-flag", "no longer has it, it left by 0.27.1; prompts are chunked"),
        ({"num_scheduler_steps": 4}, "removed-flag", "no longer has it; multi-step scheduling is gone"),
        ({"device_memory_utilization": 0.9}, "unknown-flag", "write it gpu_memory_utilization"),
        ({"async_scheduling": 1}, "flag-value", "1 is not true or false"),
        ({"max_num_seqs": True}, "flag-value", "True is not an integer"),
        ({"max_num_seqs": "64"}, "flag-value", "'64' is not an integer"),
        ({"max_num_seqs": 0}, "flag-value", "allowed is >= 1"),
        ({"gpu_memory_utilization": 0.0}, "flag-value", "allowed is > 0 and <= 1"),
        ({"gpu_memory_utilization": 1.5}, "flag-value", "allowed is > 0 and <= 1"),
        ({"gpu_memory_utilization": float("nan")}, "flag-value", "out of range"),
        ({"watermark": 1.0}, "flag-value", "allowed is >= 0 and < 1"),
        ({"kv_cache_dtype": "fp8e4m3"}, "flag-value", "did you mean fp8_e4m3?"),
        (
            {"max_num_batched_tokens": 64, "max_num_seqs": 128},
            "budget-below-seqs",
            "64 must be at least max_num_seqs 128",
        ),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096, "max_model_len": 8192},
            "whole-prompt-budget",
            "4096",
        ),
        ({"long_prefill_token_threshold": 9000, "max_model_len": 8192}, "long-prefill-threshold", "must not exceed"),
        ({"max_num_active_seqs": 64, "max_num_seqs": 32}, "active-seqs", "must not exceed"),
        ({"prefix_cache_retention_interval": 64}, "retention", "must be a multiple of a block, which has"),
        ({"enable_return_routed_experts": True}, "not-with-pipeline", "enable_return_routed_experts"),
        ({"distributed_executor_backend": "uni"}, "executor-backend", "use mp or ray"),
        ({"pipeline_parallel_size": 4}, "parallel-size", "contradicts"),
    ],
)
def test_one_broken_rule(flags: dict[str, FlagValue], rule: str, message: str) -> None:
    violations = VLLM.check(deployment(flags=flags))
    assert [one.rule for one in violations] == [rule]
    assert message in violations[0].message
    assert violations[0].source


def test_checkpoints_are_kept_at_whole_blocks_of_windows_and_states() -> None:
    states = deployment()
    block = VLLM.kv_cache(states, (12,) * 7 + (9,), [60 * GIB] * 8).block_size
    assert VLLM.check(replace(states, flags={"prefix_cache_retention_interval": 2 * block})) == ()
    dense = deployment(architecture=QWEN3, flags={"prefix_cache_retention_interval": 2 * block})
    (broken,) = VLLM.check(dense)
    assert "has neither windows nor states; leave it out" in broken.message


@pytest.mark.parametrize(
    ("changes", "rule", "message"),
    [
        ({"tp": 7}, "heads-over-tp", "7 does not divide 96 attention heads"),  # field report 36
        ({"architecture": architecture("fffff")}, "fewer-layers-than-stages", "5 layers for 8 stages"),
        ({"architecture": architecture("f" * 32, model_class="Gemma3nForCausalLM")}, "no-pipeline-support", "Gemma3n"),
        ({"partition": (93,)}, "partition", "1 entries for 8 stages"),
        ({"partition": (3, 13, 13, 13, 13, 13, 13, 12)}, "partition", "no layer with KV per token"),
        ({"runner": "V1"}, "runner", "'V1' is not one of auto, v1, v2"),
        # field report 20 (vllm issue 52069)
        (
            {"stages": 4, "architecture": LLAMA, "version": "0.26.1rc", "flags": {"spec_method": "mtp"}},
            "mtp-with-pipeline",
            "needs vLLM 0.32",
        ),
        (
            {
                "stages": 4,
                "architecture": LLAMA,
                "version": "0.26.1rc",
                "flags": {"speculative_config": '{"method": "mtp"}'},
            },
            "mtp-with-pipeline",
            "not 0.26.1",
        ),
    ],
)
def test_one_broken_rule_of_shape(changes: dict[str, Any], rule: str, message: str) -> None:
    violations = VLLM.check(deployment(**changes))
    assert [one.rule for one in violations] == [rule]
    assert message in violations[0].message


def test_all_violations_come_at_once() -> None:
    broken = deployment(
        tp=7,
        flags={"max_num_seq": 8, "max_num_seqs": 100, "max_num_batched_tokens": 10},
        partition=(90, 1, 1, 1, 1, 1, 1, 1),
    )
    rules = [one.rule for one in VLLM.check(broken)]
    assert rules[:3] == ["unknown-flag", "budget-below-seqs", "heads-over-tp"]
    assert rules[3:].count("partition") >= 2
    everything = str(refused(VLLM.check(broken)))
    assert [one.message for one in VLLM.check(broken) if f"{one.message} [{one.source}]" not in everything] == []


def test_removed_flags_are_legal_on_old_releases_and_mtp_on_new_ones() -> None:
    assert VLLM.check(deployment(architecture=LLAMA, version="0.19.1", flags={"max_num_partial_prefills": 2})) == ()
    assert VLLM.check(deployment(version="0.33.0", flags={"spec_method": "mtp", "spec_tokens": 3})) == ()


def test_kv_cache_of_a_deployment() -> None:
    k3 = deployment(flags={"max_model_len": 32768})
    cache = VLLM.kv_cache(k3, (12,) * 7 + (9,), [20 * GIB] * 8)
    default = VLLM.kv_cache(k3, (11, 11, 12, 12, 12, 12, 12, 11), [20 * GIB] * 8)
    assert cache.num_blocks / default.num_blocks == pytest.approx(6068 / 4551, rel=1e-3)
    assert default.limiting_stage == 7
    with pytest.raises(OutOfMemory, match="1048576 tokens"):
        VLLM.kv_cache(deployment(), (12,) * 7 + (9,), [GIB] * 8)


def test_solver_finds_the_split_with_a_third_more_cache() -> None:
    k3 = deployment(flags={"max_model_len": 32768})
    windows = allowed_windows(k3.architecture, VLLM.cut_limits(k3.architecture, "0.33.0"), stage_bounds(8, 93))
    times = np.where(windows, stage_tensor(np.ones((8, 93)), np.zeros(8)), np.inf)
    blocks = VLLM.kv_blocks(k3, np.full(times.shape, 20.0 * GIB))
    fastest = pareto_front(times, blocks)[0]
    assert fastest.bottleneck_s == 12.0
    assert fastest.capacity == VLLM.kv_cache(k3, fastest.partition, [20 * GIB] * 8).num_blocks
    assert fastest.capacity == VLLM.kv_cache(k3, (12,) * 7 + (9,), [20 * GIB] * 8).num_blocks


def test_fewest_blocks_is_where_the_engine_begins_to_start() -> None:
    k3 = deployment(flags={"max_model_len": 32768})
    fewest = VLLM.fewest_kv_blocks(k3)
    partition = (12,) * 7 + (9,)
    block_bytes = VLLM.kv_cache(k3, partition, [20 * GIB] * 8).stage_block_bytes[0]
    assert VLLM.kv_cache(k3, partition, [fewest * block_bytes] * 8).num_blocks == fewest
    with pytest.raises(OutOfMemory):
        VLLM.kv_cache(k3, partition, [fewest * block_bytes - 1] * 8)
