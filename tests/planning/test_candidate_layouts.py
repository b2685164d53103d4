"""Which layouts GPUs admit, and a search over them: odd counts, unlike cards, models that need all of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from partitune.analysis.comparison import layouts_tried
from partitune.analysis.explanation import candidate_of, explain
from partitune.candidate import LAYOUT, Objective, Outcome, Result
from partitune.errors import SpecError
from partitune.execution.driver import run
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.export.deploy import export
from partitune.planning.candidate_layouts import MOST_LAYOUTS, Considered, considered, searched
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.search.layout_comparison import compare_layouts
from partitune.search.space import Space
from partitune.spec.search_space import SearchSpace
from tests.builders import trial_with

BASE: dict[str, Any] = {
    "kind": "search_space",
    "name": "test",
    "engine": {"flags": {"max_model_len": 8192, "max_num_batched_tokens": 2048, "max_num_seqs": 64}},
    "workload": {"kind": "random", "requests": 32, "prompt_tokens": 512, "output_tokens": 32, "concurrency": 32},
    "knobs": {"max_num_batched_tokens": [512, 2048]},
}


def space(
    model: str, cluster: Mapping[str, Any], parallel: Mapping[str, Any] | None = None, **more: Any
) -> SearchSpace:
    sizes = {"tp": 1, "pp": 1, "layouts": "auto"} | dict(parallel or {})
    return SearchSpace.from_mapping(
        {**BASE, "model": model, "cluster": cluster, "parallel": sizes, **more}, source="test.yaml"
    )


def judged(spec: SearchSpace) -> dict[str, Considered]:
    return {one.layout.name: one for one in considered(resolve(spec), spec, {})}


def usable(spec: SearchSpace) -> set[str]:
    return {name for name, one in judged(spec).items() if not one.reasons}


def cluster(gpu: str | list[str], gpus: int, nodes: int = 1) -> dict[str, Any]:
    return {"nodes": nodes, "gpus_per_node": gpus, "gpu": gpu}


def test_seven_gpus_with_64_heads() -> None:
    """vllm issues 596, 4232: 7 cards, 64 heads, 8 KV heads."""
    found = judged(space("qwen3-32b", cluster("RTX-4090", 7)))
    assert not any(found[name].reasons for name in ("tp1-pp7", "tp2-pp3", "tp1-pp6"))
    assert {name: found[name].idle_gpus for name in ("tp1-pp7", "tp2-pp3", "tp1-pp6")} == {
        "tp1-pp7": 0, "tp2-pp3": 1, "tp1-pp6": 1
    }  # fmt: skip
    for tp in (3, 5, 6, 7):
        assert [f"tensor parallel size {tp} does not divide 64 attention heads" in one.reasons[0]
                for name, one in found.items() if name.startswith(f"tp{tp}-")] == [True]  # fmt: skip


def test_six_gpus_with_40_heads() -> None:
    """vllm issues 414, 5003: 40 heads (8 KV heads) over 6 cards go 2 x 3 or 1 x 6, never 3, 5 or 6 ways."""
    spec = space("llama-4-maverick", cluster("B300", 6), {"tp": 2, "pp": 3})
    sizes = [{"tp": tp, "pp": pp} for tp, pp in ((2, 3), (1, 6), (3, 2), (6, 1), (5, 1))]
    found = judged(
        SearchSpace.from_mapping({**spec.resolved(), "parallel": {"tp": 2, "pp": 3, "layouts": sizes}}, source="x")
    )
    assert {name for name, one in found.items() if not one.reasons} == {"tp2-pp3", "tp1-pp6"}
    assert "neither divides 8 KV heads" in found["tp5-pp1"].reasons[0]


def test_three_gpus_serve_through_a_pipeline() -> None:
    """vllm issue 1208: the only way to use three cards for one copy of the model is a pipeline."""
    found = usable(space("qwen3-32b", cluster("L40S", 3)))
    assert found == {"tp1-pp3", "tp1-pp2", "tp2-pp1"}


def test_a_fast_and_a_slow_card() -> None:
    """club-3090 issue 766: in a tensor group the fast card waits for the slow one; a pipeline gives it more layers."""
    spec = space("qwen3-8b", cluster(["RTX-5090", "RTX-3090"], 2))
    problem = resolve(spec)
    piped = judged(spec)["tp1-pp2"]
    assert piped.partition[0] > 1.3 * piped.partition[1]
    twins = judged(space("qwen3-8b", cluster("RTX-3090", 2)))
    assert piped.most_tok_s > 1.2 * twins["tp1-pp2"].most_tok_s
    mixed = problem.on("tp2-pp1").placement.gpus
    assert [one.name for one in mixed] == ["RTX-3090"]


@pytest.mark.parametrize("cards", [["RTX-4080", "RTX-3070", "RTX-3070"], ["RTX-3070", "RTX-4080", "RTX-3070"]])
def test_a_large_card_and_two_small_ones(cards: list[str]) -> None:
    """A three-card how-to: 16 + 8 + 8 GB, where the even split does not start."""
    flags = {"max_model_len": 24576, "max_num_batched_tokens": 2048, "max_num_seqs": 64}
    spec = space("qwen3-8b", cluster(cards, 3), {"pp": 3}, engine={"flags": flags})
    problem = resolve(spec)
    best = judged(spec)["tp1-pp3"]
    assert not best.reasons
    assert best.partition.index(max(best.partition)) == cards.index("RTX-4080")
    outcomes = [
        run(SimulatorDriver(problem), candidate_of(problem, partition, {LAYOUT: "tp1-pp3"})).outcome
        for partition in (None, best.partition)
    ]
    assert outcomes == [Outcome.INFEASIBLE, Outcome.OK]


def test_two_nodes_of_different_gpus(tmp_path: Path) -> None:
    spec = space("llama-3.1-70b", cluster(["A100-80GB"] * 4 + ["L40S"] * 4, 4, nodes=2), {"tp": 4, "pp": 2})
    problem = resolve(spec)
    assert [one.name for one in problem.placement.gpus] == ["A100-80GB", "L40S"]
    best = judged(spec)["tp4-pp2"]
    assert best.partition[0] > best.partition[1]
    done = export(problem, best.candidate({}), tmp_path / "deploy.env", ())
    text = done.env_file.read_text()
    first, last = best.partition
    assert f"# stage 0: layers 0 to {first - 1} on node 0, GPUs 0 to 3 (A100-80GB)" in text
    assert f"# stage 1: layers {first} to {first + last - 1} on node 1, GPUs 0 to 3 (L40S)" in text
    assert "tensor-parallel-size: 4" in done.config.read_text()


@pytest.mark.parametrize(
    ("model", "gpus", "said"),
    [
        ("llama-3.1-405b", cluster("RTX-3090", 7), "weights miss the card by"),
        ("qwen3-235b-a22b", cluster("L40S", 3), "while loading"),
    ],
)
def test_what_fits_nowhere_is_refused_with_the_stage_and_the_gib(model: str, gpus: dict[str, Any], said: str) -> None:
    found = compare_layouts(space(model, gpus), {})
    assert found.running == ()
    assert found.advice == ("no layout can be used, for the reasons that are given",)
    assert any(said in reason and "stage " in reason and "GiB" in reason
               for one in found.left_out for reason in one.reasons)  # fmt: skip


BIG = [
    ("kimi-k3", cluster("B300", 8, nodes=2), {"tp": 2, "pp": 8}),
    ("deepseek-v3", cluster("H200", 8, nodes=2), {"tp": 8, "pp": 2}),
    ("glm-5.2", cluster("B200", 8, nodes=2), {"tp": 8, "pp": 2}),
    ("qwen3-235b-a22b", cluster("H200", 8), {"tp": 4, "pp": 2}),
    ("qwen3-next-80b", cluster("H100", 4), {"tp": 2, "pp": 2}),
    ("gpt-oss-120b", cluster("H100", 4), {"tp": 2, "pp": 2}),
    ("minimax-m3", cluster("H200", 8, nodes=2), {"tp": 4, "pp": 4}),
    ("nemotron-h-56b", cluster("H100", 4), {"tp": 2, "pp": 2}),
    ("llama-3.1-405b", cluster("H200", 8), {"tp": 4, "pp": 2}),
]


@pytest.mark.parametrize(("model", "gpus", "sizes"), BIG, ids=[model for model, _, _ in BIG])
def test_explain_answers_for_every_large_model(model: str, gpus: dict[str, Any], sizes: dict[str, int]) -> None:
    spec = space(model, gpus, sizes | {"layouts": [sizes]})
    problem = resolve(spec)
    (own,) = considered(problem, spec, {})
    assert own.reasons == ()
    found = explain(problem, own.candidate({}))
    assert found.result.outcome is Outcome.OK, found.result.reason
    assert sum(stage.layers for stage in found.stages) == problem.layers
    assert all(memory.fits for memory in found.resolved.memory)
    value = found.result.metric("output_throughput_tok_s")
    assert value is not None
    assert value > 0


SMALL = {"tp": 1, "pp": 4}


def opened(parallel: Mapping[str, Any], **more: Any) -> tuple[Problem, Space]:
    spec = space("qwen3-8b", cluster("L4", 4), {**SMALL, **parallel}, **more)
    problem = resolve(spec)
    return problem, Space(problem, spec)


def test_a_search_starts_from_the_files_layout_and_then_tries_the_others_best() -> None:
    problem, found = opened({}, seeds=["9,9,9,9"])
    proposals = list(found.first_proposals())
    layouts = [proposal.candidate.layout for proposal in proposals]
    assert [proposal.origin for proposal in proposals][:3] == ["default", "exact", "seed"]
    assert layouts[:3] == ["tp1-pp4"] * 3
    assert proposals[-1].origin == "predicted"
    assert set(layouts[3:-1]) == {"tp1-pp3", "tp1-pp2-dp2", "tp1-pp1-dp4", "tp2-pp2", "tp2-pp1-dp2", "tp4-pp1"}
    for proposal in proposals:
        assert len(proposal.candidate.partition) == problem.on(proposal.candidate.layout).stages
        assert sum(proposal.candidate.partition) == 36


def test_a_candidate_and_its_parameters_turn_into_each_other() -> None:
    _, found = opened({})
    assert found.parameters[LAYOUT][0] == "tp1-pp4"  # type: ignore[index]
    proposal = found.decode({"max_num_batched_tokens": 512, LAYOUT: "tp2-pp2", "plan": "front-0"})
    assert proposal.candidate.layout == "tp2-pp2"
    assert len(proposal.candidate.partition) == 2
    assert found.encode(proposal.candidate, "front-0") == {
        "max_num_batched_tokens": 512, LAYOUT: "tp2-pp2", "plan": "front-0"
    }  # fmt: skip
    assert found.encode(proposal.candidate, "none") is None


def test_a_layout_is_measured_as_if_it_were_the_files_own() -> None:
    problem, found = opened({})
    proposal = found.decode({"max_num_batched_tokens": 512, LAYOUT: "tp2-pp2", "plan": "front-0"})
    direct = resolve(space("qwen3-8b", cluster("L4", 4), {"tp": 2, "pp": 2, "layouts": None}))
    same = candidate_of(direct, proposal.candidate.partition, {"max_num_batched_tokens": 512})
    one, other = (run(SimulatorDriver(which), candidate) for which, candidate in (
        (problem, proposal.candidate), (direct, same)))  # fmt: skip
    assert one.measurement == other.measurement


def test_data_ranks_add_up_and_share_the_requests() -> None:
    one = resolve(space("qwen3-8b", cluster("L40S", 1), {"layouts": None}))
    two = resolve(space("qwen3-8b", cluster("L40S", 2), {"dp": 2, "layouts": None}))
    assert len(two.rank_load.requests) == 16
    assert two.rank_load.concurrency == 16
    halves = [run(SimulatorDriver(problem), candidate_of(problem, None, {})).measurement for problem in (one, two)]
    assert halves[0] is not None
    assert halves[1] is not None
    assert halves[1].metrics["kv_tokens"] == 2 * halves[0].metrics["kv_tokens"]
    gain = halves[1].metrics["output_throughput_tok_s"] / halves[0].metrics["output_throughput_tok_s"]
    assert 1.2 < gain <= 2.0  # less than twice: a rank with half of the requests decodes smaller batches


@pytest.mark.parametrize(
    ("parallel", "more", "said"),
    [
        ({"layouts": [{"tp": 2, "pp": 2}, {"tp": 2, "pp": 2}]}, {}, "parallel.layouts: found tp2-pp2 twice"),
        ({"layouts": [{"tp": 3, "pp": 1}]}, {}, "tp3-pp1: tensor parallel size 3 does not divide 32"),
        ({"layouts": [{"tp": 4, "pp": 2}]}, {}, "tp4-pp2: tp 4 x pp 2 needs 8 GPUs"),
        ({}, {"knobs": {"partition": {"search": "free"}}}, "knobs.partition.search: found where layouts vary"),
        ({}, {"knobs": {"partition": {"pinned": {0: 9}}}}, "knobs.partition.pinned: found where layouts vary"),
        ({}, {"knobs": {"layout": ["tp1-pp4"]}}, "knobs.layout: partitune writes it; allowed: parallel.layouts"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(parallel: dict[str, Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=r"test\.yaml: ") as refused:
        opened(parallel, **more)
    assert said in str(refused.value)


def test_listed_layouts_are_all_searched_and_automatic_ones_a_dozen() -> None:
    spec = space("qwen3-8b", cluster("L4", 4), {**SMALL, "layouts": [{"tp": 2, "pp": 2}, {"tp": 1, "pp": 1, "dp": 4}]})
    assert set(searched(resolve(spec), spec, {})) == {"tp1-pp4", "tp2-pp2", "tp1-pp1-dp4"}
    many = space("gpt-oss-120b", cluster("H100", 8), {"tp": 1, "pp": 8})
    names = searched(resolve(many), many, {})
    assert (len(names), names[0]) == (MOST_LAYOUTS, "tp1-pp8")
    assert {name.split("-")[0] for name in names} == {"tp1", "tp2", "tp4", "tp8"}


def test_it_is_said_when_a_pipeline_is_the_wrong_tool() -> None:
    """vllm issue 11500 and others: one request at a time cannot fill eight stages."""
    lone = {"workload": {**BASE["workload"], "requests": 4, "concurrency": 1}}
    problem = resolve(space("llama-3.1-8b", cluster("H100", 8), {"pp": 8, "layouts": None}, **lone))
    notes = explain(problem, candidate_of(problem, None, {})).notes
    assert any(note.startswith("8 stages for 1 request at once: while they decode, 7 or more wait") for note in notes)
    assert any(note.startswith("tp1-pp1-dp8 can serve this without a pipeline") for note in notes)
    found = compare_layouts(space("llama-3.1-8b", cluster("H100", 8), {"pp": 8}, **lone), {})
    speed = {row.layout.name: row.tok_s for row in found.running}
    assert speed["tp1-pp8"] <= speed["tp8-pp1"]
    assert any("a pipeline is the wrong tool for this load" in line for line in found.advice)


def trial(number: int, layout: str, value: float, outcome: Outcome = Outcome.OK) -> tuple[int, Result]:
    """A trial of one metric, `speed`."""
    return number, trial_with({"speed": value}, layout=layout, outcome=outcome)


def test_a_study_says_the_best_of_each_layout_and_gives_no_verdict_on_pipelines() -> None:
    faster, best_of_each = Objective("speed", "maximize"), "best speed of each layout, of what was tried"
    tried = [trial(0, "tp1-pp4", 60), trial(1, "tp4-pp1", 120), trial(2, "tp2-pp2", 90), trial(3, "tp2-pp2", 95)]
    assert list(layouts_tried(tried, faster)) == [
        f"{best_of_each}: tp4-pp1 120 (trial 1, 1 tried), tp2-pp2 95 (trial 3, 2 tried), tp1-pp4 60 (trial 0, 1 tried)"
    ]
    (best,) = layouts_tried([*tried, trial(4, "tp2-pp2", 240)], faster)
    assert best.startswith(f"{best_of_each}: tp2-pp2 240 (trial 4, 3 tried), tp4-pp1")
    (best,) = layouts_tried(tried, Objective("speed", "minimize"))
    assert best.startswith(f"{best_of_each}: tp1-pp4 60 (trial 0, 1 tried), tp2-pp2 90")
    missed = [trial(0, "tp1-pp4", 60), trial(1, "tp4-pp1", 120, Outcome.INFEASIBLE)]
    assert list(layouts_tried(missed, faster)) == []
