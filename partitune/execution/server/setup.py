"""What every measurement of a study follows from, but the candidate.

Decision: it is made and checked once a study, before anything starts (`setup_checks`). Where layouts vary,
`on_layout_of` gives that of a candidate's own; what a slot holds is the whole cluster of the search space, as the next
candidate may need all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from partitune.candidate import Candidate, FlagValue
from partitune.engines.deployment import Deployment
from partitune.errors import Refused
from partitune.execution.server.load_commands import BETWEEN_LOADS, LoadCommands
from partitune.execution.server.server_commands import ServerCommands
from partitune.planning.problem import Problem
from partitune.spec.runner import Runner
from partitune.spec.workload import SingleLoad


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a slot holds of a cluster for one candidate after the other, whatever their layouts."""

    nodes: int
    gpus: int  # on each node: engines want the same number everywhere
    most_gpus: int  # of the largest start


@dataclass(frozen=True, slots=True)
class Setup:
    """A problem and how its candidates are measured at a site. Picklable."""

    problem: Problem
    runner: Runner
    workloads: tuple[SingleLoad, ...]  # those of the problem; traces by absolute path
    forwarded: Mapping[str, str] = field(default_factory=dict, repr=False)  # values of the runner's forward_env
    searched: Mapping[str, tuple[FlagValue, ...]] = field(default_factory=dict)  # flag -> values, of a range its ends
    needed: tuple[str, ...] = ()  # metrics that the load generator has to give
    layouts: tuple[str, ...] = ()  # that a candidate may name; empty: none does

    @property
    def server(self) -> ServerCommands:
        """How the engine is started."""
        return ServerCommands(self.problem, self.runner, self.forwarded)

    @property
    def loads(self) -> tuple[LoadCommands, ...]:
        """How each load is sent."""
        first, server = self.runner.benchmark.seed, self.server
        pairs = zip(self.problem.parts, self.workloads, strict=True)
        return tuple(
            LoadCommands(server, problem, load, first + index * BETWEEN_LOADS, self.needed)
            for index, (problem, load) in enumerate(pairs)
        )

    @property
    def reservation(self) -> Reservation:
        """What each candidate takes, at most."""
        cluster, server = self.problem.cluster, self.server
        if not self.layouts:
            return Reservation(server.groups, server.gpus // server.nodes, server.gpus)
        nodes, gpus = cluster["nodes"], cluster["gpus_per_node"]
        return Reservation(server.groups if server.ranks.by_ray else nodes, gpus, nodes * gpus)

    def deployment(self, candidate: Candidate) -> Deployment:
        """The engine start of `candidate` with the flags of this site."""
        return self.server.deployment(candidate)

    def on_layout_of(self, candidate: Candidate) -> Setup:
        """The setup on the layout that `candidate` names: everything else here is about one layout.

        Raises:
            Refused: nothing of that layout is held here.
        """
        name = candidate.layout
        if name is None or name == self.problem.layout.name:
            return self
        if name not in self.layouts:
            known = ", ".join(self.layouts) or f"only {self.problem.layout.name}"
            raise Refused(f"layout {name} is not one of this search space: {known}", excess=1.0)
        return replace(self, problem=self.problem.on(name))

    def repeated(self, repeat: int) -> Setup:
        """The setup for run `repeat` of any candidate: the same load, drawn with other seeds for all alike."""
        return replace(self, runner=self.runner.repeated(repeat))
