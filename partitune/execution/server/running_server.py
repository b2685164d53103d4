"""One start of an engine, from before its first process to its last: awaited, proved ours, put under load, ended.

Decision: an answer proves little. Health says 200 while another job's server holds the port, while every request hangs,
while the layers lie elsewhere than asked. So a start is over only when the name that we alone gave is served, our own
processes (and nobody else) hold the port, and one request was answered. Whatever ends before that is explained by the
engine's own earliest error, over all nodes; the time of a phase says what took too long.

A load generator is a program of its own under a supervisor of its own, on the first node, and would wait for ever while
the engine died, hung or crawled. So the engine's processes and its token counters are looked at meanwhile: no token
while requests run is a stall, whatever the health page says. A generator that ends says little by its exit status (it
is 0 when every request failed); its file is judged by `gates`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from partitune.engines.readout import Counters, Phase, Readout
from partitune.errors import BenchmarkFailed, LaunchFailed, NodeLost, RunError, Stalled, TimedOut, Unhealthy
from partitune.execution.processes.launch import LaunchCommands, ProcessCommand
from partitune.execution.processes.node import LOOK_S, Node, PortState, run_to_end
from partitune.execution.readout.engine_readout import read_metrics
from partitune.execution.readout.failure_causes import find_cause, last_lines
from partitune.execution.readout.log_lines import phase_of
from partitune.execution.server.gates import ProgressWatch
from partitune.execution.server.http_probe import complete, is_healthy, metrics_page, served_names
from partitune.spec.runner import Limits

_LOGS_S = 1.0  # logs and metrics are read at most so often
_FOLLOWER_STOP_S = 10.0  # groups without the server have nothing left to finish
_LOAD_STOP_S = 5.0
#: Seconds in which the family of a server that was killed is gone: supervisors end the rest of it, and say so.
_DEATH_S = 5.0
_WORDS = 60  # lines of every log that go to the trial's log


@dataclass(slots=True)
class RunningServer:
    """One start of an engine on its nodes."""

    launch: LaunchCommands
    readout: Readout  # of its engine
    nodes: Sequence[Node]
    limits: Limits
    deadline_s: float  # of the whole candidate, on the monotonic clock
    started: list[tuple[Node, str]] = field(default_factory=list)

    def start(self) -> None:
        """Start every process group. Raises LaunchFailed or NodeLost."""
        for process in self.launch.processes:
            node, name = self.nodes[process.node], f"node{process.node}"
            port = self.launch.port if process.node == 0 else None  # whoever listens there: afterwards nobody may
            node.start(name, self.launch.trial, process, port)
            self.started.append((node, name))

    def stop(self) -> None:
        """End every process group, the server first: in some engines the others wait for its word.

        What is left is in the ledger of its machine.

        Raises:
            NodeLost: a node went away; on all others everything has ended.
        """
        lost: NodeLost | None = None
        for index, (node, name) in enumerate(self.started):
            try:
                node.stop(name, self.limits.stop if index == 0 else min(self.limits.stop, _FOLLOWER_STOP_S))
            except NodeLost as error:
                lost = error  # the others still have to end
        self.started.clear()
        if lost is not None:
            raise lost

    def check_alive(self) -> None:
        """Raise what ended the engine, if it ended."""
        for node, name in self.started:
            state = node.state(name)
            if not state.running:
                raise self.explained(LaunchFailed(f"the engine ended with {_status(state.exit_code)} on {node.host}"))

    def check_deadline(self) -> None:
        """Raise TimedOut when the candidate's whole time is over."""
        if time.monotonic() > self.deadline_s:
            raise TimedOut("the whole candidate took longer than the runner's timeout_s")

    def logs(self) -> list[str]:
        """What each node wrote so far."""
        return [node.log(name) for node, name in self.started]

    def last_words(self) -> str:
        """The ends of the logs."""
        return last_lines(self.logs(), self.readout, _WORDS)

    def explained(self, otherwise: RunError) -> RunError:
        """The engine's own earliest error, or `otherwise`; with its last words as detail."""
        logs = self.logs()
        cause = find_cause(logs, self.readout)
        node, name = self.started[0]
        if cause is None and self.launch.sees_port and node.port_state(self.launch.port, name) is PortState.FOREIGN:
            error: RunError = NodeLost(node.port_taken(self.launch.port))
        elif cause is None:
            phase = phase_of(logs, self.readout)
            error = type(otherwise)(f"{otherwise} {phase.going_on}", excess=otherwise.excess)
        else:
            error = cause.error()
        error.detail = last_lines(logs, self.readout, _WORDS)
        return error

    def await_ready(self) -> None:
        """Wait until it is healthy.

        Raises:
            RunError: the engine ended (its own earliest error says why).
            TimedOut: a phase took longer than its limit.
        """
        phase, since, next_look = Phase.SPAWN, time.monotonic(), 0.0
        while not is_healthy(self.launch.url):
            self.check_alive()
            self.check_deadline()
            now = time.monotonic()
            if now >= next_look:
                if (reached := phase_of(self.logs(), self.readout)) > phase:
                    phase, since = reached, now
                read_s = time.monotonic() - now
                next_look = now + max(_LOGS_S, 20 * read_s)  # a log of megabytes takes its time
            limit_s: float = getattr(self.limits, phase.name.lower())
            if now - since > limit_s:
                late = TimedOut(f"the phase {phase.name.lower()} took longer than its limit of {limit_s:g} s:")
                raise self.explained(late)
            time.sleep(LOOK_S)

    def prove_ours(self) -> None:
        """Raise NodeLost when another program listens on our port, alone or too; LaunchFailed for another name."""
        node, name = self.started[0]
        if self.launch.sees_port and node.port_state(self.launch.port, name) is not PortState.OURS:
            self.check_alive()
            raise NodeLost(node.port_taken(self.launch.port))
        names = served_names(self.launch.url, self.launch.key)
        if self.launch.served_name not in names:
            self.check_alive()
            raise self.explained(
                LaunchFailed(
                    f"another server answers at {self.launch.url}: it serves {', '.join(names) or 'nothing'}, not "
                    f"{self.launch.served_name};"
                )
            )

    def probe(self) -> str:
        """The text of one request.

        Raises:
            Unhealthy: it says that it is healthy and does not answer; or what ended it meanwhile.
        """
        try:
            return complete(self.launch.url, self.launch.served_name, self.limits.probe, self.launch.key)
        except Unhealthy as error:
            time.sleep(LOOK_S)  # a process that died of the request may not be gone yet
            self.check_alive()
            late = Unhealthy(f"the server says that it is healthy, and the first request failed: {error}")
            raise self.explained(late) from error

    def counters(self) -> Counters:
        """Its counters now.

        Raises:
            RunError: what ended the engine where nobody answers, else Unhealthy; BenchmarkFailed for another's page.
        """
        try:
            return self._read_counters()
        except Unhealthy:
            deadline_s = time.monotonic() + _DEATH_S
            while time.monotonic() < deadline_s:
                self.check_alive()
                time.sleep(LOOK_S)
            raise

    def run_load(self, process: ProcessCommand) -> None:
        """Run a load generator to its end.

        Raises:
            Stalled: no token came, or no answer, for the limit.
            TimedOut: it took longer than a window may.
            BenchmarkFailed: the generator broke.
            RunError: the engine ended.
        """
        begin = answered = time.monotonic()
        asked, limits, progress = 0.0, self.limits, ProgressWatch(self.limits.stall)

        def look() -> None:
            nonlocal asked, answered
            self.check_alive()
            self.check_deadline()
            now = time.monotonic()
            if now - begin > limits.window:
                raise TimedOut(f"the load took longer than its limit of {limits.window:g} s")
            if now - asked < min(_LOGS_S, limits.stall / 4):
                return
            asked = now
            try:
                progress.see(now, self._read_counters())
                answered = time.monotonic()
            except Unhealthy as error:
                if now - answered > limits.stall:
                    raise Stalled(f"the server answers no question under load: {error}") from error

        generator = replace(process, uses_gpus=False)
        code, log = run_to_end(self.nodes[0], "load", self.launch.trial, generator, _LOAD_STOP_S, look)
        self.check_alive()
        if code != 0:
            failure = f"the load generator {process.argv[0]} ended with status {code}"
            raise BenchmarkFailed(failure, detail=last_lines([log], self.readout))

    def _read_counters(self) -> Counters:
        url = self.launch.url
        return read_metrics(metrics_page(url), self.readout.metrics, f"{url}/metrics")


def _status(code: int | None) -> str:
    if code is None:
        return "an unknown status"
    return f"signal {-code}" if code < 0 else f"status {code}"
