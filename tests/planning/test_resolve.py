"""A search space with every name looked up, and what is said about a name that means nothing."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from partitune.candidate import Candidate
from partitune.costs.roofline import RooflineCosts
from partitune.errors import SpecError
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.spec.catalog import Kind, list_catalog
from partitune.spec.search_space import SearchSpace


def tiny(**changes: Any) -> Problem:
    return resolve(SearchSpace.from_mapping({**SearchSpace.load("tiny").resolved(), **changes}, source="test.yaml"))


@pytest.mark.parametrize(
    "name", [entry.name for entry in list_catalog(Kind.SEARCH_SPACE, project=Path("/nonexistent"))]
)
def test_every_shipped_space_is_sound_and_travels_to_workers(name: str) -> None:
    problem = resolve(SearchSpace.load(name))
    assert sum(problem.default_partition) == problem.layers
    copy = pickle.loads(pickle.dumps(problem))
    candidate = Candidate(problem.default_partition)
    assert ResolvedCandidate(copy, candidate).memory == ResolvedCandidate(problem, candidate).memory


def test_the_study_of_kimi_k3_is_resolved_as_it_was_run() -> None:
    problem = resolve(SearchSpace.load("kimi-k3-pp8-tp2"))
    assert problem.default_partition == (11, 11, 12, 12, 12, 12, 12, 11)
    assert problem.placement.nodes == (0, 0, 0, 0, 1, 1, 1, 1)
    assert (problem.stages, problem.layers, problem.placement.layout.tp) == (8, 93, 2)
    assert len(problem.load.requests) == problem.load.concurrency == 16
    assert {(one.prompt_tokens, one.output_tokens) for one in problem.load.requests} == {(256, 32)}
    assert problem.engine.effective_flags(problem.start({}))["max_num_batched_tokens"] == 16384


def test_the_engine_names_the_kernel_of_the_experts() -> None:
    for engine, kernel in (("", "w4a16_marlin"), ("-sglang", "w4a8_mxfp4_mxfp8")):
        costs = resolve(SearchSpace.load(f"kimi-k3-pp8-tp2{engine}")).costs
        assert isinstance(costs, RooflineCosts)
        assert costs.expert_kernel == kernel


@pytest.mark.parametrize(
    ("rule", "split"),
    [(None, (11, 11, 12, 12, 12, 12, 12, 11)), ("remainder-last", (11, 11, 11, 12, 12, 12, 12, 12))],
)
def test_a_named_split_rule_is_the_baseline(rule: str | None, split: tuple[int, ...]) -> None:
    plain = SearchSpace.load("kimi-k3-pp8-tp2").resolved()
    plain["engine"]["split_rule"] = rule
    assert resolve(SearchSpace.from_mapping(plain, source="t")).default_partition == split


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "qwen-8b"}, "test.yaml: model: model 'qwen-8b' is not in the catalog"),
        ({"engine": {"name": "vlm"}}, "test.yaml: engine.name: 'vlm' is not a known engine"),
        ({"engine": {"split_rule": "even"}}, "test.yaml: engine.split_rule: "),
        ({"cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": "H2000"}}, "test.yaml: cluster.gpu: 'H2000' is not known"),
        (
            {"cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": "H200", "links": {"in_node": "nvlonk-h100"}}},
            "test.yaml: cluster.links.in_node: link: 'nvlonk-h100' is not known; did you mean nvlink-h100",
        ),
        (
            {"cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": "L40S", "reserved_gib": 50}},
            "test.yaml: cluster: reserved_gib of stage 0 is 50",
        ),
        (
            {"cluster": {"nodes": 10, "gpus_per_node": 8, "gpu": "L40S"}, "parallel": {"tp": 1, "pp": 37}, "seeds": []},
            "test.yaml: cluster: tp 1 x pp 37 on 10 x 8 GPUs cannot be laid out",
        ),
        (
            {"cluster": {"nodes": 5, "gpus_per_node": 8, "gpu": "L40S"}, "parallel": {"tp": 1, "pp": 40}, "seeds": []},
            "36 layers",
        ),
        ({"workload": {"kind": "trace", "file": "/no/such.jsonl"}}, "test.yaml: workload.file: "),
    ],
)
def test_a_name_that_means_nothing(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        tiny(**changes)
    assert said in str(refused.value)
    assert str(refused.value).count("test.yaml") == 1
