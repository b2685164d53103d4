"""What the load generator wrote, read and judged for one study: the same way whoever started the server.

Decision: the file alone decides nothing. It has to hold every metric that the study aims at, and it has to pass the
gates with what the study asked the tool to send.
"""

from __future__ import annotations

from collections.abc import Sequence

from partitune.engines.readout import Counters
from partitune.execution.readout.bench_results import BenchResult, read_bench
from partitune.execution.server.gates import check_window
from partitune.execution.server.load_commands import LoadCommands
from partitune.planning.problem import Problem
from partitune.spec.objectives import METRICS
from partitune.spec.workload import RandomWorkload


def read_window(
    commands: LoadCommands, text: str, source: str, before: Counters | None, after: Counters | None
) -> BenchResult:
    """The result in `text` of the load of `commands`, with the engine's counters around it where they are known.

    Raises:
        BenchmarkFailed: it cannot be trusted, for all the reasons in the message.
    """
    problem, load = commands.problem, commands.load
    window = read_bench(commands.tool.format, text, source, needed=commands.needed)
    # A tool draws lengths of its own: the least they can come to is asked for.
    least = 1 - load.range_ratio if isinstance(load, RandomWorkload) else 1.0
    check_window(
        window,
        before,
        after,
        requests=len(problem.load.requests),
        output_tokens=int(least * sum(request.output_tokens for request in problem.load.requests)),
        shared_prefix=not isinstance(load, RandomWorkload),
    )
    return window


def is_hopeless(problem: Problem, windows: Sequence[BenchResult]) -> bool:
    """True when a window under every load, taken together, is off a limit by more than a factor of two.

    No other window makes that good.

    Never asked of the warm-up: its first requests wait for kernels that are compiled then.
    """
    missed = problem.missed_limits(problem.run_figures([window.metrics for window in windows]))
    return any(share > (1.0 if METRICS[name] == "minimize" else 0.5) for name, share in missed.items())
