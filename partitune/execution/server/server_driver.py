"""A real engine as a driver: plan, start, prove, measure, and leave nothing behind.

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
from partitune.errors import NodeLost, RunError, Unhealthy
from partitune.execution.processes.ledger import state_folder
from partitune.execution.processes.node import Node, NodeSource
from partitune.execution.readout.bench_results import BenchResult
from partitune.execution.readout.engine_readout import Counters
from partitune.execution.server import deployment_check as what_runs
from partitune.execution.server.launch_recipe import LaunchRecipe
from partitune.execution.server.load_run import counters, run_load
from partitune.execution.server.measurement import measured
from partitune.execution.server.preflight import prepare
from partitune.execution.server.reference_text import ReferenceTexts
from partitune.execution.server.startup import LOOK_S, RunningServer
from partitune.execution.server.windows import is_hopeless, read_window

#: Seconds in which the family of a server that was killed is gone: keepers end the rest of it, and say so.
_DEATH_S = 5.0


@dataclass(slots=True)
class _Gathered:
    """What the servers of one candidate gave, one after the other."""

    windows: list[list[BenchResult]] = field(default_factory=list)  # one under every load, again and again
    launches_s: list[float] = field(default_factory=list)
    running: what_runs.Running | None = None
    counters: Counters = field(default_factory=Counters)


@dataclass(frozen=True, slots=True)
class ServerDriver:
    """Measures candidates of one recipe on machines of one source."""

    recipe: LaunchRecipe
    source: NodeSource
    references: Path = field(default_factory=lambda: state_folder() / "references")

    def prepare(self) -> tuple[str, ...]:
        """Clean the machines and hold the engine that is installed there against the study (`preflight`)."""
        return prepare(self.recipe, self.source)

    def repeated(self, repeat: int) -> ServerDriver:
        """The driver of run `repeat`."""
        return replace(self, recipe=self.recipe.repeated(repeat))

    def measure(self, candidate: Candidate) -> Measurement:
        """Start `candidate` as often as the runner says, and measure every start."""
        recipe = self.recipe.on_layout_of(candidate)
        if recipe is not self.recipe:
            return replace(self, recipe=recipe).measure(candidate)
        deadline_s = time.monotonic() + recipe.runner.timeout_s
        found = _Gathered()
        with self.source.nodes(recipe.count) as nodes:
            for _ in range(recipe.runner.fresh_servers):
                self._measure_one(candidate, nodes, deadline_s, found)
                if is_hopeless(recipe.problem, found.windows[-1]):
                    break
        assert found.running is not None  # noqa: S101 - there is at least one start
        weights = {stage: row.weight_bytes for stage, row in found.running.stages.items() if row.weight_bytes}
        weights = weights or {stage: int(gib * 2**30) for (stage, _), gib in found.running.reading.weights_gib.items()}
        regime = what_runs.regime(recipe.problem, recipe.deployment(candidate), found.running)
        extra = {"launch_s": sum(found.launches_s) / len(found.launches_s)}
        return measured(recipe.problem, candidate, found.windows, found.counters, regime, weights, extra)

    def _measure_one(self, candidate: Candidate, nodes: Sequence[Node], deadline_s: float, found: _Gathered) -> None:
        server = self._plan(candidate, nodes, deadline_s)
        begin = time.monotonic()
        try:
            server.start()
            server.await_ready()
            server.prove_ours()
            text = server.probe()
            found.launches_s.append(time.monotonic() - begin)
            self._check(candidate, server, text, found)
            self._measure_windows(server, found)
        except RunError as error:
            with suppress(NodeLost):
                error.detail = error.detail or server.last_words()
            raise
        finally:
            # Figures stand and what went wrong first is the reason; the machine's own ledger knows what is left.
            with suppress(NodeLost):
                server.stop()

    def _plan(self, candidate: Candidate, nodes: Sequence[Node], deadline_s: float) -> RunningServer:
        runner = self.recipe.runner
        port = nodes[0].free_port() if runner.port == "auto" else runner.port
        plan = self.recipe.plan(
            candidate,
            trial=f"{candidate.digest}-{uuid.uuid4().hex[:8]}",
            hosts=(runner.nodes.hosts or [node.host for node in nodes])[: len(nodes)],
            port=port,
            rendezvous_port=nodes[0].free_port(),
        )
        return RunningServer(plan, nodes, runner.limits_s, deadline_s, port_may_move=runner.port == "auto")

    def _check(self, candidate: Candidate, server: RunningServer, text: str, found: _Gathered) -> None:
        recipe = self.recipe
        running = what_runs.look(server)
        what_runs.check(recipe.problem, recipe.deployment(candidate), server.plan, running, _counters(server))
        if recipe.runner.reference_text:
            arguments = dict(recipe.runner.arguments)
            ReferenceTexts(self.references).check(recipe.problem, candidate, arguments, text)
        found.running = running

    def _measure_windows(self, server: RunningServer, found: _Gathered) -> None:
        recipe = self.recipe
        if warmup := recipe.runner.benchmark.warmup_requests:
            for part in recipe.parts:
                result = server.nodes[0].scratch_file(server.plan.trial, "warmup.json")
                run_load(server, part.load_process(server.plan, seed=part.warmup_seed, result=result, requests=warmup))
        for turn in range(recipe.runner.benchmark.windows):
            found.windows.append([self._window(part, server, part.window_seeds[turn], found) for part in recipe.parts])
            if is_hopeless(recipe.problem, found.windows[-1]):
                return  # it misses a limit whatever the other windows say

    def _window(self, part: LaunchRecipe, server: RunningServer, seed: int, found: _Gathered) -> BenchResult:
        """One measured run of the load of `part`."""
        result = server.nodes[0].scratch_file(server.plan.trial, f"window-{seed}.json")
        before = _counters(server)
        run_load(server, part.load_process(server.plan, seed=seed, result=result))
        found.counters = _counters(server)
        return read_window(part, server.nodes[0].read_file(result), result, before, found.counters)


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
