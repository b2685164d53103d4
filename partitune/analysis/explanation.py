"""One candidate taken apart, stage by stage, beside the engine's default.

Decision: the table answers, in the order a person asks: what does each stage own, how long does it work, hand over and
wait, what fits and what is left over, who limits. A candidate that cannot run is explained just the same, from its
memory, because why it does not fit is the question then. What stands out in its layout is said unasked: the commonest
mistake is not a wrong partition but a pipeline where none is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from partitune.analysis.advice import Advice, advised
from partitune.analysis.kernel_tables import OtherTables, under_other_tables
from partitune.analysis.limits import Distance, PartDistances, distances
from partitune.analysis.pipeline_need import is_a_pipeline_needed, stages_that_wait
from partitune.candidate import Candidate, Caveats, FlagValue, Result, StageReport
from partitune.costs.cost_model import StageSeconds, decode, prefill
from partitune.engines.rules import FLAG_RULES
from partitune.errors import SpecError
from partitune.execution.driver import run
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.hardware.parallelism import Exchange
from partitune.partition import parse_partition
from partitune.planning.caveats import caveats
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.spec.metrics import HEADLINES

#: Batches whose stage balance is shown: name -> batch.
BALANCES = {
    "prefill_2048": prefill(2048),
    "decode_32_ctx_1024": decode(32, 1024),
    "decode_128_ctx_8192": decode(128, 8192),
}
_EXCHANGES = {
    Exchange.GATHER: "every GPU gathers the tokens of all data ranks",
    Exchange.ROUTED: "tokens travel to the GPUs of their experts",
}


@dataclass(frozen=True, slots=True)
class Explained:
    """A candidate, how it ended in the simulator, and what is known without simulating."""

    resolved: ResolvedCandidate
    result: Result
    caveats: Caveats  # of all figures here
    notes: tuple[str, ...]
    balance: Mapping[str, float]  # batch name -> slowest stage over mean stage
    sources: Mapping[str, tuple[StageSeconds, ...]]  # batch name -> what every stage's time rests on
    distance: Distance | PartDistances | None = None  # to the limit; None where it cannot run or was not asked
    advice: Advice | None = None  # None: not asked
    other_tables: tuple[OtherTables, ...] = ()  # the same with other engines' kernels; none where it was not asked
    same_flags: Explained | None = None  # the default partition at these flags; None: it is that, or was not asked
    default: Explained | None = None  # the engine's default; None: it is that, or was not asked

    @property
    def candidate(self) -> Candidate:
        """Partition, layout and flags, as they were asked for."""
        return self.resolved.candidate

    @property
    def stages(self) -> tuple[StageReport, ...]:
        """The simulated stages; none where it could not run."""
        return () if self.result.measurement is None else self.result.measurement.stages

    def measured_percent(self) -> dict[str, tuple[int, int]]:
        """Batch name -> the least and the largest per cent of a stage's time that rest on measured kernels."""
        shares = {name: [seconds.shares()["measured"] for seconds in stages] for name, stages in self.sources.items()}
        return {name: (round(100 * min(own)), round(100 * max(own))) for name, own in shares.items()}

    @property
    def limiting_stage(self) -> int:
        """The stage that limits the run, or that is shortest of memory."""
        if self.result.measurement is not None:
            return self.result.measurement.limiting_stage
        return min(self.resolved.memory, key=lambda stage: stage.kv_bytes).stage

    def to_json(self) -> dict[str, Any]:
        """The object of `explain --json`. Keys may be added, never changed."""
        measured = self.result.measurement
        return {
            **self.candidate.to_json(),
            "outcome": self.result.outcome.value,
            "reason": self.result.reason,
            "regime": self.resolved.flow.name,
            "metrics": dict.fromkeys(HEADLINES) if measured is None else dict(measured.metrics),
            "stages": [self._stage_json(stage) for stage in range(len(self.candidate.partition))],
            "kv": {"num_blocks": getattr(measured, "kv_blocks", None), "tokens": getattr(measured, "kv_tokens", None)},
            "limiting_stage": self.limiting_stage,
            "limiting_reason": self.result.reason if measured is None else measured.limiting_reason,
            "balance": dict(self.balance),
            "distance": None if self.distance is None else self.distance.to_json(),
            **({"advice": None, "advice_tried": None} if self.advice is None else self.advice.to_json()),
            "cost_source": self.resolved.problem.costs.source,
            "kernels": dict(self.resolved.problem.costs.kernels),
            "other_kernel_tables": [other.to_json() for other in self.other_tables],
            "notes": [*self.caveats.doubts, *self.notes],
            "simulated": True,
            **self.caveats.to_json(),
            "default": self.default and self.default.to_json(),
            "same_flags": self.same_flags and self.same_flags.to_json(),
        }

    def _stage_json(self, stage: int) -> dict[str, Any]:
        memory = self.resolved.memory[stage]
        row = self.stages[stage] if self.stages else None
        return {
            "stage": stage,
            "layers": self.candidate.partition[stage],
            **{name: getattr(row, name, None) for name in ("compute_s", "transfer_s", "wait_s", "busy_fraction")},
            "weights_bytes": round(memory.weight_bytes),
            "free_bytes": round(memory.kv_bytes) if row is None else row.free_bytes,
            **{name: getattr(row, name, None) for name in ("kv_blocks", "stranded_bytes")},
            "kinds": dict(self.resolved.kinds[stage]),
            "node": self.resolved.problem.placement.nodes[stage],
            "gpu": memory.gpu,
            "activation_bytes": round(memory.batch_bytes - memory.graph_bytes),
            **{name: round(getattr(memory, name)) for name in ("graph_bytes", "load_peak_bytes", "serve_peak_bytes")},
            "fits": memory.fits,
            "verdict": memory.verdict,
            "time_sources": {name: seconds[stage].shares() for name, seconds in self.sources.items()},
        }


def candidate_of(
    problem: Problem, partition: str | Sequence[int] | None, settings: Mapping[str, FlagValue]
) -> Candidate:
    """The candidate a person means.

    Args:
        problem: the search space, on its own layout.
        partition: layers per stage; None: the engine's own split.
        settings: the flags that differ from the search space's, and `layout` where the layout does.

    Raises:
        SpecError: a flag the engine does not have, a value it does not take, or not a partition of this layout.
    """
    wanted = Candidate.of_settings((), settings)
    problem = problem.on(wanted.layout)
    for name in wanted.flags:
        if name in problem.engine.written_by_partitune:
            raise SpecError(f"{name}: partitune writes it; allowed: {problem.engine.written_by_partitune[name]}")
    broken = (rule for rule in problem.engine.check(problem.start(wanted.flags)) if rule.rule in FLAG_RULES)
    if messages := [f"{rule.message} [{rule.source}]" for rule in broken]:
        raise SpecError("; ".join(messages))
    if partition is None:
        return replace(wanted, partition=problem.default_partition)
    return replace(wanted, partition=parse_partition(partition, stages=problem.stages, layers=problem.layers))


def explain(
    problem: Problem,
    candidate: Candidate,
    *,
    limits: bool = False,
    advice_s: float = 0.0,
    words: Sequence[str] | None = None,
) -> Explained:
    """Simulate `candidate` and collect what a person needs to act on it.

    Args:
        problem: the search space, on its own layout.
        candidate: what is to be explained.
        limits: its distance to the limit as well, and what other engines' kernels would change.
        advice_s: CPU seconds that trying changes may take; 0: nothing is tried.
        words: that name the search space on the command line, for the commands of the advice; None: there are none.

    Raises:
        SpecError: the engine refuses the combination of flags and runner.
    """
    advice = advised(problem, candidate, advice_s, words) if advice_s else None
    resolved = ResolvedCandidate(problem, candidate)
    problem, flow = resolved.problem, resolved.flow
    costs = problem.costs.stage_costs(candidate.partition)
    seconds = {name: costs.compute_s(batch) for name, batch in BALANCES.items()}
    result = run(SimulatorDriver(problem), candidate) if advice is None else advice.base
    own = caveats(problem, candidate.flags)
    notes = (f"{flow.name}: {flow.meaning}", *flow.notes, *problem.architecture.notes, *_layout_notes(resolved))
    return Explained(
        resolved=resolved,
        result=result,
        caveats=own,
        notes=tuple(note for note in notes if note not in own.doubts),
        balance={name: max(stages) * len(stages) / sum(stages) for name, stages in seconds.items()},
        sources={name: costs.sources(batch) for name, batch in BALANCES.items()},
        distance=distances(problem, candidate) if limits and result.measurement is not None else None,
        advice=advice,
        other_tables=tuple(under_other_tables(problem, result)) if limits else (),
    )


def explain_beside(
    problem: Problem, candidate: Candidate, *, advice_s: float = 0.0, words: Sequence[str] | None = None
) -> Explained:
    """`explain` with limits, beside what the candidate is compared with; arguments as there."""
    explained = explain(problem, candidate, limits=True, advice_s=advice_s, words=words)
    default, at_flags = candidate_of(problem, None, {}), candidate_of(problem, None, candidate.settings)
    beside = explain(problem, default) if candidate != default else None
    same_flags = None
    if at_flags != candidate:
        same_flags = beside if beside is not None and at_flags == default else explain(problem, at_flags)
    return replace(explained, same_flags=same_flags, default=beside)


def _layout_notes(resolved: ResolvedCandidate) -> Iterator[str]:
    """What a person should know about the layout that a candidate runs on."""
    problem = resolved.problem
    layout = problem.layout
    if layout.dp > 1:
        yield (
            f"{layout.dp} data ranks: the first is simulated with its share of the requests, all are taken to be "
            "alike; rates and KV tokens are those of the whole deployment, KV blocks of stages those of one rank"
        )
    if layout.exchange in _EXCHANGES:
        cut = "cut over the tensor ranks before" if layout.sequence_parallel_moe else "not cut over the tensor ranks"
        yield f"experts: {_EXCHANGES[layout.exchange]}, {cut}; busiest GPU {layout.expert_imbalance:g} x the mean"
    if note := problem.cluster.idle_note(layout):
        yield note
    settings = problem.engine.memory_settings(resolved.deployment)
    if any(resolved.deployment.flags.get(name) for name in problem.engine.launch.drafting_flags):
        counted = "none of it"
        if settings.drafter:
            counted = "its weights on the last stage, and not its KV"
        elif settings.drafter_embedding:
            counted = "the embedding that it reads on the last stage, and not its own weights and KV"
        yield f"speculative decoding: of the drafter's memory is counted: {counted}"
    if layout.pp > 1:
        yield from (f"{note}; partitune layouts compares other layouts" for note in stages_that_wait(problem))
        yield from is_a_pipeline_needed(resolved)
