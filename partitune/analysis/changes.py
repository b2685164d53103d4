"""Which changes of a candidate are worth trying, the best guess first.

Decision: the engine names the flags and their values, the planner the partitions; here they are only put together. The
likeliest value of each flag comes first, then partitions, other values, and two flags together, because a flag that
does nothing alone may do everything beside another one (async-v1 with a burst that fits one step needs two). Under
other flags other partitions are best, so those are asked for again once the best flags are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, product

from partitune.candidate import Candidate, FlagValue
from partitune.errors import InfeasibleSpace
from partitune.partition import Partition
from partitune.planning.planner import Planner, stage_bounds
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.spec.domains import Domain, domain_allows


class Changes:
    """What may be changed of one candidate."""

    def __init__(self, problem: Problem, candidate: Candidate, within: Mapping[str, Domain]) -> None:
        """What may be changed of `candidate`, on the layout that it names.

        Args:
            problem: the search space.
            candidate: in question.
            within: flags that may only take values of these domains, and whose choices are tried too.

        Raises:
            SpecError: there is no such layout.
        """
        self._problem, self._candidate, self._within = problem.on(candidate.layout), candidate, within
        self._planner = Planner(self._problem, stage_bounds(self._problem.stages, self._problem.layers), ())

    def first(self) -> list[Candidate]:
        """Each flag's likeliest value, partitions, other values, two flags: without what the engine refuses."""
        levers = self._levers()
        guesses = [{name: values[0]} for name, values in levers.items()]
        rest = [{name: value} for name, values in levers.items() for value in values[1:]]
        pairs = [
            (first + second, {a: own, b: other})
            for a, b in combinations(levers, 2)
            for (first, own), (second, other) in product(enumerate(levers[a]), enumerate(levers[b]))
        ]
        pairs.sort(key=lambda pair: pair[0])
        two = [pair for _, pair in pairs]
        return [*self._taken(guesses), *self.partitions(self._candidate), *self._taken([*rest, *two])]

    def partitions(self, candidate: Candidate) -> list[Candidate]:
        """`candidate` with every partition that is exact for its flags: by stage, sum, prompt or KV blocks."""
        return [
            replace(candidate, partition=partition)
            for partition in dict.fromkeys(self._exact(candidate.flags))
            if partition != candidate.partition
        ]

    def _exact(self, flags: Mapping[str, FlagValue]) -> Iterator[Partition]:
        planner = self._planner
        yield self._problem.default_partition
        with suppress(InfeasibleSpace):
            for plan in planner.names:
                yield planner.partition(plan, flags)
            yield planner.least_sum(flags)
            yield planner.fastest_prompt(flags)

    def _levers(self) -> Mapping[str, tuple[FlagValue, ...]]:
        """Those that any of the loads has; of several loads each names its values."""
        problem, levers = self._problem, dict[str, dict[FlagValue, None]]()
        deployment = ResolvedCandidate(problem, self._candidate).deployment
        for load in (part.rank_load for part in problem.parts):
            count = len(load.requests)
            outstanding = min(count, load.concurrency or count)
            named = problem.engine.levers(deployment, outstanding, max(1, round(load.mean_prompt_tokens)))
            for name, values in named.items():
                levers.setdefault(name, {}).update(dict.fromkeys(values))
        own = {**problem.engine.effective_flags(deployment), **self._candidate.flags}
        for name, domain in self._within.items():
            inside = [value for value in levers.get(name, ()) if domain_allows(domain, value)]
            choices = domain if isinstance(domain, tuple) else ()
            levers[name] = dict.fromkeys(value for value in (*inside, *choices) if value != own.get(name))
        return {name: tuple(values) for name, values in levers.items() if values}

    def _taken(self, settings: list[dict[str, FlagValue]]) -> Iterator[Candidate]:
        problem, candidate = self._problem, self._candidate
        for setting in settings:
            changed = replace(candidate, flags={**candidate.flags, **setting})
            if not problem.engine.check(problem.start(changed.flags, candidate.partition)):
                yield changed
