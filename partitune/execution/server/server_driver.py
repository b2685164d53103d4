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
from dataclasses import dataclass, field, replace
from pathlib import Path

from partitune.candidate import Candidate, Measurement
from partitune.engines.readout import Counters
from partitune.errors import NodeLost, RunError, Unhealthy
from partitune.execution.processes.ledger import state_folder
from partitune.execution.processes.node import Node, NodeSource
from partitune.execution.ray.groups import RayGroup
from partitune.execution.readout.bench_results import BenchResult
from partitune.execution.server import deployment_check
from partitune.execution.server.load_commands import LoadCommands
from partitune.execution.server.measure import counters, run_load
from partitune.execution.server.measurement import measured
from partitune.execution.server.prepare import prepare
from partitune.execution.server.reference_text import check_text
from partitune.execution.server.setup import Setup
from partitune.execution.server.start import LOOK_S, RunningServer
from partitune.execution.server.windows import is_hopeless, read_window

#: Seconds in which the family of a server that was killed is gone: supervisors end the rest of it, and say so.
_DEATH_S = 5.0


@dataclass(slots=True)
class _Gathered:
    """What the servers of one candidate gave, one after the other."""

    windows: list[list[BenchResult]] = field(default_factory=list)  # one under every load, again and again
    launches_s: list[float] = field(default_factory=list)
    running: deployment_check.Running | None = None
    counters: Counters = field(default_factory=Counters)


@dataclass(frozen=True, slots=True)
class ServerDriver:
    """Measures candidates of one setup on machines of one source."""

    setup: Setup
    source: NodeSource
    references: Path = field(default_factory=lambda: state_folder() / "references")

    @property
    def group(self) -> RayGroup | None:
        """The nodes of a slot, where the runner has Ray give them."""
        reserved, nodes = self.setup.reservation, self.setup.runner.nodes
        return RayGroup(reserved.nodes, reserved.gpus, nodes.hosts) if nodes.start == "ray" else None

    def prepare(self) -> tuple[str, ...]:
        """Clean the machines and hold the engine that is installed there against the study ."""
        return prepare(self.setup, self.source)

    def repeated(self, repeat: int) -> ServerDriver:
        """The driver of run `repeat`."""
        return replace(self, setup=self.setup.repeated(repeat))

    def measure(self, candidate: Candidate) -> Measurement:
        """Start `candidate` as often as the runner says, and measure every start."""
        setup = self.setup.on_layout_of(candidate)
        if setup is not self.setup:
            return replace(self, setup=setup).measure(candidate)
        deadline_s = time.monotonic() + setup.runner.timeout_s
        gathered = _Gathered()
        with self.source.nodes(setup.server.groups) as nodes:
            for _ in range(setup.runner.fresh_servers):
                self._measure_one(candidate, nodes, deadline_s, gathered)
                if is_hopeless(setup.problem, gathered.windows[-1]):
                    break
        assert gathered.running is not None  # noqa: S101 - there is at least one start
        running = gathered.running
        weights = {stage: row.weight_bytes for stage, row in running.stages.items() if row.weight_bytes}
        weights = weights or {stage: int(gib * 2**30) for (stage, _), gib in running.reading.weights_gib.items()}
        regime = deployment_check.flow_name(setup.problem, setup.deployment(candidate), running)
        extra = {"launch_s": sum(gathered.launches_s) / len(gathered.launches_s)}
        return measured(setup.problem, candidate, gathered.windows, gathered.counters, regime, weights, extra)

    def _measure_one(self, candidate: Candidate, nodes: Sequence[Node], deadline_s: float, gathered: _Gathered) -> None:
        server = self._server(candidate, nodes, deadline_s)
        begin = time.monotonic()
        try:
            server.start()
            server.await_ready()
            server.prove_ours()
            text = server.probe()
            gathered.launches_s.append(time.monotonic() - begin)
            self._check(candidate, server, text, gathered)
            self._measure_windows(server, gathered)
        except RunError as error:
            with suppress(NodeLost):
                error.detail = error.detail or server.last_words()
            raise
        finally:
            # Figures stand and what went wrong first is the reason; the machine's own ledger knows what is left.
            with suppress(NodeLost):
                server.stop()

    def _server(self, candidate: Candidate, nodes: Sequence[Node], deadline_s: float) -> RunningServer:
        runner = self.setup.runner
        launch = self.setup.server.launch(
            candidate,
            trial=f"{candidate.digest}-{uuid.uuid4().hex[:8]}",
            hosts=(runner.nodes.hosts or [node.host for node in nodes])[: len(nodes)],
            port=nodes[0].free_port() if runner.port == "auto" else runner.port,
            rendezvous_port=nodes[0].free_port(),
        )
        readout = self.setup.problem.engine.readout
        return RunningServer(launch, readout, nodes, runner.limits_s, deadline_s, port_may_move=runner.port == "auto")

    def _check(self, candidate: Candidate, server: RunningServer, text: str, gathered: _Gathered) -> None:
        problem, runner = self.setup.problem, self.setup.runner
        running = deployment_check.look(server)
        deployment = self.setup.deployment(candidate)
        deployment_check.check(problem, deployment, server.launch, running, _counters(server))
        if runner.reference_text:
            check_text(self.references, problem, candidate, runner.arguments, text)
        gathered.running = running

    def _measure_windows(self, server: RunningServer, gathered: _Gathered) -> None:
        setup = self.setup
        if warmup := setup.runner.benchmark.warmup_requests:
            for load in setup.loads:
                result = server.nodes[0].scratch_file(server.launch.trial, "warmup.json")
                run_load(server, load.process(server.launch, seed=load.warmup_seed, result=result, requests=warmup))
        for turn in range(setup.runner.benchmark.windows):
            gathered.windows.append([self._window(load, server, turn, gathered) for load in setup.loads])
            if is_hopeless(setup.problem, gathered.windows[-1]):
                return  # it misses a limit whatever the other windows say

    def _window(self, load: LoadCommands, server: RunningServer, turn: int, gathered: _Gathered) -> BenchResult:
        """One measured run of `load`."""
        seed = load.window_seeds[turn]
        result = server.nodes[0].scratch_file(server.launch.trial, f"window-{seed}.json")
        before = _counters(server)
        run_load(server, load.process(server.launch, seed=seed, result=result))
        gathered.counters = _counters(server)
        return read_window(load, server.nodes[0].read_file(result), result, before, gathered.counters)


def _counters(server: RunningServer) -> Counters:
    """The engine's counters. Where nobody answers as the engine died, what ended it is raised and not the silence."""
    try:
        return counters(server)
    except Unhealthy:
        deadline_s = time.monotonic() + _DEATH_S
        while time.monotonic() < deadline_s:
            server.check_alive()
            time.sleep(LOOK_S)
        raise
