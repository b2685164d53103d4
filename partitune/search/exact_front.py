"""The exact front of a search space without a search: what every partition worth a thought costs and gives.

Decision: one row a partition, the engine's default first, then the front from the least slowest stage to the most KV,
then the one that answers a single prompt soonest where it is none of these. All are judged by the planner's closed-form
batches, so the table takes a second and promises no throughput: it says what moves where, and by how much it can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from partitune.analysis.explanation import candidate_of
from partitune.candidate import DEFAULT_PLAN, Candidate, Caveats, FlagValue
from partitune.costs.memory import StageMemory
from partitune.errors import InfeasibleSpace, OutOfMemory
from partitune.hardware.gpus import GIB
from partitune.partition import Partition
from partitune.planning.caveats import caveats
from partitune.planning.planner import EXACT_PLAN, FIRST_TOKEN_PLAN, Planner
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.planning.stage_order import count_orders, launchable_orders
from partitune.search.space import Space
from partitune.spec.search_space import SearchSpace

_LEAST, _BETWEEN, _MOST, _SOONEST = "least slowest stage", "between", "most KV", "first token soonest"
#: Orders of unequal stages that are compared; each is a problem of its own, and takes some tens of milliseconds.
MOST_ORDERS = 100


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """What one partition costs and gives. Seconds are those of the whole load."""

    names: tuple[str, ...]  # `default`, `least slowest stage`, ...
    partition: Partition
    stage_s: tuple[float, ...]  # a stage is taken up: computing, receiving, sending
    over_bound: float  # share by which the slowest stage is above what it would take if layers could be cut anywhere
    prompt_s: float  # to the first token of one mean prompt on an idle server
    kv_tokens: int | None  # what the stage with the fewest holds; None: the engine would not start
    memory: tuple[StageMemory, ...]
    reasons: tuple[str, ...]  # why it cannot run; empty when it can

    @property
    def slowest_s(self) -> float:
        """Seconds of the slowest stage."""
        return max(self.stage_s)

    def to_json(self) -> dict[str, Any]:
        """The row in `solve --json`."""
        return {
            "names": list(self.names),
            "partition": list(self.partition),
            "slowest_stage": self.stage_s.index(self.slowest_s),
            "slowest_stage_s": self.slowest_s,
            "stages_s": list(self.stage_s),
            "over_fluid_bound": self.over_bound,
            "first_token_s": self.prompt_s,
            "kv_tokens": self.kv_tokens,
            "memory": [{"stage": stage.stage, "fits": stage.fits, "verdict": stage.verdict} for stage in self.memory],
            "runs": not self.reasons,
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True, slots=True)
class StageOrder:
    """One order of unequal stages under its own best partition; its fields are those of `solve --json`."""

    gpu: tuple[str, ...]
    reserved_gib: tuple[float, ...]
    slowest_stage_s: float
    partition: Partition


@dataclass(frozen=True, slots=True)
class Solved:
    """The front of one search space under one setting of the flags."""

    space: str
    settings: Mapping[str, FlagValue]
    regime: str
    rows: tuple[PlannedPartition, ...]  # the engine's default first
    fluid_s: float  # no slowest stage is shorter, even if layers could be cut
    in_flight: int  # groups of requests that decode apart from one another; of a mix under the load with the most
    cost_source: str
    infeasible: str  # why nothing fits; empty when something does
    orders: tuple[StageOrder, ...]  # of unequal stages: the present one, and the best that can be launched
    orders_text: str  # how many there are
    starting: PlannedPartition | None  # the engine's default at its starting flags; None: the rows are at those
    caveats: Caveats

    @property
    def best(self) -> PlannedPartition | None:
        """The least slowest stage; None when nothing fits."""
        return next((row for row in self.rows if _LEAST in row.names), None)

    def to_json(self) -> dict[str, Any]:
        """The object of `solve --json`. Keys may be added, never changed."""
        return {
            "space": self.space,
            "knobs": dict(self.settings),
            "regime": self.regime,
            "default": self.rows[0].to_json(),
            "front": [row.to_json() for row in self.rows if row.names != (DEFAULT_PLAN,)],
            "fluid_bound_s": self.fluid_s,
            "batches_in_flight": self.in_flight,
            "infeasible": self.infeasible,
            "orders": [asdict(order) for order in self.orders],
            "default_at_starting_flags": None if self.starting is None else self.starting.to_json(),
            "cost_source": self.cost_source,
            **self.caveats.to_json(),
        }


def solve(spec: SearchSpace, settings: Mapping[str, FlagValue]) -> Solved:
    """Every partition worth a thought under these flags, and on the layout that `layout` names among them.

    Raises:
        SpecError: the search space, or a combination of flags that the engine refuses.
    """
    problem = resolve(spec)
    wanted = candidate_of(problem, None, settings)
    space = Space(problem, spec)
    planner, problem, flags = space.planner_on(wanted.layout), problem.on(wanted.layout), wanted.flags
    names: dict[Partition, list[str]] = {problem.default_partition: [DEFAULT_PLAN]}
    infeasible = ""
    try:
        front = [solution.partition for solution in planner.front(flags)]
        names.setdefault(front[0], []).append(_LEAST)
        for partition in front[1:-1]:
            names.setdefault(partition, []).append(_BETWEEN)
        names.setdefault(front[-1], []).append(_MOST)
        soonest = planner.partition(FIRST_TOKEN_PLAN, flags)
        if soonest != front[0]:
            names.setdefault(soonest, []).append(_SOONEST)
    except InfeasibleSpace as error:
        infeasible = str(error)
    fluid_s = planner.fluid_bound_s(flags)
    flow = problem.engine.flow(problem.start(flags))
    orders, text = _orders(spec, problem, flags)
    return Solved(
        space=spec.name,
        settings=settings,
        regime=flow.name,
        rows=tuple(
            _planned(planner, fluid_s, ResolvedCandidate(problem, Candidate(partition, flags)), names[partition])
            for partition in names
        ),
        fluid_s=fluid_s,
        in_flight=max(part.rank_load.cohorts(flow) for part in problem.parts),
        cost_source=problem.costs.source,
        infeasible=infeasible,
        orders=orders,
        orders_text=text,
        starting=_at_starting_flags(space) if settings else None,
        caveats=caveats(problem, flags),
    )


def _at_starting_flags(space: Space) -> PlannedPartition:
    """The engine's default, which flags that were set are held against."""
    planner, default = space.planner_on(None), Candidate(space.problem.default_partition)
    resolved = ResolvedCandidate(space.problem, default)
    return _planned(planner, planner.fluid_bound_s({}), resolved, (DEFAULT_PLAN,))


def _planned(planner: Planner, fluid_s: float, resolved: ResolvedCandidate, names: Sequence[str]) -> PlannedPartition:
    partition, flags = resolved.partition, resolved.candidate.flags
    reasons = [stage.verdict for stage in resolved.memory if not stage.fits]
    reasons += [violation.message for violation in resolved.violations]
    kv_tokens = None
    if not reasons:
        try:
            kv_tokens = resolved.kv_cache.tokens
        except (InfeasibleSpace, OutOfMemory) as error:
            reasons.append(str(error))
    stage_s = tuple(planner.stage_seconds(partition, flags).tolist())
    return PlannedPartition(
        names=tuple(names),
        partition=partition,
        stage_s=stage_s,
        over_bound=max(stage_s) / fluid_s - 1,
        prompt_s=planner.prompt_s(partition, flags),
        kv_tokens=kv_tokens,
        memory=resolved.memory,
        reasons=tuple(reasons),
    )


def _orders(spec: SearchSpace, problem: Problem, flags: Mapping[str, FlagValue]) -> tuple[tuple[StageOrder, ...], str]:
    """Where stages are unequal: the present order, and the best of those that a launcher can make."""
    placement = problem.placement
    reserved_gib = (reserved / GIB for reserved in placement.reserved_bytes)
    present = tuple(zip((gpu.name for gpu in placement.gpus), reserved_gib, strict=True))
    every = count_orders(present)
    if every == 1 or placement.layout.dp > 1:
        return (), ""
    tried = list(islice(launchable_orders(present, placement.nodes), MOST_ORDERS + 1))
    how = "by node rank, and on one machine by CUDA_VISIBLE_DEVICES, as stages stand in node order"
    text = f"{len(tried)} of {every} orders of these GPUs can be launched: {how}"
    if len(tried) > MOST_ORDERS:
        text = f"of {every} orders of these GPUs the first {MOST_ORDERS} that can be launched were compared: {how}"
    solved = {order: best for order in tried[:MOST_ORDERS] if (best := _best_in(order, spec, flags)) is not None}
    shown = [present, *sorted(solved, key=lambda order: solved[order].slowest_stage_s)[:1]]
    return tuple(solved[order] for order in dict.fromkeys(shown) if order in solved), text


def _best_in(
    order: tuple[tuple[str, float], ...], spec: SearchSpace, flags: Mapping[str, FlagValue]
) -> StageOrder | None:
    """The stages in this order, with the partition that is exact for it; None where nothing fits."""
    gpu, reserved_gib = (tuple(column) for column in zip(*order, strict=True))
    plain = spec.resolved()
    written = plain["cluster"]["gpu"]
    entries = written if isinstance(written, list) else [written]
    own = {entry["name"]: entry for entry in entries if isinstance(entry, dict)}
    kinds = [own.get(name, name) for name in gpu]
    plain["cluster"] = {**plain["cluster"], "gpu": kinds, "reserved_gib": list(reserved_gib)}
    ordered = SearchSpace.from_mapping(plain, source=f"{spec.name} in another order")
    planner = Space(resolve(ordered), ordered).planner
    try:
        partition = planner.partition(EXACT_PLAN, flags)
    except InfeasibleSpace:
        return None
    return StageOrder(gpu, reserved_gib, float(planner.stage_seconds(partition, flags).max()), partition)
