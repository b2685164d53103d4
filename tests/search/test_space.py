"""What may vary: parameters to candidates and back, and what a file may ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitune.candidate import LAYOUT, Candidate
from partitune.errors import InfeasibleSpace, SpecError
from partitune.planning.resolve import resolve
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.search.space import PLAN, Space, repaired
from partitune.spec.search_space import SearchSpace

BASE: dict[str, Any] = {
    "kind": "search_space",
    "name": "t",
    "model": "qwen3-8b",
    "cluster": {"nodes": 1, "gpus_per_node": 4, "gpu": "L40S"},
    "parallel": {"tp": 1, "pp": 4},
    "workload": {"kind": "random", "requests": 8, "prompt_tokens": 64, "output_tokens": 8, "concurrency": 8},
    "knobs": {"max_num_batched_tokens": [256, 1024], "async_scheduling": [True, False]},
    "seeds": ["9,9,9,9", {"partition": "10,9,9,8", "knobs": {"max_num_batched_tokens": 256}}],
}


def space(**changes: Any) -> Space:
    spec = SearchSpace.from_mapping({**BASE, **changes}, source="test.yaml")
    return Space(resolve(spec), spec)


def test_first_proposals_are_default_exact_and_seeds_with_the_engines_own_flags() -> None:
    first = list(space().first_proposals())
    assert [(one.origin, one.plan) for one in first] == [
        ("default", "default"),
        ("exact", "front-0"),
        ("seed", "seed-1"),
        ("seed", "seed-2"),
        ("predicted", "front-0"),
    ]
    assert first[0].candidate.partition == (9, 9, 9, 9)
    # 2048 is vLLM's own on this GPU, though no flag of this space takes it; async is on in the V2 runner.
    assert first[0].candidate.flags == {"max_num_batched_tokens": 2048, "async_scheduling": True}
    assert first[3].candidate.flags["max_num_batched_tokens"] == 256


def test_a_flag_of_the_file_is_where_its_domain_starts() -> None:
    made = space(engine={"flags": {"max_num_batched_tokens": 1024, "async_scheduling": False}})
    default = next(made.first_proposals())
    assert default.candidate.flags == {"max_num_batched_tokens": 1024, "async_scheduling": False}


def test_without_room_for_anything_the_default_is_still_tried() -> None:
    made = space(cluster={**BASE["cluster"], "reserved_gib": 43})
    assert [one.origin for one in made.first_proposals()] == ["default", "seed", "seed"]
    with pytest.raises(InfeasibleSpace):
        made.decode({"max_num_batched_tokens": 256, "async_scheduling": True, PLAN: "front-0"})


@pytest.mark.parametrize("search", ["exact", "free"])
def test_parameters_and_candidates_turn_into_each_other(search: str) -> None:
    made = space(knobs={**BASE["knobs"], "partition": {"search": search, "min_layers": 2, "pinned": {1: 9}}})
    rng = np.random.default_rng(0)
    for _ in range(50):
        params = {
            name: domain[rng.integers(len(domain))]
            if isinstance(domain, tuple)
            else int(rng.integers(int(domain.low), int(domain.high) + 1))
            for name, domain in made.parameters.items()
        }
        proposal = made.decode(params)
        assert sum(proposal.candidate.partition) == 36
        if proposal.plan not in ("default", "seed-2"):
            assert proposal.candidate.partition[1] == 9
            assert min(proposal.candidate.partition) >= 2
        back = made.encode(proposal.candidate, proposal.plan)
        assert back is not None
        assert made.decode(back).candidate == proposal.candidate


def test_a_candidate_outside_the_knobs_has_no_parameters() -> None:
    made = space()
    default = next(made.first_proposals())
    assert made.encode(default.candidate, default.plan) is None  # 2048 is not among 256, 1024


def test_a_free_search_favours_no_stage() -> None:
    """Field report 69: chained ranges gave 22.5/12.2/6.6/6.7 layers on average where 12 each are meant."""
    rng = np.random.default_rng(1)
    bounds = ((1, 45),) * 4
    drawn = np.array([repaired([int(x) for x in rng.integers(1, 46, 4)], bounds, 48) for _ in range(4000)])
    assert drawn.mean(axis=0) == pytest.approx([12] * 4, rel=0.03)


@given(st.data())
def test_repair_keeps_sum_and_bounds(data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, 8))
    lows = data.draw(st.lists(st.integers(1, 5), min_size=stages, max_size=stages))
    bounds = tuple((low, low + data.draw(st.integers(0, 30))) for low in lows)
    layers = data.draw(st.integers(sum(low for low, _ in bounds), sum(high for _, high in bounds)))
    weights = data.draw(st.lists(st.integers(1, 100), min_size=stages, max_size=stages))
    found = repaired(weights, bounds, layers)
    assert sum(found) == layers
    assert all(low <= count <= high for count, (low, high) in zip(found, bounds, strict=True))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": ["9,9,9,10"]}, "seeds[0]: found a sum of 37, 1 too many; allowed: 4 stages that sum to 36 layers"),
        ({"seeds": ["12,12,12"]}, "seeds[0]: found 3 stages"),
        ({"knobs": {"max_num_seq": [1, 2]}, "seeds": []}, "knobs.max_num_seq: vLLM 0.33.0 has no such flag"),
        ({"knobs": {"max_num_seqs": {"low": 0, "high": 8}}, "seeds": []}, "knobs.max_num_seqs: 0 is out of range"),
        ({"engine": {"flags": {"max_num_seqs": "many"}}}, "engine.flags.max_num_seqs: 'many' is not an integer"),
        ({"engine": {"flags": {"tensor_parallel_size": 1}}}, "engine.flags.tensor_parallel_size: partitune writes it"),
        ({"engine": {"env": {"VLLM_PP_LAYER_PARTITION": "9,9,9,9"}}}, "engine.env.VLLM_PP_LAYER_PARTITION: partitune"),
        ({"knobs": {"env": {"VLLM_USE_V2_MODEL_RUNNER": ["0", "1"]}}, "seeds": []}, "allowed: engine.runner"),
        ({"knobs": {"partition": {"min_layers": 10}}, "seeds": []}, "knobs.partition"),
        ({"parallel": {"tp": 3, "pp": 1}, "seeds": []}, "parallel: tensor parallel size 3 does not divide 32"),
    ],
)
def test_faults_are_named_by_their_key(changes: Mapping[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        space(**changes)
    assert str(refused.value).startswith("test.yaml: ")
    assert said in str(refused.value)


def test_a_cut_that_the_model_forbids_makes_the_default_infeasible_not_the_space() -> None:
    """GLM-5.2 shares its index between layers; 19,20,20,19 cuts such groups, what the planner proposes does not."""
    spec = SearchSpace.from_mapping(
        {**BASE, "model": "glm-5.2", "parallel": {"tp": 4, "pp": 4}, "seeds": [],
         "cluster": {"nodes": 2, "gpus_per_node": 8, "gpu": "H200"}}, source="test.yaml",
    )  # fmt: skip
    problem = resolve(spec)
    default, exact, *_ = Space(problem, spec).first_proposals()
    assert default.candidate.partition == (19, 20, 20, 19)
    rules = {one.rule for one in ResolvedCandidate(problem, default.candidate).violations}
    assert rules == {"partition"}
    assert ResolvedCandidate(problem, exact.candidate).violations == ()


def test_a_resolved_space_makes_the_same_proposals() -> None:
    spec = SearchSpace.load("kimi-k3-pp8-tp2")
    again = SearchSpace.from_mapping(json.loads(json.dumps(spec.resolved())), source="stored")
    assert list(Space(resolve(again), again).first_proposals()) == list(Space(resolve(spec), spec).first_proposals())


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spaces").mkdir()
    (tmp_path / "trace.jsonl").write_text('{"timestamp": 0, "input_length": 64, "output_length": 8}\n' * 3)
    text = json.dumps({**BASE, "workload": {"kind": "trace", "file": "../trace.jsonl"}})
    (tmp_path / "spaces" / "mine.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    problem = resolve(SearchSpace.load("spaces/mine.yaml"))
    assert [one.prompt_tokens for one in problem.load.requests] == [64, 64, 64]
    assert problem.load.concurrency is None


def test_where_layouts_vary_every_candidate_names_its_own_and_comes_back_from_the_parameters() -> None:
    layouts = [{"tp": 1, "pp": 4}, {"tp": 2, "pp": 2}]
    flags = {"max_num_batched_tokens": [256, 2048], "async_scheduling": [True, False]}
    varied = space(parallel={"tp": 1, "pp": 4, "layouts": layouts}, knobs=flags)
    stages = {"tp1-pp4": 4, "tp2-pp2": 2}
    first = list(varied.first_proposals())
    assert {proposal.candidate.layout for proposal in first} == set(stages)
    for proposal in first:
        candidate = proposal.candidate
        assert candidate.layout is not None
        assert len(candidate.partition) == stages[candidate.layout]
        assert LAYOUT not in candidate.flags
        stored = Candidate.of_settings(candidate.partition, candidate.settings)
        assert stored == candidate
        params = varied.encode(stored, proposal.plan)
        assert params is not None
        assert params[LAYOUT] == candidate.layout
        assert varied.decode(params).candidate == candidate
    assert varied.encode(Candidate((9, 9, 9, 9), first[0].candidate.flags, "tp4-pp1"), "front-0") is None
    assert {proposal.candidate.layout for proposal in space().first_proposals()} == {None}
