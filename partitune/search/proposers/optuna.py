"""Optuna proposes flags and names a plan; the exact planner turns the plan into layers per stage.

Decisions:
- The study lives in memory, and is a function of the finished trials in their order: each enters it in one way,
  whether it just arrived or was read back. What an ask proposes follows from the random seed, those trials, and what is
  in flight. So a study that ran one candidate at a time goes on after a kill exactly as it would have without it, and
  resuming asks nothing again.
- The sampler is shown the last EPOCH to 2 EPOCH trials and the front of all before them: past a thousand, TPE spends a
  second on each ask and learns nothing from most of what it reads.
- A decoded candidate that was measured before, and one that cannot exist under its flags, is never launched.
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
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial, TrialState, create_trial

from partitune.analysis.pareto import front
from partitune.candidate import FlagValue, Objective, Outcome, Result, Submission
from partitune.errors import InfeasibleSpace
from partitune.execution.driver import MEMORY_CONSTRAINT, RULES_CONSTRAINT, TIME_CONSTRAINT
from partitune.search.space import Domain, Space
from partitune.spec.domains import WholeRange

#: Asks in a row that gave nothing new before what is left of a small space is walked through, or of a large one drawn.
PATIENCE = 3
#: Random draws in a row that gave nothing new before a large space counts as exhausted.
DRAWS = 500
#: Largest number of points that is walked through.
GRID_LIMIT = 50_000
#: Constraints every told trial carries whatever its limits: what can keep a candidate from running at all.
SITE_CONSTRAINTS = (MEMORY_CONSTRAINT, RULES_CONSTRAINT, TIME_CONSTRAINT)
#: Random trials before TPE models anything.
STARTUP_TRIALS = 10
#: Trials after which the sampler's memory is thinned out.
EPOCH = 1000


@dataclass(frozen=True, slots=True)
class _Lesson:
    """A finished trial as the sampler sees it; `values` are the worst so far where nothing was measured."""

    params: Mapping[str, FlagValue]
    values: Sequence[float]
    result: Result


class OptunaProposer:
    """TPE over flags and plans (Optuna 5 ask/tell)."""

    def __init__(self, space: Space, objectives: Sequence[Objective], constraints: Sequence[str], seed: int) -> None:
        """`constraints` are the metrics that have a limit."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._objectives = tuple(objectives)
        self._constraints = (*SITE_CONSTRAINTS, *constraints)
        self._seed = seed
        self._study = self._new_study()
        self._distributions = distributions(space)
        self._grid = _shuffled_grid(self._distributions, seed)
        self._known: set[str] = set()
        self._pending: dict[str, Trial | None] = {}
        self._lessons: list[_Lesson] = []  # of this epoch and the one before, and the front of what came earlier
        self._epoch_start = 0
        self._taught = 0
        self._finished = 0
        self._worst: list[float | None] = [None for _ in self._objectives]

    def ask(self) -> Submission | None:
        """The next new candidate; None when the space holds nothing that was not tried."""
        if not self._distributions:
            return None
        self._teach()
        for trial in self._trials():
            decoded = self._decoded(trial.params)
            if decoded is not None and self._is_new(decoded):
                self._pending[decoded.candidate.digest] = trial
                return decoded
            self._study.tell(trial, state=TrialState.FAIL)  # TPE does not look at these
        return None

    def reserve(self, submission: Submission) -> bool:
        """Never propose this candidate from now on. False where it was proposed or told of before."""
        new = self._is_new(submission)
        if new:
            self._pending[submission.candidate.digest] = None
        return new

    def _is_new(self, submission: Submission) -> bool:
        digest = submission.candidate.digest
        return digest not in self._known and digest not in self._pending

    def _decoded(self, params: Mapping[str, FlagValue]) -> Submission | None:
        try:
            return self._space.decode(params)
        except InfeasibleSpace:
            return None

    def _trials(self) -> Iterator[Trial]:
        """Trials to try one after the other until one of them is new."""
        for attempt in range(PATIENCE):
            yield self._next_trial(attempt)
        if self._grid is None:
            for attempt in range(PATIENCE, PATIENCE + DRAWS):
                yield self._next_trial(attempt, startup=sys.maxsize)
            return
        for params in self._grid:  # never from the start: what was passed over once is never new again
            decoded = self._decoded(params)
            if decoded is not None and self._is_new(decoded):
                self._study.enqueue_trial(params)
                yield self._next_trial(PATIENCE)

    def tell(self, submission: Submission, result: Result) -> None:
        """Record a finished trial, asked for here or read back."""
        digest = result.candidate.digest
        trial = self._pending.pop(digest, None)
        if trial is not None:
            self._study.tell(trial, state=TrialState.FAIL)  # it has done its part: keeping others away
        self._known.add(digest)
        self._finished += 1
        values = [result.metric(one.metric) for one in self._objectives]
        for index, (one, value) in enumerate(zip(self._objectives, values, strict=True)):
            worst = self._worst[index]
            if value is not None and (worst is None or one.cost(value) > one.cost(worst)):
                self._worst[index] = value
        params = self._params_of(submission)
        if result.outcome in (Outcome.OK, Outcome.INFEASIBLE) and params is not None:
            told = self._worst if any(value is None for value in values) else values
            self._lessons.append(_Lesson(params, [value or 0.0 for value in told], result))
        if len(self._lessons) - self._epoch_start >= EPOCH:
            self._begin_epoch()

    def _params_of(self, submission: Submission) -> dict[str, FlagValue] | None:
        """What proposes this candidate; None outside the space: a default or seed that the flags exclude."""
        known = self._space.encode(submission.candidate, submission.plan)
        if known is None or any(
            name not in known or not domain._contains(domain.to_internal_repr(known[name]))
            for name, domain in self._distributions.items()
        ):
            return None
        return {name: known[name] for name in self._distributions}

    def _begin_epoch(self) -> None:
        old, recent = self._lessons[: self._epoch_start], self._lessons[self._epoch_start :]
        kept = front([lesson.result for lesson in old], self._objectives)
        self._lessons = [old[index] for index in sorted(kept)] + recent
        self._epoch_start = len(self._lessons)
        self._study, self._taught = self._new_study(), 0
        self._pending = dict.fromkeys(self._pending)  # their trials belong to the study that was left

    def _teach(self) -> None:
        """Bring the study up to date; only when it is asked, as opening a finished study should not cost this."""
        for lesson in self._lessons[self._taught :]:
            self._study.add_trial(
                create_trial(
                    params=dict(lesson.params),
                    distributions=self._distributions,
                    values=lesson.values,
                    constraints={name: self._constraint(name, lesson.result.constraints) for name in self._constraints},
                )
            )
        self._taught = len(self._lessons)

    def _new_study(self) -> optuna.Study:
        return optuna.create_study(directions=[one.direction for one in self._objectives])

    def _next_trial(self, attempt: int, startup: int = STARTUP_TRIALS) -> Trial:
        """Random numbers of their own for every (seed, finished trials, trials in flight, attempt)."""
        numbers = np.random.SeedSequence([self._seed, self._finished, len(self._pending), attempt])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study.sampler = optuna.samplers.TPESampler(
                seed=int(numbers.generate_state(1)[0]), n_startup_trials=startup
            )
        return self._study.ask(self._distributions)

    def _constraint(self, name: str, given: Mapping[str, float]) -> float:
        if name in given:
            return given[name]
        broken = any(value > 0 for value in given.values())
        # A limit nobody could measure counts as missed on a candidate that did not run.
        return 1.0 if broken and name not in SITE_CONSTRAINTS else 0.0


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The space in Optuna's terms. A parameter with one value is left out: there is nothing to propose.

    In the order of their names: a stored search space has lost the order its flags were written in, and samplers draw
    one after the other.
    """
    found = {name: _distribution(domain) for name, domain in sorted(space.parameters.items())}
    return {name: distribution for name, distribution in found.items() if not distribution.single()}


def _distribution(domain: Domain) -> BaseDistribution:
    if isinstance(domain, tuple):
        return CategoricalDistribution(domain)
    if isinstance(domain, WholeRange):
        return IntDistribution(domain.low, domain.high, log=domain.log, step=domain.step or 1)
    return FloatDistribution(domain.low, domain.high, log=domain.log, step=domain.step)


def _shuffled_grid(distributions: Mapping[str, BaseDistribution], seed: int) -> Iterator[dict[str, FlagValue]] | None:
    """Every point of a finite space in random order; None where it is not finite or too large to walk through."""
    values = [_values_of(distribution) for distribution in distributions.values()]
    if math.prod(len(one) for one in values) > GRID_LIMIT:
        return None
    points = [dict(zip(distributions, point, strict=True)) for point in itertools.product(*values)]
    random.Random(seed).shuffle(points)  # noqa: S311 - an order, not a secret
    return iter(points)


def _values_of(distribution: BaseDistribution) -> Sequence[FlagValue]:
    if isinstance(distribution, CategoricalDistribution):
        return [value for value in distribution.choices if value is not None]
    if isinstance(distribution, IntDistribution):
        return range(distribution.low, distribution.high + 1, distribution.step)
    assert isinstance(distribution, FloatDistribution)  # noqa: S101 - the three kinds made above
    if distribution.step is None:
        return range(GRID_LIMIT + 1)
    steps = round((distribution.high - distribution.low) / distribution.step)
    return [distribution.low + step * distribution.step for step in range(steps + 1)]
