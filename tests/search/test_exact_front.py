"""`partitune solve`: the front beside the engine's default, against what the parts say one by one."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest

from partitune.candidate import Candidate, FlagValue
from partitune.cli import main
from partitune.errors import SpecError
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.planning.resolve import resolve
from partitune.search.exact_front import Solved, solve
from partitune.search.space import Space
from partitune.spec.search_space import SearchSpace

MIXED = {
    "name": "mixed",
    "kind": "search_space",
    "model": "qwen3-8b",
    "parallel": {"tp": 1, "pp": 4},
    "workload": {"kind": "random", "requests": 32, "prompt_tokens": 256, "output_tokens": 64, "concurrency": 32},
}


def space(cluster: dict[str, Any], **changes: Any) -> SearchSpace:
    return SearchSpace.from_mapping({**MIXED, "cluster": cluster, **changes}, source="test")


def names(solved: Solved) -> dict[str, tuple[int, ...]]:
    return {name: row.partition for row in solved.rows for name in row.names}


def test_kimi_k3_has_the_default_the_fastest_and_the_kv_richest() -> None:
    solved = solve(SearchSpace.load("kimi-k3-pp8-tp2"), {})
    found = names(solved)
    assert solved.rows[0].partition == found["default"] == (11, 11, 12, 12, 12, 12, 12, 11)
    # Facts of the study: the default's last stage holds four attention layers, 12 x 7, 9 holds three everywhere; a
    # third more tokens at equal free memory, less where another stage has less memory over.
    assert found["most KV"] == (12, 12, 12, 12, 12, 12, 12, 9)
    tokens = {row.names: row.kv_tokens or 0 for row in solved.rows}
    assert 1.25 < tokens["most KV",] / tokens["default",] < 4 / 3
    on_front = [row for row in solved.rows if "default" not in row.names]
    assert [row.slowest_s for row in on_front] == sorted(row.slowest_s for row in on_front)
    assert [row.kv_tokens or 0 for row in on_front] == sorted(row.kv_tokens or 0 for row in on_front)
    assert all(row.slowest_s > solved.fluid_s for row in solved.rows)
    assert solved.rows[0].slowest_s > on_front[0].slowest_s
    assert solved.in_flight == 1


@pytest.mark.parametrize("name", ["kimi-k3-pp8-tp2-h200", "llama-70b-pp4", "kimi-k3-pp8-tp2-sglang"])
def test_rows_say_what_the_simulator_would(name: str) -> None:
    spec = SearchSpace.load(name)
    driver = SimulatorDriver(resolve(spec))
    for row in solve(spec, {}).rows:
        assert not row.reasons
        assert driver.measure(Candidate(row.partition)).kv_tokens == row.kv_tokens


def test_the_prompt_column_is_the_time_to_first_token_of_one_prompt() -> None:
    """sum + (M - 1) slowest: the simulator's own answer for a load of one request.

    Chunks are taken as equal; attention makes the last ones, which pass the whole pipeline, a few per cent longer.
    """
    plain = SearchSpace.load("llama-70b-pp4").resolved()
    plain["workload"] = {"kind": "random", "requests": 1, "prompt_tokens": 4096, "output_tokens": 1, "concurrency": 1}
    spec = SearchSpace.from_mapping(plain, source="test")
    for tokens, apart in ((4096, 0.002), (512, 0.05)):
        row = solve(spec, {"max_num_batched_tokens": tokens}).rows[0]
        measured = SimulatorDriver(resolve(spec)).measure(Candidate(row.partition, {"max_num_batched_tokens": tokens}))
        assert 1e3 * row.prompt_s == pytest.approx(measured.metrics["ttft_p50_ms"], rel=apart)


def test_an_order_of_unequal_gpus_is_the_best_of_all_that_can_be_launched() -> None:
    gpus = ["L40S", "A10", "RTX-3090", "A10"]
    solved = solve(space({"nodes": 2, "gpus_per_node": 2, "gpu": gpus}), {})
    slowest = {}
    for order in permutations(range(4)):
        if {order[0] // 2, order[1] // 2} in ({0}, {1}):  # both machines stay together
            spec = space({"nodes": 2, "gpus_per_node": 2, "gpu": [gpus[stage] for stage in order]})
            planner = Space(resolve(spec), spec).planner
            slowest[tuple(spec.cluster.gpu)] = planner.front({})[0].bottleneck_s
    present, best = solved.orders
    assert present.gpu == tuple(gpus)
    assert present.slowest_stage_s == pytest.approx(slowest[tuple(gpus)])
    assert best.slowest_stage_s == pytest.approx(min(slowest.values()))
    assert best.slowest_stage_s < present.slowest_stage_s
    assert solved.orders_text.startswith("8 of 12 orders of these GPUs can be launched")


def test_equal_gpus_have_no_orders() -> None:
    assert solve(SearchSpace.load("tiny"), {}).orders == ()


def test_reserved_memory_makes_equal_gpus_unequal() -> None:
    """Field report 11: of two equal cards one also drives a desktop; the head may stand on the other."""
    cluster = {"nodes": 1, "gpus_per_node": 2, "gpu": "RTX-4090", "reserved_gib": [12, 0]}
    solved = solve(space(cluster, parallel={"tp": 1, "pp": 2}), {})
    assert solved.orders_text.startswith("2 of 2 orders")
    assert {one.reserved_gib for one in solved.orders} <= {(12.0, 0.0), (0.0, 12.0)}


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["solve", *arguments])
    return code, capsys.readouterr().out


def test_the_command_prints_the_default_beside_the_front(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = command(capsys, "kimi-k3-pp8-tp2", "--set", "max_num_batched_tokens=512")
    assert code == 0
    assert "kimi-k3-pp8-tp2  max_num_batched_tokens=512  (async-v2, planned)" in out
    default = next(line for line in out.splitlines() if line.startswith("11,11,12,12,12,12,12,11"))
    assert "default" in default
    assert "fits" in default
    assert "whole layers cost" in out
    code, out = command(capsys, "kimi-k3-pp8-tp2", "--json")
    solved = json.loads(out)
    assert code == 0
    assert solved["default"]["partition"] == [11, 11, 12, 12, 12, 12, 12, 11]
    assert [row["over_fluid_bound"] > 0 for row in solved["front"]] == [True] * len(solved["front"])
    assert all(stage["fits"] for row in solved["front"] for stage in row["memory"])


def test_where_nothing_fits_the_answer_is_no_and_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = command(capsys, "--model", "llama-3.1-70b", "--gpu", "A10", "--nodes", "1", "--gpus-per-node", "4",
                        "--tp", "1", "--pp", "4")  # fmt: skip
    assert code == 1
    assert "no partition fits: stage" in out
    assert "weights miss the card by" in out


@pytest.mark.parametrize("flags", [{"max_num_seqs": 0}, {"max_num_seqs": "lots"}, {"pipeline_parallel_size": 3}])
def test_a_value_that_no_engine_takes_is_named(flags: dict[str, FlagValue]) -> None:
    with pytest.raises(SpecError, match=next(iter(flags))):
        solve(SearchSpace.load("tiny"), flags)


def test_a_layout_is_solved_on_its_own_stages() -> None:
    solved = solve(SearchSpace.load("qwen3-235b-8xh100-layouts"), {"layout": "tp4-pp2"})
    assert all(len(row.partition) == 2 and sum(row.partition) == 94 for row in solved.rows)
