"""From what a load generator and an engine said to a Measurement.

Decision: a figure is measured or it is not there. The table of stages has columns that no serving engine exports (how
long a stage computed and waited); they stay 0, and the sentence about the limiting stage says that it rests on the cost
model. Weights and KV blocks are what runs. Several windows count as their median, metric by metric: one window with a
hiccup decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from partitune.candidate import Candidate, Measurement, StageReport
from partitune.execution.readout.bench_results import BenchResult, median_metrics
from partitune.execution.readout.engine_readout import Counters
from partitune.planning.problem import Problem
from partitune.planning.typical_batches import typical_batches


def measured(
    problem: Problem,
    candidate: Candidate,
    windows: Sequence[Sequence[BenchResult]],
    counters: Counters,
    regime: str,
    weights_bytes: Mapping[int, int],
    extra: Mapping[str, float],
) -> Measurement:
    """The measurement of `candidate`.

    Args:
        problem: whose limits it is held against.
        candidate: what ran.
        windows: at least one under every load, one after the other; in each of these one for every load.
        counters: of the engine, after the last window.
        regime: how the engine fills its pipeline.
        weights_bytes: stage -> bytes per GPU, where known; else what the memory model says.
        extra: further figures by name.
    """
    kv_blocks = counters.kv_blocks or 0
    kv_tokens = counters.kv_tokens or kv_blocks * (counters.block_size or 0)
    sizes = {"kv_blocks": float(kv_blocks), "kv_tokens": float(kv_tokens)}
    preemptions = {} if counters.preemptions is None else {"preemptions": counters.preemptions}
    metrics = {
        **problem.figures([median_metrics(of_load) for of_load in zip(*windows, strict=True)]),
        **{name: value for name, value in sizes.items() if value},
        **preemptions,
        **extra,
    }
    stage, reason = _limit(problem, candidate, counters)
    return Measurement(
        metrics=metrics,
        stages=_stages(problem, candidate, kv_blocks, weights_bytes),
        regime=regime,
        kv_blocks=kv_blocks,
        kv_tokens=kv_tokens,
        limiting_stage=stage,
        limiting_reason=reason,
        simulated=False,
        constraints=problem.missed_limits(metrics),
    )


def _stages(
    problem: Problem, candidate: Candidate, kv_blocks: int, weights_bytes: Mapping[int, int]
) -> tuple[StageReport, ...]:
    memories = problem.stage_memory(candidate)
    free = problem.kv_bytes(candidate, memories)
    layers, rows, first = problem.architecture.layers, [], 0
    for stage, count in enumerate(candidate.partition):
        rows.append(
            StageReport(
                stage=stage,
                layers=count,
                kinds=dict(Counter(layer.kind for layer in layers[first : first + count])),
                compute_s=0.0,
                transfer_s=0.0,
                wait_s=0.0,
                busy_fraction=0.0,
                weights_bytes=weights_bytes.get(stage, round(memories[stage].weight_bytes)),
                free_bytes=max(0, free[stage]),
                kv_blocks=kv_blocks,
                stranded_bytes=0,
            )
        )
        first += count
    return tuple(rows)


def _limit(problem: Problem, candidate: Candidate, counters: Counters) -> tuple[int, str]:
    """The stage that limits, and on what that rests."""
    flow = problem.engine.flow(problem.deployment(candidate))
    costs = problem.costs.stage_costs(candidate.partition)
    seconds = [0.0] * len(candidate.partition)
    for load in problem.mix.loads:
        for batch, times in typical_batches(load.requests, load.concurrency, flow):
            seconds = [total + times * each for total, each in zip(seconds, costs.compute_s(batch), strict=True)]
    stage = seconds.index(max(seconds))
    share = seconds[stage] * len(seconds) / sum(seconds)
    reason = (
        f"by the cost model stage {stage} computes longest, {share:.2f} × the mean; how long the stages computed was "
        "not measured"
    )
    if counters.preemptions:
        reason = f"KV memory: {counters.preemptions:.0f} requests were preempted; {reason}"
    return stage, reason
