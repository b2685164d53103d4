"""From what a load generator and an engine said to a Measurement.

Decision: a figure is measured or it is not there. The table of stages has columns that no serving engine exports (how
long a stage computed and waited); they stay 0, and the sentence about the limiting stage says that it rests on the cost
model. Weights and KV blocks are what runs. Several windows count as their median, metric by metric: one window with a
hiccup decides nothing. What is hopeless is measured no further.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from partitune.candidate import Candidate, Measurement, StageReport
from partitune.engines.readout import Counters
from partitune.execution.readout.bench_results import BenchResult, median_metrics
from partitune.execution.server.setup import LoadCommands, Setup
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.spec.metrics import METRICS


def measure_windows(setup: Setup, measure: Callable[[LoadCommands, int], BenchResult]) -> list[list[BenchResult]]:
    """The windows that the runner asks for, up to a hopeless one.

    Args:
        setup: on the candidate's layout.
        measure: one run of a load with a seed.

    Returns:
        Of every window one result a load.
    """
    windows: list[list[BenchResult]] = []
    for turn in range(setup.runner.benchmark.windows):
        windows.append([measure(load, load.window_seeds[turn]) for load in setup.loads])
        if is_hopeless(setup.problem, windows[-1]):
            break
    return windows


def is_hopeless(problem: Problem, windows: Sequence[BenchResult]) -> bool:
    """True when a window under every load, taken together, is off a limit by more than a factor of two.

    No other window makes that good.

    Never asked of the warm-up: its first requests wait for kernels that are compiled then.
    """
    missed = problem.missed_limits(problem.run_figures([window.metrics for window in windows]))
    return any(share > (1.0 if METRICS[name] == "minimize" else 0.5) for name, share in missed.items())


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
    own = {"kv_blocks": kv_blocks or None, "kv_tokens": kv_tokens or None, "preemptions": counters.preemptions, **extra}
    metrics = problem.run_figures([median_metrics(of_load) for of_load in zip(*windows, strict=True)])
    metrics |= {name: float(value) for name, value in own.items() if value is not None}
    resolved = ResolvedCandidate(problem, candidate)
    stage, reason = _limit(resolved, counters)
    remarks = dict.fromkeys(f"; {result.remark}" for window in windows for result in window if result.remark)
    return Measurement(
        metrics=metrics,
        stages=_stages(resolved, kv_blocks, weights_bytes),
        regime=regime,
        kv_blocks=kv_blocks,
        kv_tokens=kv_tokens,
        limiting_stage=stage,
        limiting_reason=reason + "".join(remarks),
        simulated=False,
        constraints=problem.missed_limits(metrics),
    )


def _stages(resolved: ResolvedCandidate, kv_blocks: int, weights_bytes: Mapping[int, int]) -> tuple[StageReport, ...]:
    kinds, kv_bytes = resolved.kinds, resolved.kv_bytes
    return tuple(
        StageReport(
            stage=stage,
            layers=layers,
            kinds=kinds[stage],
            compute_s=0.0,
            transfer_s=0.0,
            wait_s=0.0,
            busy_fraction=0.0,
            weights_bytes=weights_bytes.get(stage, round(resolved.memory[stage].weight_bytes)),
            free_bytes=max(0, kv_bytes[stage]),
            kv_blocks=kv_blocks,
            stranded_bytes=0,
        )
        for stage, layers in enumerate(resolved.partition)
    )


def _limit(resolved: ResolvedCandidate, counters: Counters) -> tuple[int, str]:
    """The stage that limits, and on what that rests."""
    costs = resolved.problem.costs.stage_costs(resolved.partition)
    seconds = [0.0] * len(resolved.partition)
    for load in resolved.problem.mix.loads:
        for batch, times in load.typical_batches(resolved.flow):
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
