"""A real engine as a driver: prepare, start, prove, measure, and leave nothing behind.

Decision: one life cycle for every engine. A server that started is not yet measured: it has to be ours, to answer, to
hold the layers where they were asked for, and to say what the default partition says. A measured window has to pass the
gates. Whatever goes wrong is an error with the engine's own reason, and whatever happens, the last step is the same:
end every process that was started, and prove that they are gone; a machine where that fails is quarantined by its own
ledger, and a result that was measured before still counts.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from partitune.candidate import Candidate, Measurement
from partitune.engines.readout import Counters
from partitune.errors import NodeLost, RunError
from partitune.execution.processes.ledger import state_folder
from partitune.execution.processes.node import Node
from partitune.execution.ray.groups import RayGroup
from partitune.execution.readout.bench_results import BenchResult
from partitune.execution.server import deployment_check
from partitune.execution.server.gates import read_window
from partitune.execution.server.measurement import is_hopeless, measure_windows, measured
from partitune.execution.server.running_server import RunningServer
from partitune.execution.server.setup import LoadCommands, Setup, SetupDriver
from partitune.execution.server.setup_checks import prepare
from partitune.hardware.gpus import GIB


@dataclass(frozen=True, slots=True)
class ServerDriver(SetupDriver):
    """Measures candidates on servers that it starts."""

    references: Path = field(default_factory=lambda: state_folder() / "references")

    @property
    def group(self) -> RayGroup | None:
        """The nodes of a slot, where the runner has Ray give them."""
        return self.setup.reservation if self.setup.runner.nodes.start == "ray" else None

    def prepare(self) -> tuple[str, ...]:
        """Clean the machines and hold the engine that is installed there against the study."""
        return prepare(self.setup, self.source)

    def measure(self, candidate: Candidate) -> Measurement:
        """Start `candidate` as often as the runner says, and measure every start."""
        setup = self.setup.on_layout_of(candidate)
        starts = _Starts(setup, candidate, self.references, time.monotonic() + setup.runner.timeout_s)
        with self.source.nodes(setup.server.groups) as nodes:
            for _ in range(setup.runner.fresh_servers):
                starts.measure_one(nodes)
                if is_hopeless(setup.problem, starts.windows[-1]):
                    break
        return starts.measurement()


@dataclass(slots=True)
class _Starts:
    """The servers of one candidate, one after the other, and what they gave."""

    setup: Setup
    candidate: Candidate
    references: Path
    deadline_s: float  # on the monotonic clock
    windows: list[list[BenchResult]] = field(default_factory=list)  # one under every load, again and again
    launches_s: list[float] = field(default_factory=list)
    running: deployment_check.Running | None = None
    counters: Counters = field(default_factory=Counters)

    def measurement(self) -> Measurement:
        """All of it as one measurement."""
        problem, running = self.setup.problem, self.running
        assert running is not None  # noqa: S101 - there is at least one start
        weights = {stage: row.weight_bytes for stage, row in running.stages.items() if row.weight_bytes}
        weights = weights or {stage: int(gib * GIB) for (stage, _), gib in running.reading.weights_gib.items()}
        regime = deployment_check.flow_name(problem, self.setup.server.deployment(self.candidate), running)
        extra = {"launch_s": sum(self.launches_s) / len(self.launches_s)}
        return measured(problem, self.candidate, self.windows, self.counters, regime, weights, extra)

    def measure_one(self, nodes: Sequence[Node]) -> None:
        """Start one, measure it, and leave nothing of it. Raises RunError."""
        server = self._server(nodes)
        begin = time.monotonic()
        try:
            server.start()
            server.await_ready()
            server.prove_ours()
            text = server.probe()
            self.launches_s.append(time.monotonic() - begin)
            self._check(server, text)
            self._warm_up(server)
            self.windows += measure_windows(self.setup, partial(self._window, server))
        except RunError as error:
            with suppress(NodeLost):
                error.detail = error.detail or server.last_words()
            raise
        finally:
            # Figures stand and what went wrong first is the reason; the machine's own ledger knows what is left.
            with suppress(NodeLost):
                server.stop()

    def _server(self, nodes: Sequence[Node]) -> RunningServer:
        runner = self.setup.runner
        launch = self.setup.server.launch(
            self.candidate,
            trial=f"{self.candidate.digest}-{uuid.uuid4().hex[:8]}",
            hosts=(runner.nodes.hosts or [node.host for node in nodes])[: len(nodes)],
            port=nodes[0].free_port() if runner.port == "auto" else runner.port,
            rendezvous_port=nodes[0].free_port(),
        )
        return RunningServer(launch, self.setup.problem.engine.readout, nodes, runner.limits_s, self.deadline_s)

    def _check(self, server: RunningServer, text: str) -> None:
        problem, runner = self.setup.problem, self.setup.runner
        self.running = deployment_check.look(server)
        deployment = self.setup.server.deployment(self.candidate)
        deployment_check.check(problem, deployment, server.launch, self.running, server.counters())
        if runner.reference_text:
            deployment_check.check_text(self.references, problem, self.candidate, runner.arguments, text)

    def _warm_up(self, server: RunningServer) -> None:
        if warmup := self.setup.runner.benchmark.warmup_requests:
            for load in self.setup.loads:
                result = server.nodes[0].scratch_file(server.launch.trial, "warmup.json")
                server.run_load(load.process(server.launch, seed=load.warmup_seed, result=result, requests=warmup))

    def _window(self, server: RunningServer, load: LoadCommands, seed: int) -> BenchResult:
        """One measured run of `load`."""
        result = server.nodes[0].scratch_file(server.launch.trial, f"window-{seed}.json")
        before = server.counters()
        server.run_load(load.process(server.launch, seed=seed, result=result))
        self.counters = server.counters()
        return read_window(load, server.nodes[0].read_file(result), result, before, self.counters)
