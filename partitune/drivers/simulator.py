"""The simulator as a driver: check, plan memory and KV, simulate the load, report every stage.

Decision: a candidate is turned away in the order in which the engine would do it (rules, weights, KV, then the load),
with the figure by which it misses, so that the sampler learns a slope and a person reads what to change. Nothing here
was measured, and the measurement says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partitune.engines.interface import Deployment
from partitune.engines.kv_planning import Cache, KvPlan, group_layers
from partitune.engines.vllm import Vllm
from partitune.errors import InfeasibleSpace, OutOfMemory, Refused, SpecError
from partitune.problem import Problem
from partitune.result import Candidate, Knob, Measurement, StageReport
from partitune.sim.inputs import DEFAULT_OVERHEADS, SchedulerSettings
from partitune.sim.metrics import metrics
from partitune.sim.run import Run
from partitune.sim.simulator import simulate

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class SimulatorDriver:
    """Simulates candidates of one problem."""

    problem: Problem

    def __post_init__(self) -> None:
        if not isinstance(self.problem.engine, Vllm):
            raise SpecError(
                f"{self.problem.name}: engine {self.problem.engine.name} cannot be simulated yet; only vllm can. "
                "Its default split, rules and export are known (see partitune explain --help)"
            )

    def measure(self, candidate: Candidate) -> Measurement:
        """Simulate `candidate`. Raises Refused or OutOfMemory, graded."""
        problem = self.problem
        deployment = problem.deployment(candidate)
        if broken := problem.engine.check(deployment):
            reasons = "; ".join(f"{one.message} [{one.source}]" for one in broken)
            raise Refused(f"the engine refuses this: {reasons}", excess=float(len(broken)))
        self._check_weights(candidate)
        plan = self._plan_kv(candidate, deployment)
        settings = self.scheduler_settings(deployment, plan)
        costs = problem.costs.stage_costs(candidate.partition)
        try:
            run = simulate(problem.requests, settings, costs, DEFAULT_OVERHEADS, problem.concurrency)
        except OutOfMemory as error:
            tightest = plan.limiting_stage
            excess = (error.excess or 1.0) * plan.stage_block_bytes[tightest] / _GIB
            raise OutOfMemory(f"{error}; stage {tightest} decides", excess=excess) from error
        stages = self._stage_reports(candidate, run, plan)
        stage, reason = limit_of(run, stages, plan)
        found = {**metrics(run), "kv_tokens": float(plan.tokens), "kv_blocks": float(plan.num_blocks)}
        return Measurement(
            metrics=found,
            stages=stages,
            regime=settings.regime.value,
            kv_blocks=plan.num_blocks,
            kv_tokens=plan.tokens,
            limiting_stage=stage,
            limiting_reason=reason,
            simulated=True,
            constraints=problem.missed_limits(found),
        )

    def _check_weights(self, candidate: Candidate) -> None:
        short = [memory for memory in self.problem.stage_memory(candidate) if not memory.fits]
        if not short:
            return
        missing = [max(memory.load_missing_bytes, memory.serve_missing_bytes) / _GIB for memory in short]
        raise OutOfMemory("; ".join(memory.verdict for memory in short), excess=max(missing))

    def _plan_kv(self, candidate: Candidate, deployment: Deployment) -> KvPlan:
        free_bytes = self.problem.kv_bytes(candidate)
        try:
            return self.problem.engine.plan_kv(deployment, candidate.partition, free_bytes)
        except InfeasibleSpace as error:
            raise Refused(str(error), excess=1.0) from error
        except OutOfMemory as error:
            raise OutOfMemory(str(error), excess=(error.excess or _GIB) / _GIB) from error

    def scheduler_settings(self, deployment: Deployment, plan: KvPlan) -> SchedulerSettings:
        """The scheduler of this start, as the simulator takes it."""
        engine = self.problem.engine
        assert isinstance(engine, Vllm)  # noqa: S101 - checked when the driver was made
        flags = engine.effective_knobs(deployment)
        chosen = engine.regime(deployment)
        caches = [group.caches[0] for group in group_layers(engine.cache_model(deployment))]
        kinds = Counter(cache.kind for cache in caches)
        return SchedulerSettings(
            regime=chosen.regime,
            stages=self.problem.stages,
            queue_slots=chosen.slots,
            max_num_batched_tokens=int(flags["max_num_batched_tokens"]),
            max_num_seqs=int(flags["max_num_seqs"]),
            max_model_len=_longest(flags, self.problem),
            long_prefill_token_threshold=int(flags["long_prefill_token_threshold"]),
            enable_chunked_prefill=bool(flags["enable_chunked_prefill"]),
            reserve_full_isl=bool(flags["scheduler_reserve_full_isl"]),
            watermark=float(flags["watermark"]),
            num_blocks=plan.num_blocks,
            block_size=plan.block_size,
            full_groups=kinds[Cache.TOKENS],
            state_groups=kinds[Cache.STATE] * engine.cache_model(deployment).state_blocks,
            windows=tuple(cache.window for cache in caches if cache.kind is Cache.WINDOW and cache.window),
            align_chunks=flags["mamba_cache_mode"] == "align",
        )

    def _stage_reports(self, candidate: Candidate, run: Run, plan: KvPlan) -> tuple[StageReport, ...]:
        layers = self.problem.architecture.layers
        memories = self.problem.stage_memory(candidate)
        free_bytes = self.problem.kv_bytes(candidate)
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
                    weights_bytes=round(memories[stage].weight_bytes),
                    free_bytes=free_bytes[stage],
                    kv_blocks=plan.stage_blocks[stage],
                    stranded_bytes=plan.stranded_bytes[stage],
                )
            )
            first += count
        return tuple(reports)


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


def _longest(flags: Mapping[str, Knob], problem: Problem) -> int:
    given = int(flags["max_model_len"])
    return given if given > 0 else problem.architecture.max_position
