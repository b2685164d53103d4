"""What may vary, as parameters of a sampler, and how parameters become a candidate and back.

Decision: parameters are the engine flags that vary plus one name, the plan. With `partition: {search: free}` the plan
is replaced by one weight per stage, repaired to the layer count by largest remainder: symmetric, every vector legal
in count and sum, and honest as the baseline it is (an exact plan beats it at equal budget). Where layouts vary, the
layout is one more name, and a plan is solved for the layout it comes with: how long the vector is follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from operator import itemgetter

import numpy as np

from partitune.candidate import DEFAULT_PLAN, LAYOUT, Candidate, FlagValue, Origin, Submission
from partitune.engines.rules import FLAG_RULES, SIZE_RULES
from partitune.errors import InfeasibleSpace, SpecError
from partitune.partition import Partition
from partitune.planning.candidate_layouts import searched
from partitune.planning.planner import EXACT_PLAN, FRONT_PLANS, MOST_KV_PLAN, Bounds, Planner, stage_bounds
from partitune.planning.problem import Problem
from partitune.planning.solver import along
from partitune.planning.throughput import fastest_first, predicted_output_tok_s
from partitune.spec.domains import Domain, WholeRange, domain_allows
from partitune.spec.search_space import SearchSpace

PLAN = "plan"
#: Settings of the flags, the fastest in closed form, whose plans are compared before anything runs.
_PLANNED = 5
FREE_PLAN = "free"


class Space:
    """The varying part of a search space over one problem."""

    def __init__(self, problem: Problem, spec: SearchSpace) -> None:
        """Raises SpecError (with the file's line) for seeds, bounds or flags the model or the engine does not admit."""
        self.problem = problem
        self._seeks_kv = any(objective.metric == "kv_tokens" for objective in spec.objectives)
        self._domains: dict[str, Domain] = {**spec.knobs.flags, **spec.knobs.env}
        self._fewest, self._most = spec.knobs.partition.min_layers, spec.knobs.partition.max_layers
        self._bounds = _bounds(problem, spec)
        #: One weight a stage in place of the plan, where the partition is free.
        self._weights: dict[str, Domain] = {}
        if spec.knobs.partition.search == "free":
            for stage, (low, high) in enumerate(self._bounds):
                self._weights[f"layers_{stage}"] = WholeRange(low=low, high=high)
        self._seeds = [
            (_seed(problem, spec, index), {**seed.knobs, **seed.env}) for index, seed in enumerate(spec.seeds)
        ]
        self.planner = Planner(problem, self._bounds, [partition for partition, _ in self._seeds])
        if broken := [rule for rule in problem.engine.check(problem.start({})) if rule.rule in SIZE_RULES]:
            # What no candidate could ever get round.
            raise spec.error("parallel", text="; ".join(f"{rule.message} [{rule.source}]" for rule in broken))
        _check_flags(problem, spec)
        self._layouts = _layouts(problem, spec, self.starting_flags)
        self._planners = {problem.layout.name: self.planner}

    @property
    def parameters(self) -> Mapping[str, Domain]:
        """Name and domain of everything the sampler proposes."""
        if self._weights:
            return {**self._domains, **self._weights}
        layout = {LAYOUT: self._layouts} if len(self._layouts) > 1 else {}
        return {**self._domains, **layout, PLAN: self.planner.names}

    @property
    def starting_flags(self) -> Mapping[str, FlagValue]:
        """Every flag at the value the engine would start with: the baseline's, else the engine's own default."""
        problem = self.problem
        default = problem.engine.default_flags(problem.start({}))
        known = {**default, **problem.baseline}
        return {name: known[name] for name in self._domains if name in known}

    def first_proposals(self) -> Iterator[Submission]:
        """The engine's default, the exact plans (if anything fits), the seeds: all with the starting flags.

        The exact plan is the believed optimum; where KV memory is sought, the end of the front with the most of it is
        one, too. Last what closed form believes to be the fastest flags.
        """
        start = self.starting_flags
        yield self._proposal(self.problem.default_partition, start, Origin.DEFAULT, DEFAULT_PLAN)
        for index, layout in enumerate(self._layouts):
            with suppress(InfeasibleSpace):
                for plan in (EXACT_PLAN, MOST_KV_PLAN) if self._seeks_kv else (EXACT_PLAN,):
                    partition = self.planner_on(layout).partition(plan, start)
                    yield self._proposal(partition, start, Origin.EXACT, plan, layout)
            if index == 0:
                for number, (seed, flags) in enumerate(self._seeds, start=1):
                    yield self._proposal(seed, {**start, **flags}, Origin.SEED, f"seed-{number}")
        predicted = () if self._weights else self._predicted(start)
        if fastest := max(predicted, key=itemgetter(0), default=None):
            yield fastest[1]

    def _proposal(
        self, partition: Partition, flags: Mapping[str, FlagValue], origin: Origin, plan: str, layout: str | None = None
    ) -> Submission:
        """A candidate of this space, on its own layout unless another is named; it names one where layouts vary."""
        named = (layout or self.problem.layout.name) if len(self._layouts) > 1 else None
        return Submission(Candidate(partition, flags, named), origin, plan)

    def _predicted(self, start: Mapping[str, FlagValue]) -> Iterator[tuple[float, Submission]]:
        """Output tokens a second, in closed form, of what fits the first layout under flags that are fast there."""
        for flags in fastest_first(self.problem, self._domains, start)[:_PLANNED]:
            with suppress(InfeasibleSpace):
                for plan in FRONT_PLANS:
                    partition = self.planner.partition(plan, flags)
                    proposal = self._proposal(partition, flags, Origin.PREDICTED, plan)
                    yield predicted_output_tok_s(self.problem, partition, flags), proposal

    def planner_on(self, layout: str | None) -> Planner:
        """The planner of one layout, by name; None: of the space's own. Raises SpecError."""
        name = layout or self.problem.layout.name
        if name not in self._planners:
            problem = self.problem.on(name)
            bounds = stage_bounds(problem.stages, problem.layers, fewest=self._fewest, most=self._most)
            self._planners[name] = Planner(problem, bounds, ())
        return self._planners[name]

    def decode(self, params: Mapping[str, FlagValue]) -> Submission:
        """The candidate of sampled parameters; a parameter that cannot vary takes its only or starting value.

        Raises:
            InfeasibleSpace: no partition fits these flags.
        """
        flags: dict[str, FlagValue] = dict(self.starting_flags)
        for name, domain in self._domains.items():
            first = domain[0] if isinstance(domain, tuple) else domain.low
            flags[name] = params.get(name, flags.get(name, first))
        if self._weights:
            fewest = (low for low, _ in self._bounds)
            weights = [int(params.get(name, low)) for name, low in zip(self._weights, fewest, strict=True)]
            return self._proposal(
                repaired(weights, self._bounds, self.problem.layers), flags, Origin.SAMPLER, FREE_PLAN
            )
        plan, layout = str(params[PLAN]), str(params.get(LAYOUT, self.problem.layout.name))
        planner = self.planner_on(layout)
        if plan not in planner.names:
            raise InfeasibleSpace(f"{plan} is a partition for another layout than {layout}")
        return self._proposal(planner.partition(plan, flags), flags, Origin.SAMPLER, plan, layout)

    def admits(self, candidate: Candidate) -> bool:
        """Whether its partition is within the bounds of the space, legal, and fits its flags."""
        allowed = self.planner_on(candidate.layout).allowed(candidate.flags)
        return bool(along(allowed.astype(np.float64), candidate.partition).all())

    def fits(self, params: Mapping[str, FlagValue]) -> bool:
        """Whether any partition fits the flags and the layout of these parameters, but for a rule of the engine."""
        flags = {**self.starting_flags, **{name: params[name] for name in self._domains}}
        layout = str(params.get(LAYOUT, self.problem.layout.name))
        with suppress(InfeasibleSpace):
            return bool(self.planner_on(layout).front(flags))
        return False

    def encode(self, candidate: Candidate, plan: str) -> Mapping[str, FlagValue] | None:
        """The parameters that decode to `candidate`; None when the space cannot propose it."""
        params: dict[str, FlagValue] = {**candidate.settings, PLAN: plan}
        if self._weights:
            params = {**candidate.flags, **dict(zip(self._weights, candidate.partition, strict=True))}
        domains = self.parameters.items()
        proposable = all(name in params and domain_allows(domain, params[name]) for name, domain in domains)
        return params if proposable else None


def _layouts(problem: Problem, spec: SearchSpace, flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
    partition = spec.knobs.partition
    if spec.parallel.layouts is not None and (partition.search == "free" or partition.pinned):
        key = "search" if partition.search == "free" else "pinned"
        text = "found where layouts vary, and with them the stages; allowed: to leave it out, or parallel.layouts"
        raise spec.error("knobs", "partition", key, text=text)
    return searched(problem, spec, flags)


def repaired(weights: list[int], bounds: Bounds, layers: int) -> Partition:
    """Layers per stage in proportion to `weights`, within `bounds`, summing to `layers` (largest remainder)."""
    shares = [weight * layers / sum(weights) for weight in weights]
    counts = [min(max(math.floor(share), low), high) for share, (low, high) in zip(shares, bounds, strict=True)]
    while (missing := layers - sum(counts)) != 0:
        step = 1 if missing > 0 else -1
        room = [s for s, (low, high) in enumerate(bounds) if low <= counts[s] + step <= high]
        stage = max(room, key=lambda s: step * (shares[s] - counts[s]))
        counts[stage] += step
    return Partition(counts)


def _bounds(problem: Problem, spec: SearchSpace) -> Bounds:
    knob = spec.knobs.partition
    try:
        return stage_bounds(
            problem.stages, problem.layers, fewest=knob.min_layers, most=knob.max_layers, pinned=knob.pinned
        )
    except SpecError as error:
        raise spec.error("knobs", "partition", text=str(error)) from error


def _seed(problem: Problem, spec: SearchSpace, index: int) -> Partition:
    partition = Partition(spec.seeds[index].partition)
    wanted = f"{problem.stages} stages that sum to {problem.layers} layers"
    if len(partition) != problem.stages:
        text = f"found {len(partition)} stages; allowed: {wanted}"
    elif sum(partition) != problem.layers:
        off = sum(partition) - problem.layers
        text = f"found a sum of {sum(partition)}, {abs(off)} too {'many' if off > 0 else 'few'}; allowed: {wanted}"
    else:
        return partition
    raise spec.error("seeds", index, text=text)


def _check_flags(problem: Problem, spec: SearchSpace) -> None:
    """Every flag of the file and every value it may take, asked of the engine once, before anything runs."""
    asked: list[tuple[tuple[str, ...], FlagValue]] = [
        (("engine", "flags", name), value) for name, value in spec.engine.flags.items()
    ]
    for name, domain in spec.knobs.flags.items():
        values = domain if isinstance(domain, tuple) else (domain.low, domain.high)
        asked += [(("knobs", name), value) for value in values]
    for path, value in asked:
        name = path[-1]
        for broken in problem.engine.check(problem.start({name: value})):
            if broken.rule in FLAG_RULES and broken.message.startswith(f"{name}:"):
                raise spec.error(*path, text=f"{broken.message.removeprefix(f'{name}: ')} [{broken.source}]")
