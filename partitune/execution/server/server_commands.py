"""The server's words and variables: from a candidate to everything that one start consists of.

Decision: a start is a plain function of a candidate, so that a dry run prints exactly what a trial would start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from partitune.candidate import Candidate, FlagValue
from partitune.engines.deployment import Deployment, command_flags, environment_flags
from partitune.engines.launch import Launch, RankPlacement, Start
from partitune.engines.rules import refused
from partitune.errors import Refused
from partitune.execution.processes.launch import LaunchCommands, ProcessCommand
from partitune.export.deploy import served_model, start_variables
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.spec.runner import Runner

_PATH = "PYTHONPATH"


@dataclass(frozen=True, slots=True)
class ServerCommands:
    """How candidates of one layout are started at a site."""

    problem: Problem
    runner: Runner
    forwarded: Mapping[str, str] = field(default_factory=dict, repr=False)  # values of the runner's forward_env
    key: str = field(default="", repr=False)  # that its servers ask for

    @property
    def engine(self) -> Launch:
        """What the engine says about its start."""
        return self.problem.engine.launch

    @property
    def flags(self) -> dict[str, FlagValue]:
        """Flags of the search space and of the site that no candidate changes."""
        return {**command_flags(self.problem.baseline), **self.runner.arguments}

    @property
    def ranks(self) -> RankPlacement:
        """Who puts ranks on nodes. Raises SpecError for a way that is not ours."""
        return self.engine.rank_placement(self.flags, self.problem.layout, self.problem.placement.node_count)

    @property
    def groups(self) -> int:
        """Nodes that partitune starts a process group on."""
        return 1 if self.ranks.by_ray else self.problem.placement.node_count

    @property
    def program(self) -> tuple[str, ...]:
        """How the engine is started at this site."""
        return self.runner.program(self.runner.engine_command) or self.engine.program

    @property
    def reports_layers(self) -> bool:
        """Whether the workers say which layers they hold."""
        return self.runner.layer_report and self.engine.layer_report is not None

    def deployment(self, candidate: Candidate) -> Deployment:
        """The engine start of `candidate` with the flags of this site.

        Raises:
            ValueError: it names another layout than these commands are for: `Setup.on_layout_of` makes its own.
        """
        resolved = ResolvedCandidate(self.problem, candidate)
        if resolved.problem is not self.problem:
            raise ValueError(f"commands for {self.problem.layout.name} were asked about {candidate.layout}")
        flags = {**resolved.deployment.flags, **self.runner.arguments}
        return replace(resolved.deployment, flags=flags)

    def check(self, candidate: Candidate) -> Deployment:
        """What will be started. Raises Refused where the engine's own rules forbid it."""
        deployment = self.deployment(candidate)
        if broken := self.problem.engine.check(deployment):
            raise refused(broken)
        if self.runner.starts_server and self.ranks.refusal:
            raise Refused(self.ranks.refusal, excess=1.0)
        return deployment

    def launch(
        self, candidate: Candidate, *, trial: str, hosts: Sequence[str], port: int, rendezvous_port: int
    ) -> LaunchCommands:
        """One start of `candidate`.

        Args:
            candidate: what to start.
            trial: its marker, unique for ever.
            hosts: addresses of `groups` nodes, in the order of the stages.
            port: of the server, on the first node.
            rendezvous_port: where ranks of several nodes meet, on the first node.

        Raises:
            Refused: the engine's own rules forbid it.
        """
        deployment, start = self.check(candidate), self._start(f"partitune-{trial}", hosts, port, rendezvous_port)
        common = self.words(deployment)
        variables = {**start_variables(self.problem, deployment), **self.runner.env}
        name = self.engine.key_variable
        processes = []
        for node, host in enumerate(hosts):
            own = self.engine.node_environment(start, node)
            env = {**own, **variables}
            if _PATH in own:  # it has the site's in it
                env[_PATH] = own[_PATH]
            secrets = {**self.forwarded, **({name: self.key} if name and node == 0 else {})}
            unset = tuple(name for name in self.engine.removed if name not in {*env, *secrets})
            argv = (*common, *self.engine.node_words(start, node))
            processes.append(ProcessCommand(node, host, argv, env, unset, secrets))
        note = self.ranks.order_note
        placement = self.problem.placement
        several_of_a_stage = len(placement.seats) > 1 or placement.tensor_nodes > 1
        return LaunchCommands(
            trial=trial,
            engine=self.problem.engine.name,
            served_name=start.served_name,
            port=port,
            processes=tuple(processes),
            partition=candidate.partition,
            notes=(*filter(None, (note,)), *served_model(self.problem)[1]),
            stage_nodes=None if several_of_a_stage or note else self.problem.placement.nodes,
            layer_report=self.engine.layer_report if self.reports_layers else None,
            key=self.key,
        )

    def words(self, deployment: Deployment) -> tuple[str, ...]:
        """The words that all nodes have."""
        argv = self.engine.serve_arguments(served_model(self.problem)[0], deployment)
        return (*self.program, *argv[len(self.engine.program) :])

    def words_of_flags(self, flags: Mapping[str, FlagValue]) -> list[tuple[str, ...]]:
        """The words of every node behind the program, for the default partition under `flags`."""
        start = self._start("partitune", ("127.0.0.1",) * self.groups, 1, 1)
        common = self.words(self.deployment(Candidate(self.problem.default_partition, flags)))[len(self.program) :]
        return [(*common, *self.engine.node_words(start, node)) for node in range(self.groups)]

    def process(
        self, host: str, argv: tuple[str, ...], env: Mapping[str, str] | None = None, key_variable: str = ""
    ) -> ProcessCommand:
        """Another program on the first node, with the site's variables over `env`, and the key where it has a name."""
        key = {key_variable: self.key} if key_variable else {}
        env = {**(env or {}), **self.runner.env}
        return ProcessCommand(0, host, argv, env, self.engine.removed, {**self.forwarded, **key})

    def surprises(self, variables: Mapping[str, str], searched: Sequence[str]) -> dict[str, str]:
        """Those of a node's own variables that would change a start if they won over the trial's."""
        ours = {**environment_flags(self.problem.baseline), **self.runner.env}
        written = (name for name in self.problem.engine.written_by_partitune if name.isupper())
        names = {*written, *ours, *searched}
        return {name: value for name, value in variables.items() if name in names and value != ours.get(name)}

    def _start(self, served_name: str, hosts: Sequence[str], port: int, rendezvous_port: int) -> Start:
        limits = self.runner.limits_s
        return Start(
            served_name,
            hosts,
            port,
            rendezvous_port,
            self.problem.layout.gpus,
            self.flags,
            patience_s=limits.spawn + limits.rendezvous + limits.load + limits.capture + limits.ready,
            reports_layers=self.reports_layers,
            python_path=self.runner.env.get(_PATH, os.environ.get(_PATH, "")),
        )
