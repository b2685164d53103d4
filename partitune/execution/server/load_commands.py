"""The load generator's words: one load of the search space, said to the runner's tool.

Decision: windows have seeds of their own, the same for every candidate; the warm-up has one that no window has, as a
prompt that was sent before would be answered from the prefix cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partitune.engines.deployment import environment_flags
from partitune.engines.launch import LoadGenerator, LoadRun, Target
from partitune.execution.processes.launch import LaunchCommands, ProcessCommand
from partitune.execution.server.load_generators import LOAD_GENERATORS
from partitune.execution.server.server_commands import ServerCommands
from partitune.export.deploy import served_model
from partitune.planning.problem import Problem
from partitune.spec.runner import Benchmark
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
        return LOAD_GENERATORS[self.benchmark.tool]

    @property
    def benchmark(self) -> Benchmark:
        """What the runner says about it."""
        return self.server.runner.benchmark

    @property
    def window_seeds(self) -> tuple[int, ...]:
        """Seeds of the measured windows, the same for every candidate."""
        return tuple(range(self.first_seed, self.first_seed + self.benchmark.windows))

    @property
    def warmup_seed(self) -> int:
        """A seed that no window has."""
        return self.first_seed + _WARMUP

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
        return self.server.process(launch.processes[0].host, (*self._program, *words), env)

    def words(
        self, url: str, served_name: str, *, seed: int, result: str, requests: int | None = None
    ) -> tuple[str, ...]:
        """The words behind the load generator's program."""
        model, _ = served_model(self.problem)
        target = Target(url, self.problem.engine.name, model, served_name, self.server.flags)
        run = LoadRun(requests or len(self.problem.load.requests), seed, result, self.problem.goodput)
        return (*self.tool.words(self.load, target, run), *_further(self.benchmark.arguments))

    @property
    def _program(self) -> tuple[str, ...]:
        """As the runner says; else the tool of the installation that serves, where it is the same program."""
        chosen, usual = self.benchmark.command, self.tool.program
        if chosen or self.tool.name != self.server.runner.driver:
            return self.server.runner.program(chosen) or usual
        # A program of one word is the whole command of the site, be it `docker run … vllm`; else its first is shared.
        return self.server.program if len(usual) == 1 else (self.server.program[0], *usual[1:])


def _further(arguments: Mapping[str, object]) -> list[str]:
    options = {"--" + name.replace("_", "-"): value for name, value in arguments.items() if value is not False}
    return [option if value is True else f"{option}={value}" for option, value in options.items()]
