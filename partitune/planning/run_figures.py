"""What a run comes to: the figures of its loads put together, what they cost, and by how much limits are missed.

Decision: simulated and measured runs end here alike, so that a limit means the same for both. The bill of a mix is that
of its throughput, not the mean of the parts' bills.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partitune.planning.problem import Problem
from partitune.spec.objectives import METRICS, Direction


def run_figures(problem: Problem, served: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of a run.

    Args:
        problem: on the layout that ran.
        served: what the clients saw, by metric; one for every load, in the order of the mix.

    Returns:
        The whole with its bill, then those of every part of a mix under `part/metric`.
    """

    def with_bill(figures: Mapping[str, float]) -> dict[str, float]:
        throughput = figures.get("output_throughput_tok_s", 0.0)
        return {**figures, **problem.tariff.metrics(throughput, problem.layout.gpus)}

    return {
        **with_bill(problem.mix.combined(served)),
        **problem.mix.by_part(list(map(with_bill, served))),
    }


def missed_limits(problem: Problem, metrics: Mapping[str, float]) -> dict[str, float]:
    """How far each limit is missed, as a share of the limit; <= 0 is kept."""
    return {
        name: (metrics[name] - limit if METRICS[name] is Direction.MINIMIZE else limit - metrics[name]) / limit
        for name, limit in problem.limits.items()
        if name in metrics  # a run of one output token a request has no time per output token
    }
