"""One candidate, launched or only shown: what `partitune launch` does.

Decision: the same driver, the same checks and the same pool as a search, for one candidate. A dry run needs no engine
and no cluster; addresses of nodes that only Ray knows are stood in for by those that are reserved for examples.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from partitune.candidate import Candidate, Result, Submission
from partitune.errors import SpecError
from partitune.execution.choice import choose_driver, choose_pool
from partitune.execution.command import CommandDriver, command_for
from partitune.execution.driver import Driver
from partitune.execution.processes.launch import LaunchCommands, ProcessCommand
from partitune.execution.processes.masking import mask
from partitune.execution.processes.node import Node
from partitune.execution.server.server_driver import ServerDriver
from partitune.planning.problem import Problem
from partitune.search.budget import Progress, StoppingRule
from partitune.search.events import Watcher
from partitune.search.loop import search
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace

_TRIAL = "dry-run"
#: What the engines listen on when they are told nothing.
_USUAL_PORT, _RENDEZVOUS_PORT = 8000, 29501


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a launch would start, command by command."""

    commands: LaunchCommands
    loads: tuple[ProcessCommand, ...]  # one a load; none where the command runs them
    files: dict[str, str] = field(default_factory=dict)  # that the command would find, by name


def starting_driver(problem: Problem, space: SearchSpace, runner: Runner) -> Driver:
    """The driver of a runner that starts something.

    Raises:
        SpecError: it starts nothing, or does not fit the search space.
    """
    if runner.driver == "simulator":
        raise SpecError(f"--runner: {runner.name} starts nothing; see `partitune explain`, or name a runner that does")
    return choose_driver(problem, space, runner)


@dataclass(slots=True)
class _Once:
    """Asks for one candidate and keeps what it gave."""

    candidate: Candidate
    results: list[Result] = field(default_factory=list)

    def ask(self) -> Submission:
        """The one candidate; the budget ends the search after it."""
        return Submission(self.candidate)

    def tell(self, submission: Submission, result: Result) -> None:  # noqa: ARG002 - there is one
        """Keep the result; nothing else follows from it."""
        self.results.append(result)


def launch(driver: Driver, runner: Runner, candidate: Candidate, ray_address: str | None, watcher: Watcher) -> Result:
    """Measure `candidate` once; once more where infrastructure took it.

    Raises:
        SpecError: the installed engine lacks a flag; ClusterError: Ray, or too few GPUs.
    """
    once = _Once(candidate)
    with choose_pool(driver, runner, "ray", ray_address) as pool:
        for line in pool.prepare():
            watcher.said(line)
        search(once, pool, lambda *_: 0, StoppingRule(1), Progress(), watcher)  # nothing is stored
        return once.results[0]


def dry_run(driver: Driver, runner: Runner, candidate: Candidate) -> DryRun:
    """What would be started for `candidate`; nothing is.

    Raises:
        SpecError: a driver that alone knows what it starts.
        Refused: the engine's own rules forbid the candidate.
    """
    if isinstance(driver, CommandDriver):
        return _of_command(driver, candidate)
    if not isinstance(driver, ServerDriver):
        raise SpecError(f"--dry-run: runner {runner.name} has a class of its own, which alone knows what it starts")
    setup = driver.setup.on_layout_of(candidate)
    groups, local = setup.server.groups, runner.nodes.start == "local"
    examples = ("127.0.0.1" if local else f"192.0.2.{group + 1}" for group in range(groups))
    hosts = (runner.nodes.hosts or tuple(examples))[:groups]
    port = _USUAL_PORT if runner.port == "auto" else runner.port
    commands = setup.server.launch(candidate, trial=_TRIAL, hosts=hosts, port=port, rendezvous_port=_RENDEZVOUS_PORT)
    notes = [*commands.notes]
    if not local and not runner.nodes.hosts:
        notes.append(f"{', '.join(hosts)} stand{'s' * (len(hosts) == 1)} for the nodes that Ray will give")
    if name := setup.server.engine.key_variable:
        notes.append(
            f"{name}, and the same as {setup.loads[0].tool.key_variable}, is a random key of the study: set your own"
        )
    if runner.port == "auto":
        notes.append(f"{port} stands for a free port")
    if runner.benchmark.warmup_requests:
        notes.append(f"{runner.benchmark.warmup_requests} requests of another seed go before the load below")
    loads = [load.process(commands, seed=load.window_seeds[0], result="./result.json") for load in setup.loads]
    return _masked(DryRun(replace(commands, notes=tuple(notes)), tuple(loads)))


def _of_command(driver: CommandDriver, candidate: Candidate) -> DryRun:
    """The files are written for a moment, as the command would find them."""
    with tempfile.TemporaryDirectory(prefix="partitune-") as folder:
        first, *others = driver.setup.on_layout_of(candidate).loads
        node = Node("127.0.0.1", Path(folder))
        commands, _ = command_for(first, candidate, node, _TRIAL, first.window_seeds[0])
        files = {str(path): path.read_text() for path in sorted((Path(folder) / "trials" / _TRIAL).iterdir())}
    if others:
        of_others = f"the command runs once for each of {1 + len(others)} loads; these are the files of the first"
        commands = replace(commands, notes=(*commands.notes, of_others))
    return _masked(DryRun(commands, (), files))


def _masked(shown: DryRun) -> DryRun:
    """Without the secrets that a person wrote into words or variables."""

    def masked(process: ProcessCommand) -> ProcessCommand:
        env = {name: mask(value) for name, value in process.env.items()}
        return replace(process, argv=tuple(map(mask, process.argv)), env=env)

    commands = replace(shown.commands, processes=tuple(map(masked, shown.commands.processes)))
    files = {name: mask(text) for name, text in shown.files.items()}
    return DryRun(commands, tuple(map(masked, shown.loads)), files)
