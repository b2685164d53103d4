"""Which layouts a search may try: those a person lists, or all that model, engine and GPUs admit.

Decision: a layout is judged by the rules that judge every candidate (the engine's, the launcher's, memory), so that
nothing is proposed which would be refused later, and what is left out is left out with a reason. Of layouts that differ
only in how many GPUs they leave idle, the one with the most data ranks stands for all. Where there are more than a
search can afford, those stay that can give the most tokens a second in closed form (as many batches as the load makes,
over the slowest stage or the sum of all), and the best of each number of tensor ranks, which differ in latency.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace

from partitune.candidate import Candidate, FlagValue
from partitune.engines.rules import FLAG_RULES, Violation
from partitune.errors import InfeasibleSpace, OutOfMemory, SpecError
from partitune.hardware.parallelism import Layout
from partitune.planning.planner import Planner, stage_bounds
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.spec.search_space import SearchSpace
from partitune.spec.serving import Sizes

#: Layouts of a search with `layouts: auto`; each adds an exact plan to its first trials.
MOST_LAYOUTS = 12


@dataclass(frozen=True, slots=True)
class Considered:
    """One layout, and why it cannot be used; no reasons where it can."""

    layout: Layout
    idle_gpus: int
    reasons: tuple[str, ...] = ()
    partition: tuple[int, ...] = ()  # whose slowest stage is the least busy; empty where nothing fits
    most_tok_s: float = 0.0  # output tokens a second that this partition can give with so many batches in flight

    def candidate(self, flags: Mapping[str, FlagValue]) -> Candidate:
        """That partition on this layout under `flags`."""
        return Candidate(self.partition, flags, self.layout.name)


def considered(problem: Problem, spec: SearchSpace, flags: Mapping[str, FlagValue]) -> tuple[Considered, ...]:
    """Every layout of the file or, with `auto`, of the GPUs, judged under `flags`; usable ones first, fastest first.

    Raises:
        SpecError: the file lists one twice.
    """
    judged = (_judged(problem, spec, layout, flags) for layout in possible(problem, spec))
    return tuple(sorted(judged, key=lambda entry: (bool(entry.reasons), -entry.most_tok_s, entry.idle_gpus)))


def layout_of(parallel: Sizes) -> Layout:
    """The sizes of a file as a value; the engine decides the fields of a layout that no file has."""
    names = [part.name for part in fields(Layout) if hasattr(parallel, part.name)]
    return Layout(**{name: getattr(parallel, name) for name in names})


def starting_layout(problem: Problem, spec: SearchSpace) -> Layout:
    """Where a search starts whose file leaves that open.

    Tensor ranks over each node and a stage a node, which is what engines advise (vLLM 0.33 docs,
    `serving/parallelism_scaling.md`), where that can be used; else what can give the most tokens in closed form.

    Raises:
        SpecError: no layout can be used.
    """
    cluster = problem.cluster
    advised = replace(problem.layout, tp=cluster.gpus_per_node, pp=cluster.nodes)
    if advised.pp <= problem.layers and not _judged(problem, spec, advised, {}).reasons:
        return advised
    best = next(iter(every := considered(problem, spec, {})))
    if not best.reasons:
        return best.layout
    names: dict[str, list[str]] = {}
    for entry in every:
        names.setdefault("; ".join(entry.reasons), []).append(entry.layout.name)
    reasons = "; ".join(f"not {', '.join(of_one)}: {reason}" for reason, of_one in names.items())
    raise spec.error("parallel", "layouts", text=f"no layout can be used here: {reasons}")


def possible(problem: Problem, spec: SearchSpace) -> tuple[Layout, ...]:
    """Every layout of the file or, with `auto`, of the GPUs, not yet judged.

    Raises:
        SpecError: the file lists one twice.
    """
    listed = spec.parallel.layouts
    if not isinstance(listed, tuple):
        return tuple(_layouts(problem))
    layouts = tuple(map(layout_of, listed))
    names = [layout.name for layout in layouts]
    if twice := [name for name in names if names.count(name) > 1]:
        raise spec.error("parallel", "layouts", text=f"found {twice[0]} twice; allowed: every layout once")
    return layouts


def searched(problem: Problem, spec: SearchSpace, flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
    """Names of the layouts a search varies, its own first; only that one where the file says nothing of others.

    Raises:
        SpecError: a listed layout cannot be used.
    """
    own = problem.layout.name
    if spec.parallel.layouts is None:
        return (own,)
    every = considered(problem, spec, flags)
    if isinstance(spec.parallel.layouts, tuple):
        if reasons := [f"{entry.layout.name}: {', '.join(entry.reasons)}" for entry in every if entry.reasons]:
            raise spec.error("parallel", "layouts", text="; ".join(reasons))
        return tuple(dict.fromkeys((own, *(entry.layout.name for entry in every))))
    usable = [entry for entry in every if not entry.reasons]
    best_of_each = {entry.layout.tp: entry for entry in reversed(usable)}.values()
    ordered = [*sorted(best_of_each, key=lambda entry: -entry.most_tok_s), *usable]
    return tuple(dict.fromkeys((own, *(entry.layout.name for entry in ordered))))[:MOST_LAYOUTS]


def _layouts(problem: Problem) -> Iterator[Layout]:
    """All sizes that fit the GPUs by number, with as many data ranks as fit beside them."""
    total = problem.cluster.total
    moe = problem.architecture.has_experts
    like = replace(problem.layout, pcp=1, dcp=1, expert_ranks=1)
    for tp in range(1, problem.cluster.gpus_per_node + 1):
        if _broken(problem, replace(like, tp=tp, pp=1, dp=1), nodes=1):
            yield replace(like, tp=tp, pp=1, dp=1)  # once, for the reason
            continue
        for pp in range(1, min(problem.layers, total // tp) + 1):
            layout = _with_data_ranks(problem, replace(like, tp=tp, pp=pp), total // (tp * pp))
            yield layout
            if moe and layout.stage_gpus > 1:
                yield replace(layout, expert_ranks=layout.stage_gpus)


def _with_data_ranks(problem: Problem, layout: Layout, most: int) -> Layout:
    """`layout` with as many data ranks as can be laid out, at most `most`."""
    for dp in range(most, 1, -1):
        with suppress(SpecError):
            problem.placed(replace(layout, dp=dp))
            return replace(layout, dp=dp)
    return replace(layout, dp=1)


def _broken(problem: Problem, layout: Layout, nodes: int) -> Sequence[Violation]:
    """Rules of the engine that `layout` breaks whatever the flags of a candidate are."""
    resolved = problem.engine.resolved_layout(layout, problem.architecture, problem.version)
    violations = problem.engine.check(replace(problem.start({}), layout=resolved, nodes=nodes))
    return [violation for violation in violations if violation.rule not in FLAG_RULES]


def _judged(problem: Problem, spec: SearchSpace, layout: Layout, flags: Mapping[str, FlagValue]) -> Considered:
    idle = problem.cluster.total - layout.gpus
    try:
        nodes = problem.placed(layout).node_count
    except SpecError as error:
        return Considered(layout, idle, (str(error).removeprefix("cluster: "),))
    if broken := _broken(problem, layout, nodes):
        return Considered(layout, idle, tuple(f"{rule.message} [{rule.source}]" for rule in broken))
    other, domain = problem.on(layout.name), spec.knobs.partition
    try:
        bounds = stage_bounds(other.stages, other.layers, fewest=domain.min_layers, most=domain.max_layers)
        best = Planner(other, bounds, ()).front(flags)[0]
    except InfeasibleSpace as error:
        return Considered(layout, idle, (_shortest(other, flags) or str(error),))
    rates = [_most_tok_s(part, Planner(part, bounds, ()), best.partition, flags) for part in other.parts]
    return Considered(layout, idle, (), best.partition, other.mix.figure("output_throughput_tok_s", rates))


def _most_tok_s(
    problem: Problem, planner: Planner, partition: tuple[int, ...], flags: Mapping[str, FlagValue]
) -> float:
    """Output tokens a second under the only load of `problem`, in closed form."""
    in_flight = problem.rank_load.cohorts(problem.engine.flow(problem.start(flags)))
    stage_s = planner.stage_seconds(partition, flags)
    return problem.load.output_tokens / max(float(stage_s.max()), float(stage_s.sum()) / in_flight)


def _shortest(problem: Problem, flags: Mapping[str, FlagValue]) -> str:
    """What the engine's own split is short of; empty where it is not memory."""
    resolved = ResolvedCandidate(problem, Candidate(problem.default_partition, flags))
    if short := [memory for memory in resolved.memory if not memory.fits]:
        return min(short, key=lambda stage: stage.kv_bytes).verdict
    try:
        resolved.kv_cache  # noqa: B018 - asked for what it raises
    except OutOfMemory as error:
        return str(error)
    return ""
