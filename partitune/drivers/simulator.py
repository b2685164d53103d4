"""The simulator as a driver: check, plan memory and KV, simulate the load, report every stage.

Decision: a candidate is turned away in the order in which the engine would do it (rules, weights, KV, then the load),
with the figure by which it misses, so that the sampler learns a slope and a person reads what to change. Nothing here
was measured, and the measurement says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from partitune.costs.memory import StageMemory
from partitune.drivers.schedulers import scheduling_of
from partitune.engines.interface import Deployment
from partitune.engines.kv_planning import KvPlan
from partitune.errors import InfeasibleSpace, OutOfMemory, Refused
from partitune.problem import Problem
from partitune.result import Candidate, Measurement, StageReport
from partitune.sim.metrics import metrics
from partitune.sim.run import Run
from partitune.sim.timeline import Timeline

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class _Started:
    """An engine that is up: how it was started, its KV cache, and the memory that came from."""

    deployment: Deployment
    plan: KvPlan
    memories: tuple[StageMemory, ...]
    free_bytes: tuple[int, ...]  # per stage, for KV


@dataclass(frozen=True, slots=True)
class SimulatorDriver:
    """Simulates candidates of one problem."""

    problem: Problem

    def measure(self, candidate: Candidate) -> Measurement:
        """Simulate `candidate`. Raises Refused or OutOfMemory, graded."""
        started = self._start(candidate)
        run = self._run(candidate, started, record_timeline=False)
        plan = started.plan
        stages = self._stage_reports(candidate, run, started)
        stage, reason = limit_of(run, stages, plan)
        served = metrics(run, self.problem.goodput)
        gpus = self.problem.placement.tp * self.problem.stages
        bill = self.problem.tariff.metrics(served["output_throughput_tok_s"], gpus)
        found = {**served, **bill, "kv_tokens": float(plan.tokens), "kv_blocks": float(plan.num_blocks)}
        return Measurement(
            metrics=found,
            stages=stages,
            regime=self.problem.engine.flow(started.deployment).name,
            kv_blocks=plan.num_blocks,
            kv_tokens=plan.tokens,
            limiting_stage=stage,
            limiting_reason=reason,
            simulated=True,
            constraints=self.problem.missed_limits(found),
        )

    def timeline(self, candidate: Candidate) -> Timeline:
        """The same simulation step by step, with what every stage did when. Raises what `measure` raises."""
        timeline = self._run(candidate, self._start(candidate), record_timeline=True).timeline
        assert timeline is not None  # noqa: S101 - asked for
        return timeline

    def _start(self, candidate: Candidate) -> _Started:
        """What the engine does before it takes requests."""
        problem = self.problem
        deployment = problem.deployment(candidate)
        if broken := problem.engine.check(deployment):
            reasons = "; ".join(f"{one.message} [{one.source}]" for one in broken)
            raise Refused(f"the engine refuses this: {reasons}", excess=float(len(broken)))
        memories = problem.stage_memory(candidate)
        _check_weights(memories)
        free_bytes = problem.kv_bytes(candidate, memories)
        plan = self._plan_kv(deployment, candidate.partition, free_bytes)
        return _Started(deployment, plan, memories, free_bytes)

    def _run(self, candidate: Candidate, started: _Started, *, record_timeline: bool) -> Run:
        problem, plan = self.problem, started.plan
        costs = problem.costs.stage_costs(candidate.partition)
        try:
            return scheduling_of(problem.engine).run(
                problem, started.deployment, plan, costs, record_timeline=record_timeline
            )
        except OutOfMemory as error:
            tightest = plan.limiting_stage
            excess = (error.excess or 1.0) * plan.stage_block_bytes[tightest] / _GIB
            raise OutOfMemory(f"{error}; stage {tightest} decides", excess=excess) from error

    def _plan_kv(self, deployment: Deployment, partition: Sequence[int], free_bytes: Sequence[int]) -> KvPlan:
        try:
            return self.problem.engine.plan_kv(deployment, partition, free_bytes)
        except InfeasibleSpace as error:
            raise Refused(str(error), excess=1.0) from error
        except OutOfMemory as error:
            raise OutOfMemory(str(error), excess=(error.excess or _GIB) / _GIB) from error

    def _stage_reports(self, candidate: Candidate, run: Run, started: _Started) -> tuple[StageReport, ...]:
        layers, plan = self.problem.architecture.layers, started.plan
        reports, first = [], 0
        for stage, count in enumerate(candidate.partition):
            reports.append(
                StageReport(
                    stage=stage,
                    layers=count,
                    kinds=dict(Counter(layer.kind for layer in layers[first : first + count])),
                    compute_s=run.compute_s[stage],
                    transfer_s=run.transfer_s[stage],
                    wait_s=run.wait_s[stage],
                    busy_fraction=run.compute_s[stage] / run.makespan_s,
                    weights_bytes=round(started.memories[stage].weight_bytes),
                    free_bytes=started.free_bytes[stage],
                    kv_blocks=plan.stage_blocks[stage],
                    stranded_bytes=plan.stranded_bytes[stage],
                )
            )
            first += count
        return tuple(reports)


def _check_weights(memories: Sequence[StageMemory]) -> None:
    short = [memory for memory in memories if not memory.fits]
    if not short:
        return
    missing = [max(memory.load_missing_bytes, memory.serve_missing_bytes) / _GIB for memory in short]
    raise OutOfMemory("; ".join(memory.verdict for memory in short), excess=max(missing))


def limit_of(run: Run, stages: Sequence[StageReport], plan: KvPlan) -> tuple[int, str]:
    """The stage that limits the run, and why in one sentence."""
    if run.preemptions:
        stage = plan.limiting_stage
        return stage, (
            f"KV memory: stage {stage} holds {plan.stage_blocks[stage]} blocks and {run.preemptions} requests were "
            "preempted; layers moved off this stage give every stage more blocks"
        )
    slowest = max(stages, key=lambda one: one.compute_s)
    mean_s = sum(one.compute_s for one in stages) / len(stages)
    share = f"stage {slowest.stage} computes longest, {slowest.compute_s / mean_s:.2f} × the mean"
    if slowest.busy_fraction < 0.5:
        return slowest.stage, (
            f"{share}, but is busy only {100 * slowest.busy_fraction:.0f} % of the time: on average "
            f"{run.mean_in_flight_batches:.1f} batches are in flight over {len(stages)} stages, so filling the pipe "
            "matters more than the partition"
        )
    return slowest.stage, share
