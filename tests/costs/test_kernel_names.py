"""The kernels that a figure assumes are named, and are those that its times were taken with."""

from __future__ import annotations

import json

import pytest

from partitune.cli import main
from partitune.costs.cost_model import prefill
from partitune.costs.fitted import fits
from tests.builders import shipped_problem


@pytest.mark.parametrize(
    ("space", "named"),
    [
        ("kimi-k3-pp8-tp2-sglang", {"experts": "w4a8_mxfp4_mxfp8", "all-reduce": "the engine's own"}),
        ("kimi-k3-pp8-tp2-h200", {"experts": "w4a16_marlin"}),
        ("deepseek-v3-pp4-tp8", {"experts": "fp8_block", "attention": "mla whole block of vllm 0.24.0"}),
        ("llama-70b-pp4", {"attention": "full back end of vllm 0.24.0"}),
    ],
)
def test_kernels_are_named(space: str, named: dict[str, str]) -> None:
    kernels = shipped_problem(space).costs.kernels
    assert {work: kernels[work] for work in named} == named
    assert ("experts" in kernels) == ("experts" in named)
    if "experts" in kernels:
        assert f"moe/{kernels['experts']}" in fits()  # it has a curve of its own


def test_all_reduces_over_nccl_are_named_and_take_their_own_time() -> None:
    own, nccl = (shipped_problem("kimi-k3-pp8-tp2", parallel__all_reduce_backend=way) for way in ("custom", "nccl"))
    assert (own.costs.kernels["all-reduce"], nccl.costs.kernels["all-reduce"]) == ("the engine's own", "NCCL")
    batch, partition = prefill(2048), own.default_partition
    before, after = (sum(it.costs.stage_costs(partition).compute_s(batch)) for it in (own, nccl))
    assert before != after


def test_an_explanation_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "kimi-k3-pp8-tp2-sglang", "--no-advice"]) == 0
    assert "kernels assumed: experts: w4a8_mxfp4_mxfp8; attention: kda causal_conv1d_fn_qkv3" in capsys.readouterr().out
    assert main(["explain", "kimi-k3-pp8-tp2-sglang", "--no-advice", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"]["experts"] == "w4a8_mxfp4_mxfp8"
