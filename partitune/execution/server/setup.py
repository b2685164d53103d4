"""What every measurement of a study follows from, but the candidate: the problem, the site, and the words of each load.

Decision: it is made and checked once a study, before anything starts (`setup_checks`). Where layouts vary,
`on_layout_of` gives that of a candidate's own; what a slot holds is the whole cluster of the search space, as the next
candidate may need all of it. Windows have seeds of their own, the same for every candidate; the warm-up has one
that no window has, as a prompt that was sent before would be answered from the prefix cache.

Servers ask for a key, random and known to this study alone. It is one for all of its starts: vLLM makes its variables a
part of the key of its compile cache (`envs.compile_factors`), and would compile anew for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from secrets import token_urlsafe
from typing import Self

from partitune.candidate import Candidate, FlagValue
from partitune.engines.deployment import environment_flags
from partitune.engines.launch import LoadGenerator, LoadRun, Target
from partitune.errors import Refused
from partitune.execution.driver import Driver
from partitune.execution.processes.launch import LaunchCommands, ProcessCommand
from partitune.execution.processes.node import NodeSource
from partitune.execution.ray.groups import RayGroup
from partitune.execution.server.load_generators import LOAD_GENERATORS
from partitune.execution.server.server_commands import ServerCommands
from partitune.export.deploy import served_model
from partitune.planning.problem import Problem
from partitune.spec.runner import Runner
from partitune.spec.workload import SingleLoad

#: Between the seeds of two loads of a mix, as equal seeds make prompts that begin alike: above the warm-up's, and a
#: hundred loads stay below 2**31.
BETWEEN_LOADS = 20_000_000
_WARMUP = 1_000_000


@dataclass(frozen=True, slots=True)
class LoadCommands:
    """One load of a study and everything that one run of it is started with."""

    server: ServerCommands
    problem: Problem  # under this load alone
    load: SingleLoad  # a trace by absolute path
    first_seed: int
    needed: tuple[str, ...]  # metrics that the load generator has to give

    @property
    def tool(self) -> LoadGenerator:
        """The load generator that the runner names."""
        return LOAD_GENERATORS[self.server.runner.benchmark.tool]

    @property
    def window_seeds(self) -> tuple[int, ...]:
        """Seeds of the measured windows, the same for every candidate."""
        return tuple(range(self.first_seed, self.first_seed + self.server.runner.benchmark.windows))

    @property
    def warmup_seed(self) -> int:
        """A seed that no window has."""
        return self.first_seed + _WARMUP

    @property
    def full_length(self) -> bool:
        """Whether answers run to the length asked for: every tool is told so, unless the runner's arguments undo it."""
        given = self.server.runner.benchmark.arguments.items()
        return not any("ignore_eos" in f"{name} {value}" for name, value in given)

    def process(self, launch: LaunchCommands, *, seed: int, result: str, requests: int | None = None) -> ProcessCommand:
        """The load generator, on the first node.

        Args:
            launch: the running server.
            seed: of lengths, arrivals and tokens.
            result: path of the file it writes, on that node.
            requests: how many; all of the load if None.
        """
        words = self.words(launch.url, launch.served_name, seed=seed, result=result, requests=requests)
        env = environment_flags(self.problem.baseline)
        argv = (*self._program, *words)
        return self.server.process(launch.processes[0].host, argv, env, self.tool.key_variable)

    def words(
        self, url: str, served_name: str, *, seed: int, result: str, requests: int | None = None
    ) -> tuple[str, ...]:
        """The words behind the load generator's program."""
        model, _ = served_model(self.problem)
        target = Target(url, self.problem.engine.name, model, served_name, self.server.flags)
        run = LoadRun(requests or len(self.problem.load.requests), seed, result, self.problem.goodput)
        given = self.server.runner.benchmark.arguments.items()
        options = {"--" + name.replace("_", "-"): value for name, value in given if value is not False}
        further = (option if value is True else f"{option}={value}" for option, value in options.items())
        return (*self.tool.words(self.load, target, run), *further)

    @property
    def _program(self) -> tuple[str, ...]:
        """As the runner says; else the tool of the installation that serves, where it is the same program."""
        chosen, usual = self.server.runner.benchmark.command, self.tool.program
        if chosen or self.tool.name != self.server.runner.driver:
            return self.server.runner.program(chosen) or usual
        # A program of one word is the whole command of the site, be it `docker run … vllm`; else its first is shared.
        return self.server.program if len(usual) == 1 else (self.server.program[0], *usual[1:])


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
    key: str = field(default_factory=token_urlsafe, repr=False, compare=False)  # that its servers ask for

    @property
    def server(self) -> ServerCommands:
        """How the engine is started."""
        return ServerCommands(self.problem, self.runner, self.forwarded, self.key)

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
    def reservation(self) -> RayGroup:
        """What a slot holds of a cluster for one candidate after the other, whatever their layouts.

        Engines want the same number of GPUs on every node.
        """
        cluster, server, hosts = self.problem.cluster, self.server, self.runner.nodes.hosts
        if not self.layouts:
            return RayGroup(server.groups, self.problem.layout.gpus // self.problem.placement.node_count, hosts)
        return RayGroup(server.groups if server.ranks.by_ray else cluster.nodes, cluster.gpus_per_node, hosts)

    @property
    def most_gpus(self) -> int:
        """GPUs of the largest start."""
        return self.problem.cluster.total if self.layouts else self.problem.layout.gpus

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


@dataclass(frozen=True, slots=True)
class SetupDriver(Driver):
    """A driver that measures what its setup says, on machines of one source."""

    setup: Setup
    source: NodeSource

    def repeated(self, repeat: int) -> Self:
        """The driver of run `repeat`: the same load, drawn with other seeds for all candidates alike."""
        return replace(self, setup=self.setup.repeated(repeat))
