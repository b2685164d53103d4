"""A candidate's simulated pipeline, drawn: all stages in one Chrome trace, or one a rank as a profiled engine has.

Decision: both are drawn from one run, so that they cannot tell two stories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from partitune.candidate import Candidate
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.hardware.parallelism import Layout
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.simulation.chrome_trace import chrome_trace, rank_traces
from partitune.simulation.timeline import Timeline
from partitune.simulation.trace_names import Rank, TraceNames
from partitune.version import __version__


@dataclass(frozen=True, slots=True)
class Traces:
    """What a simulated pipeline did, to be drawn."""

    timeline: Timeline
    spelled: TraceNames
    layout: Layout
    has_experts: bool
    stages: Sequence[str]
    labels: Sequence[str]
    about: Mapping[str, object]

    def of_all(self) -> dict[str, object]:
        """All stages in one trace."""
        return chrome_trace(self.timeline, self.stages, self.labels, self.layout.tp, self.about, self.spelled)

    def by_rank(self) -> dict[str, dict[str, object]]:
        """One trace a rank, by the name of its file."""
        places = product(range(self.layout.pp), range(self.layout.tp))
        ranks = [Rank(stage, tensor, self.layout, self.has_experts) for stage, tensor in places]
        return rank_traces(self.timeline, self.labels, ranks, self.about, self.spelled)


def traces(problem: Problem, candidate: Candidate) -> Traces:
    """The Chrome traces of `candidate`'s simulated pipeline.

    Raises:
        RunError: it cannot run.
        SpecError: the engine's pipeline cannot be drawn.
    """
    resolved = ResolvedCandidate(problem, candidate)
    problem, placement = resolved.problem, resolved.problem.placement
    return Traces(
        SimulatorDriver(problem).timeline(candidate),
        problem.engine.trace_names,
        placement.layout,
        resolved.deployment.architecture.has_experts,
        stages=[
            f"stage {stage} (node {node}, {placement.layout.tp} x {gpu.name})"
            for stage, (node, gpu) in enumerate(zip(placement.nodes, placement.gpus, strict=True))
        ],
        labels=[f"layers {first} to {end - 1}" for first, end in resolved.partition.ranges],
        about={
            "version": __version__,
            "search_space": problem.name,
            "engine": f"{problem.engine.name} {problem.version}",
            "regime": resolved.flow.name,
            **candidate.to_json(),
        },
    )
