"""The simulator as a driver: check, plan memory and KV, simulate the load, report every stage.

Decision: a candidate is turned away in the order in which the engine would do it (rules, weights, KV, then the load),
with the figure by which it misses, so that the sampler learns a slope and a person reads what to change. Nothing here
was measured, and the measurement says so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from partitune.candidate import Candidate, Measurement, StageReport
from partitune.engines.memory import KvCache
from partitune.engines.rules import refused
from partitune.engines.scheduling import Simulation
from partitune.errors import OutOfMemory, Refused, RunError, SpecError
from partitune.execution.driver import Driver
from partitune.hardware.gpus import GIB
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.planning.workload_mix import Load
from partitune.simulation.metrics import metrics, of_all_ranks
from partitune.simulation.run import Overheads, Run
from partitune.simulation.timeline import Timeline

#: Requests from which a simulation is no matter of seconds, and those that tell how long it takes.
_LARGE_LOAD, _SAMPLE = 50_000, 2_000


@dataclass(frozen=True, slots=True)
class SimulatorDriver(Driver):
    """Simulates candidates of one problem."""

    problem: Problem

    def prepare(self) -> tuple[str, ...]:
        """What one simulation of a very large load will take, by one of the first requests under the default."""
        largest = max((part.rank_load for part in self.problem.parts), key=lambda load: len(load.requests))
        if (count := len(largest.requests)) < _LARGE_LOAD:
            return ()
        resolved = ResolvedCandidate(self.problem, Candidate(self.problem.default_partition))
        sample = replace(largest, requests=largest.requests[:_SAMPLE])
        start_s = time.perf_counter()
        try:
            _run(resolved, sample, _start(resolved))
        except RunError:  # said of the default when its turn comes
            return ()
        took_s = time.perf_counter() - start_s
        by_sample = f"by its first {_SAMPLE}, which took {took_s:.2g} s, one simulation takes about"
        return (f"this load has {count} requests: {by_sample} {took_s * count / _SAMPLE:.0f} s",)

    def measure(self, candidate: Candidate) -> Measurement:
        """Simulate `candidate` under every load. Raises Refused or OutOfMemory, graded.

        Every load meets a fresh engine, and the stages' times are summed over all. Of several data ranks the first is
        simulated, which has the largest share of the requests; see `of_all_ranks`.
        """
        resolved = ResolvedCandidate(self.problem, candidate)
        problem, kv_cache = resolved.problem, _start(resolved)
        runs = [_run(resolved, part.rank_load, kv_cache) for part in problem.parts]
        ranks = problem.layout.dp
        stages = _stage_reports(resolved, runs, kv_cache)
        stage, reason = limit_of(runs, stages, kv_cache)
        shares = [len(part.rank_load.requests) / len(part.load.requests) for part in problem.parts]
        served = [of_all_ranks(metrics(run, problem.goodput), share) for run, share in zip(runs, shares, strict=True)]
        capacity = {"kv_tokens": float(ranks * kv_cache.tokens), "kv_blocks": float(ranks * kv_cache.num_blocks)}
        figures = {**problem.run_figures(served), **capacity}
        return Measurement(
            metrics=figures,
            stages=stages,
            regime=resolved.flow.name,
            kv_blocks=kv_cache.num_blocks,
            kv_tokens=kv_cache.tokens,
            limiting_stage=stage,
            limiting_reason=reason,
            simulated=True,
            constraints=problem.missed_limits(figures),
        )

    def run_without_host(self, candidate: Candidate) -> Run:
        """The same simulation of the only load on a host that takes no time beside the stages. Raises as `measure`."""
        resolved = ResolvedCandidate(self.problem, candidate)
        return _run(resolved, resolved.problem.rank_load, _start(resolved), host=Overheads())

    def timeline(self, candidate: Candidate) -> Timeline:
        """The same simulation of the only load step by step, with what every stage did when. Raises as `measure`."""
        resolved = ResolvedCandidate(self.problem, candidate)
        timeline = _run(resolved, resolved.problem.rank_load, _start(resolved), traced=True).timeline
        assert timeline is not None  # noqa: S101 - asked for
        return timeline


def _start(resolved: ResolvedCandidate) -> KvCache:
    """What the engine does before it takes requests. Raises Refused or OutOfMemory, graded."""
    if broken := resolved.violations:
        raise refused(broken)
    if short := [memory for memory in resolved.memory if not memory.fits]:
        missing_bytes = max(max(memory.load_missing_bytes, memory.serve_missing_bytes) for memory in short)
        raise OutOfMemory("; ".join(memory.verdict for memory in short), excess=missing_bytes / GIB)
    try:
        return resolved.kv_cache
    except SpecError as error:  # no block fits, or a cache whose layout is not modelled
        raise Refused(str(error), excess=1.0) from error
    except OutOfMemory as error:
        raise OutOfMemory(str(error), excess=(error.excess or GIB) / GIB) from error


def _run(
    resolved: ResolvedCandidate, load: Load, kv_cache: KvCache, *, traced: bool = False, host: Overheads | None = None
) -> Run:
    """Simulate what one data rank gets; `host` stands in for what the engine's own takes beside the stages."""
    costs = resolved.problem.costs.stage_costs(resolved.partition)
    of_part = f"load {load.name}: " if load.name else ""
    try:
        return resolved.problem.engine.run(
            Simulation(load.requests, resolved.deployment, kv_cache, costs, load.concurrency, traced, host)
        )
    except Refused as error:
        raise Refused(f"{of_part}{error}", excess=error.excess) from error
    except SpecError as error:  # a request that the engine would refuse, under these flags
        raise Refused(f"{of_part}{error}", excess=1.0) from error
    except OutOfMemory as error:
        tightest = kv_cache.limiting_stage
        excess = (error.excess or 1.0) * kv_cache.stage_block_bytes[tightest] / GIB
        raise OutOfMemory(f"{of_part}{error}; stage {tightest} decides", excess=excess) from error


def _stage_reports(resolved: ResolvedCandidate, runs: Sequence[Run], kv_cache: KvCache) -> tuple[StageReport, ...]:
    """Times are sums over all `runs`."""
    makespan_s, kinds, kv_bytes = sum(run.makespan_s for run in runs), resolved.kinds, resolved.kv_bytes
    return tuple(
        StageReport(
            stage=stage,
            layers=layers,
            kinds=kinds[stage],
            compute_s=(compute_s := sum(run.compute_s[stage] for run in runs)),
            transfer_s=sum(run.transfer_s[stage] for run in runs),
            wait_s=sum(run.wait_s[stage] for run in runs),
            busy_fraction=compute_s / makespan_s,
            weights_bytes=round(resolved.memory[stage].weight_bytes),
            free_bytes=kv_bytes[stage],
            kv_blocks=kv_cache.stage_blocks[stage],
            stranded_bytes=kv_cache.stranded_bytes[stage],
        )
        for stage, layers in enumerate(resolved.partition)
    )


def limit_of(runs: Sequence[Run], stages: Sequence[StageReport], kv_cache: KvCache) -> tuple[int, str]:
    """The stage that limits the runs, and why in one sentence."""
    if preemptions := sum(run.preemptions for run in runs):
        stage, stranded = kv_cache.limiting_stage, max(kv_cache.stranded_bytes)
        return stage, (
            f"KV memory: stage {stage} holds {kv_cache.stage_blocks[stage]} blocks and {preemptions} requests were "
            f"preempted; other stages leave up to {stranded / GIB:.1f} GiB a GPU unused"
        )
    slowest = max(stages, key=lambda stage: stage.compute_s)
    mean_s = sum(stage.compute_s for stage in stages) / len(stages)
    share = f"stage {slowest.stage} computes longest, {slowest.compute_s / mean_s:.2f} × the mean"
    if slowest.busy_fraction < 0.5:
        in_flight = sum(run.in_pipeline_s for run in runs) / sum(run.makespan_s for run in runs)
        return slowest.stage, (
            f"{share}, but is busy only {100 * slowest.busy_fraction:.0f} % of the time: on average "
            f"{in_flight:.1f} batches are in flight over {len(stages)} stages"
        )
    return slowest.stage, share
