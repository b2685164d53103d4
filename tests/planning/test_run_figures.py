"""Limits and bills of a run."""

from __future__ import annotations

import pytest

from partitune.planning.resolve import resolve
from partitune.planning.run_figures import missed_limits
from partitune.spec.search_space import SearchSpace, load_search_space


def test_limits_are_missed_by_a_share_either_way() -> None:
    slo = {"ttft_p99_ms": 100, "output_throughput_tok_s": 200}
    problem = resolve(SearchSpace.from_mapping({**load_search_space("tiny").resolved(), "slo": slo}, source="t"))
    missed = missed_limits(problem, {"ttft_p99_ms": 150.0, "output_throughput_tok_s": 150.0})
    assert missed == {"ttft_p99_ms": pytest.approx(0.5), "output_throughput_tok_s": pytest.approx(0.25)}
    assert missed_limits(problem, {"ttft_p99_ms": 90.0}) == {"ttft_p99_ms": pytest.approx(-0.1)}
