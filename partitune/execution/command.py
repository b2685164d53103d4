"""Any program that measures one candidate: a script for Slurm, Kubernetes, or whatever starts servers at a site.

Decision: the program gets files (the same env-file and engine config that `partitune export` writes, and the words of
the load generator) and leaves one: the load generator's own result, which passes the same gates as that of a server of
ours. It is started from a list of words, never by a shell, and under a supervisor: it ends with the trial, and with
partitune. What it started elsewhere is its own to end when it gets SIGTERM.
Exit status 0 means measured, 75 that the site failed and nothing is known about the candidate, any other that the
candidate failed.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from partitune.candidate import Candidate, Measurement
from partitune.engines.readout import Counters
from partitune.errors import LaunchFailed, NodeLost, Refused, SpecError, TimedOut
from partitune.execution.processes.launch import LaunchCommands
from partitune.execution.processes.node import Node, run_to_end
from partitune.execution.readout.bench_results import BenchResult
from partitune.execution.readout.failure_causes import find_cause, last_lines
from partitune.execution.server.gates import read_window
from partitune.execution.server.measurement import measure_windows, measured
from partitune.execution.server.setup import LoadCommands, SetupDriver
from partitune.export.deploy import export, served_model
from partitune.spec.own_file import own_file
from partitune.spec.runner import filled

_NAME = "command"
#: Exit status of a command whose scheduler or machines failed: nothing is known about the candidate (sysexits.h's
#: EX_TEMPFAIL).
SITE_FAILED = 75


class CommandDriver(SetupDriver):
    """Measures candidates with the runner's `command`."""

    def measure(self, candidate: Candidate) -> Measurement:
        """Run the command once a window and load; each run is a start of its own.

        Raises:
            TimedOut: it takes longer than a candidate may.
            NodeLost: it ended with status 75.
            RunError: it ended with a status (the first cause its output names), or its result cannot be trusted.
        """
        setup = self.setup.on_layout_of(candidate)
        problem, runner, readout = setup.problem, setup.runner, setup.problem.engine.readout
        deadline_s = time.monotonic() + runner.timeout_s
        with self.source.nodes(1) as (node,):

            def look() -> None:
                if time.monotonic() > deadline_s:
                    raise TimedOut(
                        f"the command took longer than timeout_s ({runner.timeout_s:g} s)",
                        detail=last_lines([node.log(_NAME)], readout),
                    )

            def run(load: LoadCommands, seed: int) -> BenchResult:
                trial = f"{candidate.digest}-{uuid.uuid4().hex[:8]}"
                launch, result = command_for(load, candidate, node, trial, seed)
                code, log = run_to_end(node, _NAME, trial, launch.processes[0], runner.limits_s.stop, look)
                if code == SITE_FAILED:
                    reason = f"the command ended with status {code}: the site failed, not the candidate"
                    raise NodeLost(reason, detail=last_lines([log], readout))
                if code != 0:
                    failure = f"the command ended with status {code}; its log names no cause"
                    cause = find_cause([log], readout)
                    raise cause.error() if cause else LaunchFailed(failure, detail=last_lines([log], readout))
                return read_window(load, node.read_file(result), result, None, None)

            windows = measure_windows(setup, run)
        regime = problem.engine.flow(setup.server.deployment(candidate)).name
        return measured(problem, candidate, windows, Counters(), regime, {}, {})


def command_for(
    load: LoadCommands, candidate: Candidate, node: Node, trial: str, seed: int
) -> tuple[LaunchCommands, str]:
    """Write the files of one run under `load`; what is started, and the file that its result will be in.

    Raises:
        Refused: the engine's own rules forbid it, or it cannot be written down.
    """
    server, problem = load.server, load.problem
    runner = server.runner
    server.check(candidate)
    env_file, result = Path(node.scratch_file(trial, "deploy.env")), node.scratch_file(trial, "result.json")
    try:
        exported = export(problem, candidate, env_file, ())
    except SpecError as error:
        raise Refused(str(error), excess=1.0) from error
    port = node.free_port() if runner.port == "auto" else runner.port
    served_name = f"partitune-{trial}"
    load_file = own_file(Path(node.scratch_file(trial, "load.txt")))
    words = load.words(f"http://127.0.0.1:{port}", served_name, seed=seed, result=result)
    load_file.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    model, notes = served_model(problem)
    values = {
        "partition": candidate.partition_text,
        "env_file": str(exported.env_file),
        "config": str(exported.config),
        "load_file": str(load_file),
        "result": result,
        "model": model,
        "served_name": served_name,
        "trial": trial,
        "port": str(port),
        "seed": str(seed),
        "nodes": str(problem.placement.node_count),
        "engine_version": str(problem.version),
        "gpus_per_node": str(problem.layout.gpus // problem.placement.node_count),
        "folder": str(runner.absolute(".")),
    }
    launch = LaunchCommands(
        trial=trial,
        engine=problem.engine.name,
        served_name=served_name,
        port=port,
        processes=(server.process(node.host, runner.program(filled(runner.command, values))),),
        partition=candidate.partition,
        notes=notes,
        sees_port=False,
    )
    return launch, result
