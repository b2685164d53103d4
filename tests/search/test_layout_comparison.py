"""Layouts side by side: each at its own best flags, in an order that the load decides, whatever the file's own is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from partitune.cli import main
from partitune.search import layout_comparison
from partitune.search.layout_comparison import Compared, compare_layouts
from partitune.spec.search_space import SearchSpace

SMALL: dict[str, Any] = {
    "name": "s",
    "model": "qwen3-8b",
    "cluster": {"nodes": 1, "gpus_per_node": 4, "gpu": "L40S"},
    "parallel": {"layouts": "auto"},
    "workload": {"kind": "random", "requests": 32, "prompt_tokens": 512, "output_tokens": 32, "concurrency": 16},
}


def small(**changes: Any) -> SearchSpace:
    return SearchSpace.from_mapping({**SMALL, **changes})


def names(compared: Compared) -> list[str]:
    return [row.layout.name for row in compared.running]


def test_a_pipeline_is_best_where_it_may_have_its_own_flags() -> None:
    """At the file's budget of 8,192 tokens tensor ranks win with 343 tok/s; a pipeline at 2,048 gives 356."""
    compared = compare_layouts(SearchSpace.load("kimi-k3-pp8-tp2-h200"), {})
    best = compared.running[0]
    assert best.layout.name == "tp8-pp2"
    assert best.result.candidate.flags == {"max_num_batched_tokens": 2048}
    assert best.tok_s == pytest.approx(356, abs=1)
    assert compared.advice[0].startswith(
        "a pipeline pays: tp8-pp2 is 4 % better in output_throughput_tok_s than tp8-pp1"
    )
    at_8192 = compare_layouts(SearchSpace.load("kimi-k3-pp8-tp2-h200"), {"max_num_batched_tokens": 8192})
    assert at_8192.running[0].layout.name == "tp8-pp1-dp2"
    assert {row.result.candidate.flags["max_num_batched_tokens"] for row in at_8192.running} == {8192}


def test_flags_of_a_layout_stay_within_the_knobs_of_the_file() -> None:
    budgets = [384, 640]
    compared = compare_layouts(small(knobs={"max_num_batched_tokens": budgets}), {})
    tried = {row.result.candidate.flags.get("max_num_batched_tokens") for row in compared.running}
    assert tried <= {None, *budgets}
    assert tried & {*budgets}


def open_load(**changes: Any) -> Compared:
    """Requests that come at a rate which every layout can serve."""
    load = {"kind": "random", "requests": 40, "prompt_tokens": 512, "output_tokens": 32, "request_rate_req_s": 4.0}
    return compare_layouts(small(workload=load, **changes), {})


def test_where_requests_come_at_their_own_rate_limits_decide_and_not_the_rate() -> None:
    compared = open_load(slo={"ttft_p99_ms": 400, "tpot_p99_ms": 60})
    rates = [row.tok_s for row in compared.running]
    assert max(rates) / min(rates) < 1.2
    missed = [max(row.to_json()["constraints"].values()) for row in compared.running]
    assert missed == sorted(missed)
    assert compared.ranked_by.startswith("the limit that is kept with least to spare")
    assert rates != sorted(rates, reverse=True)


def test_without_limits_the_time_of_a_request_decides() -> None:
    compared = open_load()
    e2e_ms = [row.result.metric("e2e_p99_ms") or 0.0 for row in compared.running]
    assert e2e_ms == sorted(e2e_ms)
    assert compared.ranked_by == "e2e_p99_ms"


def test_a_layout_that_keeps_the_limits_goes_before_a_faster_one_that_does_not() -> None:
    free = compare_layouts(small(), {})
    fastest = free.running[0]
    first_ms = fastest.result.metric("ttft_p50_ms") or 0.0
    sooner_ms = min(row.result.metric("ttft_p50_ms") or 1e9 for row in free.running)
    assert sooner_ms < 0.9 * first_ms
    limited = compare_layouts(small(slo={"ttft_p50_ms": sooner_ms}), {})
    assert limited.running[0].layout != fastest.layout
    kept = [row.result.outcome.value == "ok" for row in limited.running]
    assert kept == sorted(kept, reverse=True)
    assert kept[0]


def test_the_files_own_layout_need_not_be_legal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = SearchSpace.load("qwen3-235b-8xh100-layouts")
    legal = compare_layouts(plain, {"max_num_batched_tokens": 4096})
    text = Path("search_spaces/qwen3-235b-8xh100-layouts.yaml").read_text()
    file = tmp_path / "illegal.yaml"
    file.write_text(text.replace("  tp: 2 ", "  tp: 3 ").replace("  pp: 4\n", "  pp: 3\n"))
    assert main(["explain", str(file)]) == 2
    assert "tp 3 × pp 3 needs 9 GPUs" in capsys.readouterr().err
    assert main(["layouts", str(file), "--set", "max_num_batched_tokens=4096"]) == 0
    assert capsys.readouterr().out.count("tp2-pp1-dp4") >= 1
    illegal = compare_layouts(SearchSpace.load_for_layouts(str(file)), {"max_num_batched_tokens": 4096})
    assert names(illegal) == names(legal)


def test_another_fault_of_the_file_is_still_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("kind: search_space\nname: s\nmodel: qwen3-8b\ncluster: {nodes: 1, gpus_per_node: 4, gpu: L40S}\n"
                    "parallel: {tp: 3, pp: 3}\nbudgte: {}\n")  # fmt: skip
    assert main(["layouts", str(file)]) == 2
    assert "s.yaml:6: budgte" in capsys.readouterr().err


def test_nothing_is_concluded_of_a_pipeline_whose_flags_were_not_all_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_comparison, "BUDGET_S", 0.0)
    verdict = compare_layouts(small(), {}).advice[0]
    assert not verdict.startswith("no verdict")  # the best with and the best without have a budget of their own
    monkeypatch.setattr(layout_comparison, "BUDGET_OF_BEST_S", 0.0)
    untried = compare_layouts(small(), {})
    assert re.match(r"no verdict on pipelines: \d+ changes of tp\d-pp\d.* were not tried; so far ", untried.advice[0])
    assert "wrong tool" not in " ".join(untried.advice)


def test_what_all_layouts_have_in_common_is_said_of_those_that_ran() -> None:
    listed = compare_layouts(small(parallel={"layouts": [{"tp": 1, "pp": 4}, {"tp": 2, "pp": 2}]}), {})
    assert listed.advice[0] == "every one of the layouts that run has a pipeline"
    alone = compare_layouts(small(cluster={"nodes": 1, "gpus_per_node": 1, "gpu": "L40S"}), {})
    assert alone.advice[0] == "none of the layouts that run has a pipeline"
