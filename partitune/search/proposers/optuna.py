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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial, TrialState, create_trial

from partitune.analysis.pareto import front
from partitune.candidate import FlagValue, Objective, Origin, Outcome, Result, Submission
from partitune.errors import InfeasibleSpace
from partitune.execution.driver import MEMORY_CONSTRAINT, RULES_CONSTRAINT, TIME_CONSTRAINT
from partitune.search.space import Space
from partitune.spec.domains import Domain, WholeRange

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
        # In the order of their names: a stored search space has lost the order its flags were written in, and samplers
        # draw one after the other. A parameter with one value is left out: there is nothing to propose.
        every = {name: _distribution(domain) for name, domain in sorted(space.parameters.items())}
        self._distributions = {name: domain for name, domain in every.items() if not domain.single()}
        self._grid = _shuffled_grid({name: space.parameters[name] for name in self._distributions}, seed)
        self._known: set[str] = set()  # digests of all that was proposed, reserved or told of
        self._pending: dict[str, Trial | None] = {}  # of those that were not told of yet; their trial if of this study
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
        for trial, origin in self._trials():
            if (new := self._new(trial.params)) is not None:
                new = replace(new, origin=origin)
                self._begin(new, trial)
                return new
            self._study.tell(trial, state=TrialState.FAIL)  # TPE does not look at these
        return None

    def reserve(self, submission: Submission) -> bool:
        """Never propose this candidate from now on. False where it was proposed or told of before."""
        if submission.candidate.digest in self._known:
            return False
        self._begin(submission, None)
        return True

    def _begin(self, submission: Submission, trial: Trial | None) -> None:
        self._known.add(submission.candidate.digest)
        self._pending[submission.candidate.digest] = trial

    def _new(self, params: Mapping[str, FlagValue]) -> Submission | None:
        """The candidate of these parameters; None where no partition fits them, and where it is known."""
        with suppress(InfeasibleSpace):
            decoded = self._space.decode(params)
            if decoded.candidate.digest not in self._known:
                return decoded
        return None

    def _trials(self) -> Iterator[tuple[Trial, Origin]]:
        """Trials to try one after the other until one of them is new, each with what makes it."""
        drawn = DRAWS if self._grid is None else 0
        for attempt, startup in enumerate([STARTUP_TRIALS] * PATIENCE + [sys.maxsize] * drawn):
            yield self._next_trial(attempt, startup), Origin.RANDOM if self._taught < startup else Origin.SAMPLER
        for params in self._grid or ():  # never from the start: what was passed over once is never new again
            if self._new(params) is not None:
                self._study.enqueue_trial(params)
                yield self._next_trial(PATIENCE, STARTUP_TRIALS), Origin.ENUMERATED

    def tell(self, submission: Submission, result: Result) -> None:
        """Record a finished trial, asked for here or read back."""
        digest = result.candidate.digest
        trial = self._pending.pop(digest, None)
        if trial is not None:
            self._study.tell(trial, state=TrialState.FAIL)  # it has done its part: keeping others away
        self._known.add(digest)
        self._finished += 1
        values = [result.metric(objective.metric) for objective in self._objectives]
        for index, (objective, *both) in enumerate(zip(self._objectives, self._worst, values, strict=True)):
            self._worst[index] = max((value for value in both if value is not None), key=objective.cost, default=None)
        known = self._space.encode(submission.candidate, submission.plan)  # None: a default or seed outside the space
        if result.outcome in (Outcome.OK, Outcome.INFEASIBLE) and known is not None:
            params = {name: known[name] for name in self._distributions}
            taught = self._worst if None in values else values
            self._lessons.append(_Lesson(params, [value or 0.0 for value in taught], result))
        if len(self._lessons) - self._epoch_start >= EPOCH:
            self._begin_epoch()

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
            params, values, given = dict(lesson.params), lesson.values, lesson.result.constraints
            constraints = {name: self._constraint(name, given) for name in self._constraints}
            self._study.add_trial(
                create_trial(params=params, distributions=self._distributions, values=values, constraints=constraints)
            )
        self._taught = len(self._lessons)

    def _new_study(self) -> optuna.Study:
        return optuna.create_study(directions=[objective.direction for objective in self._objectives])

    def _next_trial(self, attempt: int, startup: int) -> Trial:
        """Random numbers of their own for every (seed, finished trials, trials in flight, attempt)."""
        numbers = np.random.SeedSequence([self._seed, self._finished, len(self._pending), attempt])
        seed = int(numbers.generate_state(1)[0])
        self._study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup)
        return self._study.ask(self._distributions)

    def _constraint(self, name: str, given: Mapping[str, float]) -> float:
        if name in given:
            return given[name]
        broken = any(value > 0 for value in given.values())
        # A limit nobody could measure counts as missed on a candidate that did not run.
        return 1.0 if broken and name not in SITE_CONSTRAINTS else 0.0


def _distribution(domain: Domain) -> BaseDistribution:
    if isinstance(domain, tuple):
        return CategoricalDistribution(domain)
    if isinstance(domain, WholeRange):
        return IntDistribution(domain.low, domain.high, log=domain.log, step=domain.step or 1)
    return FloatDistribution(domain.low, domain.high, log=domain.log, step=domain.step)


def _shuffled_grid(domains: Mapping[str, Domain], seed: int) -> Iterator[dict[str, FlagValue]] | None:
    """Every point of a finite space in random order; None where it is not finite or too large to walk through."""
    values = [_values_of(domain) for domain in domains.values()]
    if math.prod(map(len, values)) > GRID_LIMIT:
        return None
    points = [dict(zip(domains, point, strict=True)) for point in itertools.product(*values)]
    random.Random(seed).shuffle(points)  # noqa: S311 - an order, not a secret
    return iter(points)


def _values_of(domain: Domain) -> Sequence[FlagValue]:
    """Every value of a domain; of one that is not finite, more than a grid may have points."""
    if isinstance(domain, tuple):
        return domain
    if isinstance(domain, WholeRange):
        return range(domain.low, domain.high + 1, domain.step or 1)
    if domain.step is None:
        return range(GRID_LIMIT + 1)
    return [domain.low + step * domain.step for step in range(round((domain.high - domain.low) / domain.step) + 1)]
