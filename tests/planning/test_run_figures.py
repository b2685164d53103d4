"""Limits and bills of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.spec.metrics import COST, ENERGY
from partitune.spec.search_space import SearchSpace


def test_limits_are_missed_by_a_share_either_way() -> None:
    slo = {"ttft_p99_ms": 100, "output_throughput_tok_s": 200}
    problem = resolve(SearchSpace.from_mapping({**SearchSpace.load("tiny").resolved(), "slo": slo}, source="t"))
    missed = problem.missed_limits({"ttft_p99_ms": 150.0, "output_throughput_tok_s": 150.0})
    assert missed == {"ttft_p99_ms": pytest.approx(0.5), "output_throughput_tok_s": pytest.approx(0.25)}
    assert problem.missed_limits({"ttft_p99_ms": 90.0}) == {"ttft_p99_ms": pytest.approx(-0.1)}


def on_eight_gpus(price_usd: float | None, power_w: float | None) -> Problem:
    parallel = {"parallel": {"tp": 4, "pp": 2}, "cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": "L40S"}}
    problem = resolve(SearchSpace.from_mapping({**SearchSpace.load("tiny").resolved(), **parallel}, source="t"))
    return replace(problem, gpu_hour_price_usd=price_usd, gpu_power_w=power_w)


def test_a_million_tokens_of_eight_gpus() -> None:
    # 8 GPUs at 1,000 tokens/s need 1,000 s for a million: 8000/3600 GPU-hours; at 3 $ and 0.7 kW each.
    served = {"output_throughput_tok_s": 1000.0}
    assert on_eight_gpus(3.0, 700.0).run_figures([served]) == {
        **served,
        COST: pytest.approx(6.6667, abs=1e-4),
        ENERGY: pytest.approx(1.5556, abs=1e-4),
    }


def test_what_is_not_given_is_not_guessed() -> None:
    served = {"output_throughput_tok_s": 1000.0}
    assert on_eight_gpus(None, None).run_figures([served]) == served
    assert list(on_eight_gpus(3.0, None).run_figures([served])) == [*served, COST]
    assert on_eight_gpus(3.0, None).run_figures([{"output_throughput_tok_s": 0.0}]) == {"output_throughput_tok_s": 0.0}
