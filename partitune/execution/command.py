"""Any program that measures one candidate: a script for Slurm, Kubernetes, or whatever starts servers at a site.

Decision: the program gets files (the same env-file and engine config that `partitune export` writes, and the words of
the load generator) and leaves one: the load generator's own result, which passes the same gates as that of a server of
ours. It is started from a list of words, never by a shell, and under a keeper: it ends with the trial, and with
partitune. What it started elsewhere is its own to end when it gets SIGTERM.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from partitune.candidate import Candidate, Measurement
from partitune.errors import LaunchFailed, Refused, SpecError, TimedOut
from partitune.execution.processes.launch import LaunchPlan, ProcessPlan
from partitune.execution.processes.node import Node, NodeSource
from partitune.execution.readout.bench_results import BenchResult
from partitune.execution.readout.engine_readout import Counters
from partitune.execution.readout.failure_causes import failure_of, last_lines
from partitune.execution.server.launch_recipe import LaunchRecipe
from partitune.execution.server.measurement import measured
from partitune.execution.server.windows import is_hopeless, read_window
from partitune.export.deploy import export, served_model
from partitune.partition import format_partition
from partitune.spec.yaml.words import filled

_NAME = "command"
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class CommandDriver:
    """Measures candidates with the runner's `command`."""

    recipe: LaunchRecipe
    source: NodeSource

    def repeated(self, repeat: int) -> CommandDriver:
        """The driver of run `repeat`."""
        return replace(self, recipe=self.recipe.repeated(repeat))

    def measure(self, candidate: Candidate) -> Measurement:
        """Run the command once a window and load; each run is a start of its own."""
        recipe = self.recipe.on_layout_of(candidate)
        deadline = time.monotonic() + recipe.runner.timeout_s
        windows: list[list[BenchResult]] = []
        with self.source.nodes(1) as (node,):
            for turn in range(recipe.runner.benchmark.windows):
                windows.append([])
                for alone in self.parts:
                    part, trial = alone.recipe, f"{candidate.digest}-{uuid.uuid4().hex[:8]}"
                    plan, result = alone.process(candidate, node, trial, part.window_seeds[turn])
                    _run(node, plan, deadline, recipe.runner.timeout_s, recipe.runner.limits_s.stop)
                    windows[-1].append(read_window(part, node.read_file(result), result, None, None))
                if is_hopeless(recipe.problem, windows[-1]):
                    break
        regime = recipe.problem.engine.flow(recipe.deployment(candidate)).name
        return measured(recipe.problem, candidate, windows, Counters(), regime, {}, {})

    @property
    def parts(self) -> tuple[CommandDriver, ...]:
        """This driver under each load alone."""
        return tuple(replace(self, recipe=part) for part in self.recipe.parts)

    def process(self, candidate: Candidate, node: Node, trial: str, seed: int) -> tuple[LaunchPlan, str]:
        """Write the files of one run under the only load; the plan, and the file that its result will be in.

        Raises:
            Refused: the engine's own rules forbid it, or it cannot be written down.
        """
        recipe = self.recipe.on_layout_of(candidate)
        runner, problem = recipe.runner, recipe.problem
        recipe.check(candidate)
        env_file, result = Path(node.scratch_file(trial, "deploy.env")), node.scratch_file(trial, "result.json")
        try:
            exported = export(problem, candidate, env_file, ())
        except SpecError as error:
            raise Refused(str(error), excess=1.0) from error
        port = node.free_port() if runner.port == "auto" else runner.port
        served_name = f"partitune-{trial}"
        load_file = Path(node.scratch_file(trial, "load.txt"))
        words = recipe.load_words(f"http://127.0.0.1:{port}", served_name, seed=seed, result=result)
        load_file.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        values = {
            "partition": format_partition(candidate.partition),
            "env_file": str(exported.env_file),
            "config": str(exported.config),
            "load_file": str(load_file),
            "result": result,
            "model": served_model(problem)[0],
            "served_name": served_name,
            "trial": trial,
            "port": str(port),
            "seed": str(seed),
            "nodes": str(recipe.nodes),
            "gpus_per_node": str(recipe.node_gpus),
            "folder": str(runner.absolute(".")),
        }
        argv = runner.program(filled(runner.command, values))
        env = {**runner.env, **recipe.forwarded}
        process = ProcessPlan(0, node.host, argv, env, recipe.command.removed, recipe.secrets)
        plan = LaunchPlan(
            trial=trial,
            engine=problem.engine.name,
            served_name=served_name,
            port=port,
            processes=(process,),
            partition=candidate.partition,
            partition_env=problem.engine.partition_env,
            notes=served_model(problem)[1],
            sees_port=False,
        )
        return plan, result


def _run(node: Node, plan: LaunchPlan, deadline: float, limit_s: float, grace_s: float) -> None:
    """Run it to its end.

    Raises:
        TimedOut: it takes longer than a candidate may.
        RunError: it ended with a status; the first cause its output names.
    """
    node.start(_NAME, plan.trial, plan.processes[0], None)
    try:
        while (state := node.state(_NAME)).running:
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"the command took longer than timeout_s ({limit_s:g} s)", detail=last_lines([node.log(_NAME)])
                )
            time.sleep(_LOOK_S)
        if state.exit_code != 0:
            log = node.log(_NAME)
            status = f"the command ended with status {state.exit_code}"
            raise failure_of([log]) or LaunchFailed(f"{status}; its log names no cause", detail=last_lines([log]))
    finally:
        node.stop(_NAME, grace_s)
