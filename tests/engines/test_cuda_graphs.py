"""How many CUDA graphs a stage's memory counts: those that the engine captures, by its own rule."""

from __future__ import annotations

import pytest

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.registry import engine
from partitune.engines.vllm.scheduler.settings import vllm_settings
from partitune.errors import SpecError
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Layout
from partitune.models.reader import load_architecture

VLLM, SGLANG = engine("vllm"), engine("sglang")
QWEN = load_architecture("qwen3-8b")


@pytest.mark.parametrize(
    ("card", "flags", "count"),
    [
        ("H200", {}, 51),
        ("B200", {}, 83),
        ("H200", {"max_num_seqs": 100}, 29),  # 100 itself is captured
        ("H200", {"max_cudagraph_capture_size": 64}, 11),
        ("H200", {"cudagraph_capture_sizes": "[1,2,4,8]"}, 4),
        ("H200", {"performance_mode": "interactivity"}, 76),
        ("H200", {"enforce_eager": True}, 0),
    ],
)
def test_memory_counts_what_vllm_s_scheduler_pads_to(card: str, flags: dict[str, FlagValue], count: int) -> None:
    deployment = Deployment("0.33.0", QWEN, Layout(), gpu(card), flags)
    cache = VLLM.kv_cache(deployment, (36,), [40 << 30])
    assert len(vllm_settings(deployment, cache).capture_sizes) == count
    assert VLLM.memory_settings(deployment).graph_sizes == count


@pytest.mark.parametrize(
    ("card", "layout", "flags", "count"),
    [
        # 1, 2, 4, 8, 12, every 8 to 256, every 16 to 496, every 32 from 512 on
        ("B200", Layout(), {}, 52),
        ("H200", Layout(), {}, 36),  # up to 256 on fewer than four ranks
        ("H200", Layout(tp=4), {}, 52),
        ("A100-40GB", Layout(), {}, 8),  # up to 32
        ("H200", Layout(), {"max_running_requests": 20}, 7),  # 20 itself is captured
        ("H200", Layout(), {"cuda_graph_max_bs_decode": 64}, 12),
        ("H200", Layout(), {"cuda_graph_bs_decode": "1 2 4"}, 3),
        ("H200", Layout(), {"disable_cuda_graph_padding": True}, 256),
        ("H200", Layout(), {"speculative_algorithm": "EAGLE"}, 51),
        ("H200", Layout(), {"disable_cuda_graph": True}, 0),
        ("H200", Layout(), {"disable_cuda_graph": True, "cuda_graph_backend_decode": "full"}, 36),
        ("H200", Layout(), {"disaggregation_mode": "prefill"}, 0),
    ],
)
def test_sglang_has_a_rule_of_its_own(card: str, layout: Layout, flags: dict[str, FlagValue], count: int) -> None:
    assert SGLANG.memory_settings(Deployment("0.5.23", QWEN, layout, gpu(card), flags)).graph_sizes == count


def test_ranks_that_gather_tokens_capture_multiples_of_the_tensor_ranks() -> None:
    experts = Deployment("0.5.23", load_architecture("deepseek-v3"), Layout(tp=4, dp=2), gpu("H200"))
    assert SGLANG.memory_settings(experts).graph_sizes == 50  # without 1 and 2


def test_sglang_reserves_memory_by_the_largest_graph_unless_there_are_none() -> None:
    def reserved(flags: dict[str, FlagValue]) -> float:
        share = SGLANG.default_flags(Deployment("0.5.23", QWEN, Layout(), gpu("L40S"), flags))["mem_fraction_static"]
        return gpu("L40S").memory_bytes / 2**20 * (1 - float(share))

    # 2 MiB a request (`memory_hook.py` reserve_for_graph_mb); shares are rounded to three digits
    assert reserved({}) - reserved({"disable_cuda_graph": True}) == pytest.approx(64, abs=50)
    assert reserved({"cuda_graph_max_bs_decode": 1024}) - reserved({}) == pytest.approx(2 * (1024 - 32), abs=50)


@pytest.mark.parametrize("value", ["few", "0.5", "1,0", "[]", "-1", "9" * 5000])
@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_list_that_is_none(name: str, value: str) -> None:
    flag = {"vllm": "cudagraph_capture_sizes", "sglang": "cuda_graph_bs_decode"}[name]
    version = {"vllm": "0.33.0", "sglang": "0.5.23"}[name]
    deployment = Deployment(version, QWEN, Layout(), gpu("H200"), {flag: value})
    with pytest.raises(SpecError, match=f"{flag}: '.* is not a list of whole numbers of 1 or more"):
        engine(name).memory_settings(deployment)
    # Asked of the flag, so that a search space is refused before its third trial ends a search.
    assert "flag-value" in [rule.rule for rule in engine(name).check(deployment)]
    fine = Deployment(version, QWEN, Layout(), gpu("H200"), {flag: "[1, 2 4]"})
    assert "flag-value" not in [rule.rule for rule in engine(name).check(fine)]
