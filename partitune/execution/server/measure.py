"""One run of the load generator, watched: the engine may die, hang or crawl while the generator waits for ever.

Decision: the generator is a program of its own under a supervisor of its own, on the first node. While it runs, the
engine's processes and its token counters are looked at: no token while requests run is a stall, whatever the health
page says. A generator that ends says little by its exit status (it is 0 when every request failed); its file is judged
by `gates`.
"""

from __future__ import annotations

import time
from dataclasses import replace

from partitune.engines.readout import Counters
from partitune.errors import BenchmarkFailed, Stalled, TimedOut, Unhealthy
from partitune.execution.processes.launch import ProcessCommand
from partitune.execution.readout.engine_readout import read_metrics
from partitune.execution.readout.failure_causes import last_lines
from partitune.execution.server.gates import ProgressWatch
from partitune.execution.server.http_probe import metrics_page
from partitune.execution.server.start import LOOK_S, RunningServer

_NAME = "load"
_METRICS_S = 1.0
_STOP_S = 5.0


def run_load(server: RunningServer, process: ProcessCommand) -> None:
    """Run it to its end.

    Raises:
        Stalled: no token came, or no answer, for the limit.
        TimedOut: it took longer than a window may.
        BenchmarkFailed: the generator broke.
        RunError: the engine ended.
    """
    node = server.nodes[0]
    node.start(_NAME, server.launch.trial, replace(process, uses_gpus=False), None)
    try:
        _watch(server)
        code = node.state(_NAME).exit_code
        if code != 0:
            log = last_lines([node.log(_NAME)], server.readout)
            raise BenchmarkFailed(f"the load generator {process.argv[0]} ended with status {code}", detail=log)
    finally:
        node.stop(_NAME, _STOP_S)


def counters(server: RunningServer) -> Counters:
    """The engine's counters now. Raises Unhealthy or BenchmarkFailed."""
    url = server.launch.url
    return read_metrics(metrics_page(url), server.readout.metrics, f"{url}/metrics")


def _watch(server: RunningServer) -> None:
    node, limits = server.nodes[0], server.limits
    progress = ProgressWatch(limits.stall)
    begin = answered = time.monotonic()
    asked = 0.0
    while node.state(_NAME).running:
        server.check_alive()
        server.check_deadline()
        now = time.monotonic()
        if now - begin > limits.window:
            raise TimedOut(f"the load took longer than its limit of {limits.window:g} s")
        if now - asked >= min(_METRICS_S, limits.stall / 4):
            asked = now
            try:
                progress.see(now, counters(server))
                answered = time.monotonic()
            except Unhealthy as error:
                if now - answered > limits.stall:
                    raise Stalled(f"the server answers no question under load: {error}") from error
        time.sleep(LOOK_S)
    server.check_alive()
