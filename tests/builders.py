"""What many tests start from: a problem, a placement, costs, a burst of requests, a trial."""

from __future__ import annotations

from collections.abc import Mapping

from partitune.candidate import Candidate, FlagValue, Measurement, Outcome, Result
from partitune.costs.measured.operations import MeasuredEngine
from partitune.costs.roofline import RooflineCosts
from partitune.engines.vllm.engine import Vllm
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Layout
from partitune.hardware.placement import Machines, Placement, place
from partitune.models.architecture import Architecture
from partitune.models.reader import load_architecture
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.simulation.request import Request
from partitune.spec.overrides import with_settings
from partitune.spec.search_space import SearchSpace


def shipped_problem(space: str, **changes: FlagValue) -> Problem:
    """A shipped space with some keys changed; `workload__requests` is `workload.requests`."""
    return resolve(with_settings(SearchSpace.load(space), {key.replace("__", "."): changes[key] for key in changes}))


def vllm_placement(
    layout: Layout, model: Architecture, *, name: str = "H200", nodes: int = 2, gpus_per_node: int = 8
) -> Placement:
    """Where vLLM's ranks of a layout stand, its exchange of experts decided."""
    resolved = Vllm().resolved_layout(layout, model, "0.33.0")
    return place(Machines(nodes, gpus_per_node, [gpu(name)]), resolved)


def roofline(
    model: str, name: str, tp: int, pp: int = 1, *, kernel: str | None = None, engine: MeasuredEngine | None = None
) -> RooflineCosts:
    """Costs of a shipped model on nodes of eight GPUs; with `engine`, by its measured kernels where there are any."""
    placement = place(Machines(-(-tp * pp // 8), 8, [gpu(name)]), Layout(tp=tp, pp=pp))
    return RooflineCosts(load_architecture(model), placement, expert_kernel=kernel, measured_engine=engine)


def burst(count: int, prompt: int, output: int) -> list[Request]:
    """Equal requests that all come at once."""
    return [Request(str(number), 0.0, prompt, output) for number in range(count)]


def trial_with(metrics: Mapping[str, float], *, layout: str | None = None, outcome: Outcome = Outcome.OK) -> Result:
    """A result of which only figures, layout and outcome count."""
    measurement = Measurement(metrics, (), "async-v2", 1, 16, 0, "", simulated=True)
    return Result(Candidate((1,), {}, layout), outcome, "" if outcome is Outcome.OK else "why", measurement)
