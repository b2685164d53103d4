"""What is said about a candidate is said on the layout that it names, and agrees with what the planner is told."""

from __future__ import annotations

import pytest

from partitune.candidate import Candidate
from partitune.errors import SpecError
from partitune.planning.resolve import resolve
from partitune.planning.resolved_candidate import ResolvedCandidate, kv_bytes_tensor
from partitune.spec.search_space import SearchSpace

GIB = 1 << 30


def test_a_candidate_is_judged_on_the_layout_it_names() -> None:
    """Whichever of its layouts the problem stands on, and with the stages, memory and start of that layout."""
    sizes = {"parallel": {"tp": 1, "pp": 2}, "cluster": {"nodes": 1, "gpus_per_node": 4, "gpu": "L40S"}, "seeds": []}
    problem = resolve(SearchSpace.from_mapping({**SearchSpace.load("tiny").resolved(), **sizes}, source="t"))
    candidate = Candidate((10, 8, 8, 10), {"max_num_seqs": 64}, "tp1-pp4")
    for stood_on in (problem, problem.on("tp1-pp4"), problem.on("tp2-pp2")):
        resolved = ResolvedCandidate(stood_on, candidate)
        assert (resolved.problem.layout.name, resolved.deployment.layout.pp) == ("tp1-pp4", 4)
        assert len(resolved.memory) == len(resolved.kv_bytes) == len(resolved.kinds) == 4
        assert [sum(kinds.values()) for kinds in resolved.kinds] == list(candidate.partition)
        assert "layout" not in resolved.deployment.flags
    assert ResolvedCandidate(problem, Candidate((18, 18))).problem is problem
    with pytest.raises(SpecError):
        ResolvedCandidate(problem, Candidate((18, 18), {}, "tp1-pp5"))


def test_bytes_given_for_kv_are_what_every_stage_has() -> None:
    problem = resolve(SearchSpace.load("tiny"))
    candidate = Candidate((18, 18), {"kv_cache_memory_bytes": 5 * GIB})
    assert ResolvedCandidate(problem, candidate).kv_bytes == (5 * GIB, 5 * GIB)
    tensor = kv_bytes_tensor(problem, problem.start(candidate.flags))
    assert tensor[0, 0, 18] == tensor[1, 18, 36] == 5 * GIB


def test_the_tensor_and_the_single_candidate_agree() -> None:
    problem = resolve(SearchSpace.load("tiny"))
    tensor = kv_bytes_tensor(problem, problem.start({}))
    for cut in (1, 10, 18, 30):
        free = ResolvedCandidate(problem, Candidate((cut, 36 - cut))).kv_bytes
        assert free == (int(tensor[0, 0, cut]), int(tensor[1, cut, 36]))
