"""The load generators there are, and which of them can send a load.

Decision: what a tool cannot do like the search space says is refused before anything starts, never approximated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from partitune.engines.launch import LoadGenerator
from partitune.engines.registry import ENGINES
from partitune.execution.server.guidellm import Guidellm
from partitune.spec.workload import SingleLoad, TraceWorkload

LOAD_GENERATORS: Mapping[str, LoadGenerator] = {
    tool.name: tool for tool in (*(engine.launch.load_generator for engine in ENGINES.values()), Guidellm())
}


def unable(tool: LoadGenerator, load: SingleLoad, goodput: Mapping[str, float]) -> str | None:
    """Why `tool` cannot produce this load, or count its good requests; None when it can."""
    if goodput and not tool.counts_good_requests:
        return f"counts no good requests; {_allowed(lambda other: other.counts_good_requests)}"
    if isinstance(load, TraceWorkload):
        return None if tool.trace else f"replays no trace; {_allowed(lambda other: other.trace is not None)}"
    if load.burstiness != 1.0 and not tool.draws_bursts:
        able = _allowed(lambda other: other.draws_bursts)
        return f"has only Poisson arrivals, and burstiness is {load.burstiness}; {able}"
    return None


def _allowed(can: Callable[[LoadGenerator], bool]) -> str:
    return f"allowed: tool {' or '.join(name for name, tool in LOAD_GENERATORS.items() if can(tool))}"
