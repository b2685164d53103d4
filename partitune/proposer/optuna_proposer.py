"""Optuna proposes flags and names a plan; the exact planner turns the plan into layers per stage.

Decisions:
- The first candidates are fixed: the engine's default with default flags, the exact solution with default flags, then
  the seeds. Only then does the sampler speak.
- The study lives in memory. Each ask gets a sampler seeded by (random seed, number of the ask). A stored result is
  asked for again before it is told, so a study that ran one candidate at a time goes on exactly as the interrupted one
  would have; where candidates ran side by side the order of asks is not known, and the rest is told as it is.
- A decoded candidate that was measured before is answered from memory; one that cannot exist under its flags costs
  nothing and is told as infeasible. Neither is ever launched.
- Out of memory and time-outs are told as complete but infeasible, graded by how far off they are, because a failed
  trial teaches Optuna nothing (optuna issues 332, 566). Only broken attempts are told as FAIL.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial, TrialState, create_trial

from partitune.drivers.interface import MEMORY_CONSTRAINT, RULES_CONSTRAINT, TIME_CONSTRAINT
from partitune.errors import InfeasibleSpace
from partitune.result import Knob, Objective, Outcome, Result
from partitune.space import Domain, Proposal, Space
from partitune.spec.knobs import WholeRange

#: Asks in a row that gave nothing new before what is left of a small space is walked through, or of a large one drawn.
PATIENCE = 12
#: Random draws in a row that gave nothing new before a large space counts as exhausted.
DRAWS = 500
#: Largest number of points that is walked through.
GRID_LIMIT = 50_000
#: Constraints every told trial carries whatever its limits: what can keep a candidate from running at all.
SITE_CONSTRAINTS = (MEMORY_CONSTRAINT, RULES_CONSTRAINT, TIME_CONSTRAINT)
#: Random trials before TPE models anything.
STARTUP_TRIALS = 10


class OptunaProposer:
    """TPE over flags and plans (Optuna 5 ask/tell)."""

    def __init__(self, space: Space, objectives: Sequence[Objective], constraints: Sequence[str], seed: int) -> None:
        """`constraints` are the metrics that have a limit."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._objectives = tuple(objectives)
        self._constraints = (*SITE_CONSTRAINTS, *constraints)
        self._seed = seed
        self._study = optuna.create_study(directions=[one.direction for one in self._objectives])
        self._distributions = distributions(space)
        self._first = list(space.first_proposals())
        self._known: dict[str, Result] = {}
        self._pending: dict[str, list[Trial]] = {}
        self._tried: set[tuple[tuple[str, Knob], ...]] = set()
        self._grid = _shuffled_grid(self._distributions, seed)
        self._asked = 0
        self._unclaimed: Proposal | None = None  # asked for while catching up, and not what was stored
        self._catching_up = True

    def ask(self) -> Proposal | None:
        """The next new candidate; None when the space holds nothing that was not tried."""
        self._catching_up = False
        unclaimed, self._unclaimed = self._unclaimed, None
        if unclaimed is not None and unclaimed.candidate.digest not in self._known:
            return unclaimed
        return self._next_new()

    def _next_new(self) -> Proposal | None:
        while self._first:
            proposal = self._first.pop(0)
            digest = proposal.candidate.digest
            if digest not in self._known and digest not in self._pending:
                self._pending[digest] = []
                return proposal
        if not self._distributions:
            return None
        return next((found for trial in self._trials() if (found := self._new_proposal(trial)) is not None), None)

    def _trials(self) -> Iterator[Trial]:
        """Trials to try one after the other until one of them is new."""
        for _ in range(PATIENCE):
            yield self._next_trial()
        if self._grid is None:
            for _ in range(DRAWS):
                yield self._next_trial(startup=sys.maxsize)
        else:
            for params in self._grid:
                if tuple(sorted(params.items())) not in self._tried:
                    self._study.enqueue_trial(params)
                    yield self._next_trial()

    def _new_proposal(self, trial: Trial) -> Proposal | None:
        """What `trial` decodes to if that is new; otherwise the trial is answered here and now."""
        key = tuple(sorted(trial.params.items()))
        repeated = key in self._tried
        self._tried.add(key)
        try:
            proposal = self._space.decode(trial.params)
        except InfeasibleSpace:
            self._tell_trial(trial, {MEMORY_CONSTRAINT: 1.0}, None)
            return None
        digest = proposal.candidate.digest
        if repeated:
            # Telling the same point again and again would pull the sampler towards it.
            self._study.tell(trial, state=TrialState.FAIL)
        elif digest in self._known:
            self._finish(trial, self._known[digest])
        elif digest in self._pending:
            self._pending[digest].append(trial)
        else:
            self._pending[digest] = [trial]
            return proposal
        return None

    def tell(self, result: Result, label: str) -> None:
        """Record a result: for the trials that wait for it, or as a stored trial."""
        digest = result.candidate.digest
        if self._catching_up:
            self._unclaimed = self._next_new()
            self._catching_up = self._unclaimed is not None and self._unclaimed.candidate.digest == digest
        self._known[digest] = result
        waiting = self._pending.pop(digest, [])
        for trial in waiting:
            self._finish(trial, result)
        if not waiting:
            self._add_stored(result, label.partition(":")[2])

    def _next_trial(self, startup: int = STARTUP_TRIALS) -> Trial:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=self._seed * 1_000_003 + self._asked, n_startup_trials=startup)
        self._study.sampler = sampler
        self._asked += 1
        return self._study.ask(self._distributions)

    def _finish(self, trial: Trial, result: Result) -> None:
        if result.outcome in (Outcome.OK, Outcome.INFEASIBLE):
            self._tell_trial(trial, result.constraints, self._values(result))
        else:
            self._study.tell(trial, state=TrialState.FAIL)

    def _tell_trial(self, trial: Trial, constraints: Mapping[str, float], values: list[float] | None) -> None:
        for name in self._constraints:
            trial.set_constraint(name, self._constraint(name, constraints))
        self._study.tell(trial, self._worst() if values is None else values)

    def _add_stored(self, result: Result, plan: str) -> None:
        params = self._space.encode(result.candidate, plan)
        fits = params is not None and all(
            self._distributions[name]._contains(self._distributions[name].to_internal_repr(value))
            for name, value in params.items()
        )
        if params is None or not fits or result.outcome not in (Outcome.OK, Outcome.INFEASIBLE):
            return  # outside the space (a default or seed the knobs exclude), or nothing to learn from
        values = self._values(result)
        self._study.add_trial(
            create_trial(
                params=dict(params),
                distributions=dict(self._distributions),
                values=self._worst() if values is None else values,
                constraints={name: self._constraint(name, result.constraints) for name in self._constraints},
            )
        )

    def _constraint(self, name: str, given: Mapping[str, float]) -> float:
        if name in given:
            return given[name]
        broken = any(value > 0 for value in given.values())
        # A limit nobody could measure counts as missed on a candidate that did not run.
        return 1.0 if broken and name not in SITE_CONSTRAINTS else 0.0

    def _values(self, result: Result) -> list[float] | None:
        values = [result.metric(one.metric) for one in self._objectives]
        return (
            None if any(value is None for value in values) else [float(value) for value in values if value is not None]
        )

    def _worst(self) -> list[float]:
        """The worst value of each objective so far, told for trials that have none. It is never stored."""
        worst = []
        for one in self._objectives:
            seen = [value for result in self._known.values() if (value := result.metric(one.metric)) is not None]
            pick = min if one.direction == "maximize" else max
            worst.append(pick(seen) if seen else 0.0)
        return worst


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The space in Optuna's terms. A parameter with one value is left out: there is nothing to propose."""
    found = {name: _distribution(domain) for name, domain in space.parameters.items()}
    return {name: distribution for name, distribution in found.items() if not distribution.single()}


def _distribution(domain: Domain) -> BaseDistribution:
    if isinstance(domain, tuple):
        return CategoricalDistribution(domain)
    if isinstance(domain, WholeRange):
        return IntDistribution(domain.low, domain.high, log=domain.log, step=domain.step or 1)
    return FloatDistribution(domain.low, domain.high, log=domain.log, step=domain.step)


def _shuffled_grid(distributions: Mapping[str, BaseDistribution], seed: int) -> Iterator[dict[str, Knob]] | None:
    """Every point of a finite space in random order; None where it is not finite or too large to walk through."""
    values = [_values_of(distribution) for distribution in distributions.values()]
    if math.prod(len(one) for one in values) > GRID_LIMIT:
        return None
    points = [dict(zip(distributions, point, strict=True)) for point in itertools.product(*values)]
    random.Random(seed).shuffle(points)  # noqa: S311 - an order, not a secret
    return iter(points)


def _values_of(distribution: BaseDistribution) -> Sequence[Knob]:
    if isinstance(distribution, CategoricalDistribution):
        return [value for value in distribution.choices if value is not None]
    if isinstance(distribution, IntDistribution):
        return range(distribution.low, distribution.high + 1, distribution.step)
    assert isinstance(distribution, FloatDistribution)  # noqa: S101 - the three kinds made above
    if distribution.step is None:
        return range(GRID_LIMIT + 1)
    steps = round((distribution.high - distribution.low) / distribution.step)
    return [distribution.low + step * distribution.step for step in range(steps + 1)]
