"""Which part of a difference between engines is kernel tables: the same schedule with the other's times."""

from __future__ import annotations

import pytest

from partitune.analysis.explanation import candidate_of, explain
from partitune.candidate import Candidate
from partitune.costs.cost_model import decode, prefill
from partitune.engines.registry import ENGINES
from partitune.planning.resolve import resolve
from partitune.spec.overrides import with_settings
from partitune.spec.search_space import SearchSpace


def test_the_other_engines_times_are_those_it_has_itself() -> None:
    vllm, sglang = (resolve(SearchSpace.load(f"kimi-k3-pp8-tp2{name}")) for name in ("", "-sglang"))
    partition = vllm.default_partition
    for batch in (prefill(2048), decode(32, 1024)):
        own = sglang.costs.stage_costs(partition).compute_s(batch)
        assert vllm.with_kernels_of(sglang.engine).costs.stage_costs(partition).compute_s(batch) == own
        assert vllm.costs.stage_costs(partition).compute_s(batch) != own


@pytest.mark.parametrize("space", ["kimi-k3-pp8-tp2", "kimi-k3-pp8-tp2-sglang"])
def test_an_explanation_says_what_the_other_engines_kernels_would_change(space: str) -> None:
    problem = resolve(SearchSpace.load(space))
    explained = explain(problem, candidate_of(problem, None, {}), limits=True)
    (other,) = explained.other_tables
    assert other.engine.lower() in ENGINES
    assert other.engine.lower() != problem.engine.name
    entry = explained.to_json()["other_kernel_tables"][0]
    own = explained.result.metric("output_throughput_tok_s")
    assert own is not None
    change = entry["metrics"]["output_throughput_tok_s"] / own - 1
    assert f"({100 * change:+.1f} %)" in other.text
    # Kernels decide no memory.
    assert other.after.metric("kv_tokens") == explained.result.metric("kv_tokens")


def test_nothing_is_said_where_the_other_engine_was_not_measured() -> None:
    space = with_settings(SearchSpace.load("tiny"), {"cluster.gpu": "V100-SXM2-32GB"}, "test")
    problem = resolve(space)
    assert explain(problem, Candidate(problem.default_partition), limits=True).other_tables == ()
