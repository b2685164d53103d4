"""The kernels that a figure assumes are named, and are those that its times were taken with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partitune import load_study
from partitune.analysis.explanation import candidate_of, explain
from partitune.cli import main
from partitune.costs.cost_model import prefill
from partitune.costs.fitted import fits
from partitune.spec.search_space import SearchSpace
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


@pytest.mark.parametrize(
    ("space", "flag", "value", "kernel", "told"),
    [
        ("kimi-k3-pp8-tp2-sglang", "moe_runner_backend", "marlin", "w4a16_marlin", False),
        ("kimi-k3-pp8-tp2-sglang", "moe_runner_backend", "flashinfer_mxfp4", "w4a8_mxfp4_mxfp8", False),
        ("kimi-k3-pp8-tp2-sglang", "moe_runner_backend", "triton", "w4a8_mxfp4_mxfp8", True),
        ("kimi-k3-pp8-tp2", "moe_backend", "marlin", "w4a16_marlin", False),
        ("kimi-k3-pp8-tp2", "moe_backend", "flashinfer_trtllm_afp8", "w4a8_mxfp4_mxfp8", False),
        ("kimi-k3-pp8-tp2-h200", "moe_backend", "flashinfer_trtllm_afp8", "w4a16_marlin", True),
        ("kimi-k3-pp8-tp2", "moe_backend", "flashinfer_trtllm", "w4a16_marlin", True),
        ("deepseek-v3-pp4-tp8", "moe_backend", "marlin", "fp8_block", True),
    ],
)
def test_a_flag_chooses_the_kernel_of_experts_or_is_told_to_have_no_times(
    space: str, flag: str, value: str, kernel: str, told: bool
) -> None:
    problem = shipped_problem(space)
    explained = explain(problem, candidate_of(problem, None, {flag: value}))
    assert explained.to_json()["kernels"]["experts"] == kernel
    assert (flag in explained.caveats.not_modelled) == told


def test_marlin_takes_three_times_as_long_as_eight_bit_activations() -> None:
    """A Kimi-K3 expert block of 2,048 tokens at TP2 on B300: 7.9 ms against 2.2 (kernel tables of SGLang 0.5.14)."""
    problem = shipped_problem("kimi-k3-pp8-tp2-sglang")
    fast, slow = (problem.served({"moe_runner_backend": name}) for name in ("flashinfer_mxfp4", "marlin"))
    ms = [1e3 * float(it.costs.layer_s(1, prefill(2048))[20]) for it in (fast, slow)]
    assert ms[1] - ms[0] == pytest.approx(7.9 - 2.2, rel=0.15)


def test_a_search_over_kernels_that_have_times_is_no_tie(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = SearchSpace.load("kimi-k3-pp8-tp2-sglang").resolved()
    knobs = {"moe_runner_backend": ["flashinfer_mxfp4", "marlin"]}
    (tmp_path / "s.yaml").write_text(json.dumps({**spec, "knobs": knobs, "seeds": []}))
    where = ("--pool", "local", "--quiet", "--json", "--db", str(tmp_path / "r.db"))
    assert main(["search", str(tmp_path / "s.yaml"), "--trials", "8", *where]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["best"]["knobs"].get("moe_runner_backend", "auto") != "marlin"
    assert answer["not_modelled"] == []
    rows = load_study("kimi-k3-pp8-tp2-sglang", tmp_path / "r.db")
    rates = {row["moe_runner_backend"]: row["output_throughput_tok_s"] for row in rows if row["outcome"] == "ok"}
    assert rates["marlin"] < 0.7 * rates["flashinfer_mxfp4"]
