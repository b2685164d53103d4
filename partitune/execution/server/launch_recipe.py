"""From a candidate to everything one start consists of: commands, variables and nodes, and the load sent to it.

Decision: a recipe is made and checked once a study, before anything starts: whatever runner and search space say
against each other is refused there, with the line of the file. From then on a plan is a plain function of a candidate,
so that a dry run prints exactly what a trial would start. Where layouts vary, `on_layout_of` makes the recipe of a
candidate's own; what a slot holds is the whole cluster of the search space, as the next candidate may need all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from partitune.candidate import Candidate, Knob
from partitune.engines.deployment import Deployment, environment_knobs, flag_knobs
from partitune.errors import Refused, SpecError
from partitune.execution.processes.launch import LaunchPlan, ProcessPlan
from partitune.execution.server.load_generators import PROGRAMS, Run, Target, words
from partitune.execution.server.recipe_checks import check_fit, forwarded_variables
from partitune.execution.server.server_commands import ServerCommand, Start, server_command
from partitune.export.deploy import served_model, start_variables
from partitune.planning.candidate_layouts import possible
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.spec.catalog import readable_path
from partitune.spec.objectives import CLIENT_METRICS
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from partitune.spec.workload import SingleLoad, TraceWorkload, single_loads

_BACKEND, _PATH = "distributed_executor_backend", "PYTHONPATH"
#: Between the seeds of two loads of a mix: above the warm-up's, and a hundred loads stay below 2**31.
_BETWEEN_LOADS = 20_000_000


@dataclass(frozen=True, slots=True)
class LaunchRecipe:
    """What every start of a study follows from, but the candidate. Picklable."""

    problem: Problem
    loads: tuple[SingleLoad, ...]  # those of the problem; traces by absolute path
    runner: Runner
    forwarded: Mapping[str, str] = field(default_factory=dict, repr=False)  # values of the runner's forward_env
    searched: Mapping[str, tuple[Knob, ...]] = field(default_factory=dict)  # knob -> values, of a range its ends
    needed: tuple[str, ...] = ()  # metrics that the load generator has to give
    layouts: tuple[str, ...] = ()  # that a candidate may name; empty: none does

    @classmethod
    def of(cls, problem: Problem, space: SearchSpace, runner: Runner) -> LaunchRecipe:
        """Check that runner and search space fit.

        Raises:
            SpecError: where they do not, with the file's line.
        """
        loads = tuple(
            load.model_copy(update={"file": str(readable_path(space.absolute(load.file)))})
            if isinstance(load, TraceWorkload)
            else load
            for load in single_loads(space.workload)
        )
        knobs = {**space.knobs.flags, **space.knobs.env}
        searched = {name: knob if isinstance(knob, tuple) else (knob.low, knob.high) for name, knob in knobs.items()}
        needed = (one for one in (*(aim.metric for aim in space.objectives), *space.slo) if one in CLIENT_METRICS)
        recipe = cls(
            problem,
            loads,
            runner,
            forwarded_variables(runner),
            searched,
            tuple(dict.fromkeys(needed)),
            () if space.parallel.layouts is None else tuple(one.name for one in possible(problem, space)),
        )
        check_fit(space, recipe)
        return recipe

    def on_layout_of(self, candidate: Candidate) -> LaunchRecipe:
        """This recipe on the layout that `candidate` names: everything below is about one layout.

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

    @property
    def slot_nodes(self) -> int:
        """Nodes held for one candidate after the other, whatever their layouts."""
        return self.problem.cluster["nodes"] if self.layouts and not self.placed_by_ray else self.count

    @property
    def slot_gpus(self) -> int:
        """GPUs held on each of them."""
        return self.problem.cluster["gpus_per_node"] if self.layouts else self.node_gpus

    @property
    def most_gpus(self) -> int:
        """GPUs of the largest start."""
        cluster = self.problem.cluster
        return cluster["nodes"] * cluster["gpus_per_node"] if self.layouts else self.gpus

    @property
    def command(self) -> ServerCommand:
        """How the engine is started."""
        name = self.problem.engine.name
        return server_command(name, {**flag_knobs(self.problem.baseline), **self.runner.arguments})

    @property
    def placed_by_ray(self) -> bool:
        """True where one command is started and vLLM itself has Ray place the ranks."""
        return self._backend == "ray"

    @property
    def count(self) -> int:
        """Nodes that partitune starts a process group on."""
        return 1 if self.placed_by_ray else self.nodes

    @property
    def gpus(self) -> int:
        """GPUs of one start."""
        return self.problem.placement.layout.gpus

    @property
    def node_gpus(self) -> int:
        """GPUs on each node: both engines want the same number everywhere."""
        return self.gpus // self.nodes

    @property
    def nodes(self) -> int:
        """Nodes that the stages stand on."""
        return 1 + max(seat.node for replica in self.problem.placement.seats for seat in replica)

    @property
    def _backend(self) -> Knob | None:
        return self.runner.arguments.get(_BACKEND, self.problem.baseline.get(_BACKEND))

    @property
    def load(self) -> SingleLoad:
        """The only load. Of a mix there is none: ask `parts`."""
        (only,) = self.loads
        return only

    @property
    def parts(self) -> tuple[LaunchRecipe, ...]:
        """This recipe with each load alone, and seeds of its own: equal seeds make prompts that begin alike."""
        found = []
        for index, (problem, load) in enumerate(zip(self.problem.parts, self.loads, strict=True)):
            benchmark = self.runner.benchmark
            seeded = benchmark.model_copy(update={"seed": benchmark.seed + index * _BETWEEN_LOADS})
            runner = self.runner.model_copy(update={"benchmark": seeded})
            found.append(replace(self, problem=problem, loads=(load,), runner=runner))
        return tuple(found)

    def repeated(self, repeat: int) -> LaunchRecipe:
        """The recipe for run `repeat` of any candidate: the same load, drawn with other seeds for all alike."""
        return replace(self, runner=self.runner.repeated(repeat))

    @property
    def window_seeds(self) -> tuple[int, ...]:
        """Seeds of the measured windows, the same for every candidate."""
        first = self.runner.benchmark.seed
        return tuple(range(first, first + self.runner.benchmark.windows))

    @property
    def warmup_seed(self) -> int:
        """A seed that no window has: a prompt that was sent before would be answered from the prefix cache."""
        return self.runner.benchmark.seed + 1_000_000

    def plan(
        self, candidate: Candidate, *, trial: str, hosts: Sequence[str], port: int, rendezvous_port: int
    ) -> LaunchPlan:
        """One start of `candidate`.

        Args:
            candidate: what to start.
            trial: its marker, unique for ever.
            hosts: addresses of `count` nodes, in the order of the stages.
            port: of the server, on the first node.
            rendezvous_port: where ranks of several nodes meet, on the first node.

        Raises:
            Refused: the engine's own rules forbid it.
        """
        deployment = self.check(candidate)
        served_name = f"partitune-{trial}"
        start = Start(served_name, hosts, port, rendezvous_port, self.runner, self.gpus)
        command, common = self.command, self._common(deployment)
        processes = []
        for node, host in enumerate(hosts):
            own = command.environment(start, node)
            env = {**own, **self._variables(deployment)}
            if _PATH in own:  # it has the site's in it
                env[_PATH] = own[_PATH]
            unset = tuple(name for name in command.removed if name not in env)
            argv = (*common, *command.words(start, node))
            processes.append(ProcessPlan(node, host, argv, env, unset, self.secrets))
        return LaunchPlan(
            trial=trial,
            engine=self.problem.engine.name,
            served_name=served_name,
            port=port,
            processes=tuple(processes),
            partition=candidate.partition,
            partition_env=self.problem.engine.partition_env,
            notes=tuple(self._notes()),
            stage_nodes=self._stage_nodes,
            stage_report=self.problem.engine.name == "vllm" and self.runner.layer_report,
        )

    def help_process(self, host: str) -> ProcessPlan:
        """The installed engine saying which flags it takes, on the first node."""
        argv = (*self._program, *self.command.help_words)
        env = {**self.runner.env, **self.forwarded}
        return ProcessPlan(0, host, argv, env, self.command.removed, self.secrets)

    def all_commands(self) -> Iterator[tuple[str, ...]]:
        """Words behind the program in which every knob has each of its values once, whatever the engine's rules say.

        And those of every layout that can be placed, with the first values.
        """
        for turn in range(max(map(len, self.searched.values()), default=1)):
            yield from self._commands(turn)
        for name in self.layouts:
            with suppress(SpecError):
                yield from replace(self, problem=self.problem.on(name))._commands(0)

    def _commands(self, turn: int) -> Iterator[tuple[str, ...]]:
        """Words of every node, each knob with the value whose turn it is."""
        start = Start("partitune", ("127.0.0.1",) * self.count, 1, 1, self.runner, self.gpus)
        knobs = {name: values[min(turn, len(values) - 1)] for name, values in self.searched.items()}
        common = self._common(self.deployment(Candidate(self.problem.default_partition, knobs)))
        for node in range(self.count):
            yield (*common[len(self._program) :], *self.command.words(start, node))

    def surprises(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Those of a node's own variables that would change a start if they won over the trial's."""
        ours = {**environment_knobs(self.problem.baseline), **self.runner.env}
        names = {self.problem.engine.partition_env, "VLLM_USE_V2_MODEL_RUNNER", *ours, *self.searched}
        return {name: value for name, value in variables.items() if name in names and value != ours.get(name)}

    def load_process(self, plan: LaunchPlan, *, seed: int, result: str, requests: int | None = None) -> ProcessPlan:
        """The load generator, on the first node.

        Args:
            plan: the running server.
            seed: of lengths, arrivals and tokens.
            result: path of the file it writes, on that node.
            requests: how many; all of the load if None.
        """
        argv = (
            *self._load_program,
            *self.load_words(plan.url, plan.served_name, seed=seed, result=result, requests=requests),
        )
        env = {**environment_knobs(self.problem.baseline), **self.runner.env, **self.forwarded}
        return ProcessPlan(0, plan.processes[0].host, argv, env, self.command.removed, self.secrets)

    def load_words(
        self, url: str, served_name: str, *, seed: int, result: str, requests: int | None = None
    ) -> tuple[str, ...]:
        """The words behind the load generator's program."""
        flags = {**flag_knobs(self.problem.baseline), **self.runner.arguments}
        target = Target(url, self.problem.engine.name, served_model(self.problem)[0], served_name, flags)
        run = Run(requests or len(self.problem.load.requests), seed, result, self.problem.goodput)
        return (*words(self._tool, self.load, target, run), *self._load_arguments)

    def check(self, candidate: Candidate) -> Deployment:
        """What will be started. Raises Refused where the engine's own rules forbid it."""
        deployment = self.deployment(candidate)
        if broken := self.problem.engine.check(deployment):
            reasons = "; ".join(f"{one.message} [{one.source}]" for one in broken)
            raise Refused(f"the engine refuses this: {reasons}", excess=float(len(broken)))
        if self.runner.starts_server and self.cannot_start:
            raise Refused(self.cannot_start, excess=1.0)
        return deployment

    @property
    def cannot_start(self) -> str:
        """Why this launcher has no words for the layout; empty where it has.

        `--nnodes` alone spans every replica over all nodes (vLLM 0.32 `config/parallel.py`, nnodes_within_dp); the
        placement has each replica on as few as it needs.
        """
        if self.problem.engine.name != "vllm" or self.problem.layout.dp == 1 or self.nodes == 1:
            return ""
        return f"data ranks of vLLM over {self.nodes} nodes are not started by partitune; a runner of kind command can"

    @property
    def _program(self) -> tuple[str, ...]:
        """How the engine is started at this site."""
        return self.runner.program(self.runner.engine_command) or self.command.program

    def _common(self, deployment: Deployment) -> tuple[str, ...]:
        """The words that all nodes have."""
        argv = self.problem.engine.serve_arguments(served_model(self.problem)[0], deployment)
        return (*self._program, *argv[len(self.command.program) :])

    @property
    def _tool(self) -> str:
        return self.runner.benchmark.tool

    @property
    def _load_program(self) -> tuple[str, ...]:
        """As the runner says; else the tool of the installation that serves, where it is the same program."""
        chosen, usual = self.runner.benchmark.command, PROGRAMS[self._tool]
        if chosen or self._tool != self.runner.driver:
            return self.runner.program(chosen) or usual
        # A program of one word is the whole command of the site, be it `docker run … vllm`; else its first is shared.
        return self._program if len(usual) == 1 else (self._program[0], *usual[1:])

    @property
    def _load_arguments(self) -> tuple[str, ...]:
        found: list[str] = []
        for name, value in self.runner.benchmark.arguments.items():
            option = "--" + name.replace("_", "-")
            found += [option] if value is True else [] if value is False else [f"{option}={value}"]
        return tuple(found)

    def deployment(self, candidate: Candidate) -> Deployment:
        """The engine start of `candidate` with the flags of this site."""
        deployment = ResolvedCandidate(self.problem, candidate).deployment
        return replace(deployment, knobs={**deployment.knobs, **self.runner.arguments})

    def _variables(self, deployment: Deployment) -> dict[str, str]:
        """Variables of the site, of the candidate, and what was forwarded."""
        return {**start_variables(self.problem, deployment), **self.runner.env, **self.forwarded}

    @property
    def secrets(self) -> frozenset[str]:
        """Variables whose values are never shown."""
        return frozenset(self.forwarded)

    @property
    def _stage_nodes(self) -> tuple[int, ...] | None:
        """Of a deployment with replicas a stage has several."""
        if len(self.problem.placement.seats) > 1 or self._order_is_open:
            return None
        return self.problem.placement.nodes

    @property
    def _order_is_open(self) -> bool:
        return self.placed_by_ray and self.nodes > 2

    def _notes(self) -> Iterator[str]:
        if self._order_is_open:
            yield (
                "vLLM's Ray executor puts the node of the server first and the others in the order of Ray's node ids: "
                "which stage stands where is read from the log afterwards"
            )
        yield from served_model(self.problem)[1]
