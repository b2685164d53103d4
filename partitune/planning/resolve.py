"""From a search space to a problem: the model's layers, the stages' places, the engine, the load.

Decision: this is the last place that sees the file. Whatever a name turns out to mean, or not to mean, is said here
with the file's own line; what is returned holds values only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from partitune.candidate import LAYOUT, Objective
from partitune.engines.engine import Engine
from partitune.engines.registry import engine
from partitune.errors import SpecError
from partitune.hardware.gpus import Gpu, gpu, own_gpu
from partitune.hardware.links import Link, link
from partitune.hardware.parallelism import Layout
from partitune.hardware.placement import Machines, place
from partitune.models.reader import load_architecture
from partitune.planning.candidate_layouts import layout_of, starting_layout
from partitune.planning.problem import Problem, roofline_costs
from partitune.planning.workload_mix import Load, Mix, Over
from partitune.simulation.trace import read_trace
from partitune.simulation.workload import random_requests
from partitune.spec.catalog import readable_path
from partitune.spec.search_space import SearchSpace
from partitune.spec.serving import OwnGpu
from partitune.spec.workload import MixWorkload, SingleLoad, TraceWorkload

_Value = TypeVar("_Value", Gpu, float)


def resolve(space: SearchSpace) -> Problem:
    """What every name of `space` means, as one value that can be pickled to any worker.

    Raises:
        SpecError: a name, size or value that means nothing, or a layout left open where none can be used; names the
            file, the line and what is allowed.
    """
    problem = posed(space)
    return problem if space.parallel.start is not None else problem.on(starting_layout(problem, space).name)


def posed(space: SearchSpace) -> Problem:
    """The same, on a single GPU where the file leaves the layout open. Raises SpecError as `resolve` does."""
    with _located(space, "model"):
        model = readable_path(space.model_path) if space.model_path else space.model
        architecture = load_architecture(model, space.config)
    with _located(space, "engine", "name"):
        chosen = engine(space.engine.name)
    with _located(space, "engine", "version"):
        version = space.engine.version or str(chosen.versions_read.newest)
        chosen.notes(version)
    start = space.parallel.start
    layout = chosen.resolved_layout(Layout() if start is None else layout_of(start), architecture, version)
    cluster = _cluster(space)
    with _located(space, "cluster"):
        placement = place(cluster, layout, chosen.rank_order(architecture))
    _refuse_names_written_by_partitune(space, chosen)
    if layout.pp > (count := len(architecture.layers)):
        text = f"found {layout.pp}, and the model has {count} layers; allowed: at most {count}, as each stage needs one"
        raise space.error("parallel", "pp", text=text)
    with _located(space, "engine", "split_rule"):
        chosen.default_partition(len(architecture.layers), layout.pp, version, space.engine.split_rule)
    return Problem(
        name=space.name,
        model=str(space.model_path or space.model),
        architecture=architecture,
        placement=placement,
        engine=chosen,
        version=version,
        runner=space.engine.runner,
        split_rule=space.engine.split_rule,
        baseline={**space.engine.flags, **space.engine.env},
        mix=_mix(space),
        goodput=space.goodput.limits,
        gpu_hour_price_usd=space.cluster.gpu_hour_price_usd,
        gpu_power_w=space.cluster.gpu_power_w,
        limits=dict(space.slo),
        objectives=tuple(Objective(objective.metric, objective.better) for objective in space.objectives),
        zone=space.indifference_zone,
        costs=roofline_costs(architecture, placement, chosen),
        cluster=cluster,
    )


def _cluster(space: SearchSpace) -> Machines:
    cluster = space.cluster
    several = isinstance(cluster.gpu, tuple)
    kinds: list[Gpu] = []
    for index, written in enumerate(cluster.gpu if isinstance(cluster.gpu, tuple) else (cluster.gpu,)):
        with _located(space, "cluster", "gpu", *((index,) if several else ())):
            kinds.append(own_gpu(**dict(written)) if isinstance(written, OwnGpu) else gpu(written))
    gpus = _per_gpu(tuple(kinds), space)
    links: dict[str, Link] = {}
    for key, name in (("in_node", cluster.links.in_node), ("between_nodes", cluster.links.between_nodes)):
        if name is not None:
            with _located(space, "cluster", "links", key):
                links[key] = link(name)
    return Machines(cluster.nodes, cluster.gpus_per_node, gpus, _per_gpu(cluster.reserved_gib, space), **links)


def _per_gpu(given: _Value | tuple[_Value, ...], space: SearchSpace) -> Sequence[_Value]:
    """A list with one entry a stage of `parallel` as one with an entry for every GPU, which any layout can be cut from.

    Left as it is where it does not cover the cluster: then only `parallel` itself can be placed.
    """
    values = given if isinstance(given, tuple) else (given,)
    start, total = space.parallel.start, space.cluster.nodes * space.cluster.gpus_per_node
    if start is None or start.dp > 1 or not 1 < len(values) < total:
        return values
    if len(values) * (width := start.tp * start.pcp) == total:
        return [value for value in values for _ in range(width)]
    return values


def _mix(space: SearchSpace) -> Mix:
    workload = space.workload
    if not isinstance(workload, MixWorkload):
        return Mix((_load(space, workload, 0, "workload"),))
    loads = (
        replace(_load(space, part, index, "workload", "parts", index), name=name, weight=part.weight)
        for index, (part, name) in enumerate(zip(workload.parts, workload.names, strict=True))
    )
    return Mix(tuple(loads), Over(workload.over))


def _load(space: SearchSpace, load: SingleLoad, index: int, *path: str | int) -> Load:
    """The load at `path`; those of one mix are drawn with seeds of their own."""
    if isinstance(load, TraceWorkload):
        with _located(space, *path, "file"):
            trace = read_trace(readable_path(space.absolute(load.file)), load.requests)
            return Load(trace.requests, None, doubts=trace.doubts)
    requests = tuple(random_requests(load, space.random_seed + index))
    return Load(requests, load.concurrency)


def _refuse_names_written_by_partitune(space: SearchSpace, chosen: Engine) -> None:
    """What follows from another key may not be given a second time, where it would be ignored or contradict."""
    elsewhere = {LAYOUT: "parallel.layouts", **chosen.written_by_partitune}
    sections: dict[tuple[str, ...], Iterable[str]] = {
        ("engine", "flags"): space.engine.flags,
        ("engine", "env"): space.engine.env,
        ("knobs",): space.knobs.flags,
        ("knobs", "env"): space.knobs.env,
    }
    for path, names in sections.items():
        if twice := next((name for name in names if name in elsewhere), None):
            raise space.error(*path, twice, text=f"partitune writes it; allowed: {elsewhere[twice]}")


@contextmanager
def _located(space: SearchSpace, *path: str | int) -> Iterator[None]:
    """Give what a room says about a value the line it was written on."""
    try:
        yield
    except SpecError as error:
        key = next(part for part in reversed(path) if isinstance(part, str))
        text = str(error).removeprefix(f"{'.'.join(map(str, path))}: ").removeprefix(f"{key}: ")
        raise space.error(*path, text=text) from error
