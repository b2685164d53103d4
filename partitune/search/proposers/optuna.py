"""Optuna proposes flags and names a plan; the exact planner turns the plan into layers per stage.

Decisions:
- The study lives in memory, and is a function of the finished trials in their order: each enters it in one way,
  whether it just arrived or was read back. What an ask proposes follows from the random seed, those trials, and what is
  in flight. So a study that ran one candidate at a time goes on after a kill exactly as it would have without it, and
  resuming asks nothing again.
- The sampler is our own (`sampler.py`), since none of Optuna's takes the best point that is left of a small space. It
  is offered nothing twice: a decoded candidate that was measured before, and one that cannot exist under its flags, is
  never launched. What is drawn at random before anything is modelled says so.
- Out of memory and time-outs are told as complete but infeasible, graded by how far off they are, because a failed
  trial teaches Optuna nothing (optuna issues 332, 566). Only broken attempts are told as FAIL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import optuna
from optuna.trial import TrialState, create_trial

from partitune.candidate import FlagValue, Objective, Outcome, Result, Submission
from partitune.errors import InfeasibleSpace
from partitune.execution.driver import MEMORY_CONSTRAINT, RULES_CONSTRAINT, TIME_CONSTRAINT
from partitune.search.proposers.axes import Axes, Point
from partitune.search.proposers.sampler import UnseenSampler
from partitune.search.space import Space

#: Constraints every told trial carries whatever its limits: what can keep a candidate from running at all.
SITE_CONSTRAINTS = (MEMORY_CONSTRAINT, RULES_CONSTRAINT, TIME_CONSTRAINT)


@dataclass(frozen=True, slots=True)
class _Lesson:
    """A finished trial as the sampler sees it; `values` are the worst so far where nothing was measured."""

    params: Mapping[str, FlagValue]
    values: Sequence[float]
    constraints: Mapping[str, float]


class OptunaProposer:
    """The best untried flags and plan by what was told (Optuna 5 ask/tell)."""

    def __init__(self, space: Space, objectives: Sequence[Objective], constraints: Sequence[str], seed: int) -> None:
        """`constraints` are the metrics that have a limit."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._objectives = tuple(objectives)
        self._constraints = (*SITE_CONSTRAINTS, *constraints)
        self._axes = Axes(space.parameters)
        self._sampler = UnseenSampler(self._axes, seed, self._offered)
        directions = [objective.direction for objective in self._objectives]
        self._study = optuna.create_study(directions=directions, sampler=self._sampler)
        self._new: Submission | None = None  # what was offered last
        self._known: set[str] = set()  # digests of all that was proposed, reserved or told of
        self._pending: dict[str, int | None] = {}  # number of the running trial of what was not told of yet, by digest
        self._lessons: list[_Lesson] = []  # that were not taught yet
        self._finished = 0
        self._worst: list[float | None] = [None for _ in self._objectives]

    def ask(self) -> Submission | None:
        """The next new candidate; None when the space holds nothing that was not tried."""
        if not self._axes.distributions:
            return None
        self._teach()
        self._sampler.entropy = (self._finished, len(self._pending))
        trial = self._study.ask(self._axes.distributions)
        if self._new is None or self._sampler.origin is None:
            self._study.tell(trial, state=TrialState.FAIL)
            return None
        new = replace(self._new, origin=self._sampler.origin)
        self._begin(new, trial.number)
        return new

    def _offered(self, point: Point) -> bool:
        """Whether a point gives a candidate, and a new one."""
        self._new = None
        with suppress(InfeasibleSpace):
            decoded = self._space.decode(point)
            self._new = decoded if decoded.candidate.digest not in self._known else None
        return self._new is not None

    def reserve(self, submission: Submission) -> bool:
        """Never propose this candidate from now on. False where it was proposed or told of before."""
        if submission.candidate.digest in self._known:
            return False
        self._begin(submission, self._running(submission))
        return True

    def _running(self, submission: Submission) -> int | None:
        """The number of a trial that others run; None where it is none of this space."""
        point = self._space.encode(submission.candidate, submission.plan)
        if point is None or not self._axes.distributions:
            return None
        params, number = self._axes.coded(point), len(self._study.get_trials(deepcopy=False))
        self._study.add_trial(
            create_trial(state=TrialState.RUNNING, params=params, distributions=self._axes.distributions)
        )
        return number

    def _begin(self, submission: Submission, number: int | None) -> None:
        self._known.add(submission.candidate.digest)
        self._pending[submission.candidate.digest] = number

    def tell(self, submission: Submission, result: Result) -> None:
        """Record a finished trial, asked for here or read back."""
        digest = result.candidate.digest
        running = self._pending.pop(digest, None)
        if running is not None:
            self._study.tell(running, state=TrialState.FAIL)  # it has done its part: keeping others away
        self._known.add(digest)
        self._finished += 1
        values = [result.metric(objective.metric) for objective in self._objectives]
        for index, (objective, *both) in enumerate(zip(self._objectives, self._worst, values, strict=True)):
            self._worst[index] = max((value for value in both if value is not None), key=objective.cost, default=None)
        known = self._space.encode(submission.candidate, submission.plan)  # None: a default or seed outside the space
        if result.outcome in (Outcome.OK, Outcome.INFEASIBLE) and known is not None:
            taught = self._worst if None in values else values
            constraints = {name: self._constraint(name, result.constraints) for name in self._constraints}
            self._lessons.append(_Lesson(self._axes.coded(known), [value or 0.0 for value in taught], constraints))

    def _teach(self) -> None:
        """Bring the study up to date; only when it is asked, as opening a finished study should not cost this."""
        for lesson in self._lessons:
            self._study.add_trial(
                create_trial(
                    params=dict(lesson.params),
                    distributions=self._axes.distributions,
                    values=lesson.values,
                    constraints=dict(lesson.constraints),
                )
            )
        self._lessons.clear()

    def _constraint(self, name: str, given: Mapping[str, float]) -> float:
        if name in given:
            return given[name]
        broken = any(value > 0 for value in given.values())
        # A limit nobody could measure counts as missed on a candidate that did not run.
        return 1.0 if broken and name not in SITE_CONSTRAINTS else 0.0
