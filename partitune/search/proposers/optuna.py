"""Optuna proposes flags and names a plan; the exact planner turns the plan into layers per stage.

Decisions:
- The study lives in memory, and is a function of the finished trials in their order: each enters it in one way,
  whether it just arrived or was read back. What an ask proposes follows from the random seed, those trials, and what is
  in flight. So a study that ran one candidate at a time goes on after a kill exactly as it would have without it, and
  resuming asks nothing again.
- The sampler is shown the last EPOCH to 2 EPOCH trials and the front of all before them: past a thousand, TPE spends a
  second on each ask and learns nothing from most of what it reads.
- Of a small space all points are ranked by TPE's own measure and the best new one is taken, so that its model is
  followed to the end; of a large one its draws. What is drawn at random, or walked through, says so.
- A decoded candidate that was measured before, and one that cannot exist under its flags, is never launched.
- Out of memory and time-outs are told as complete but infeasible, graded by how far off they are, because a failed
  trial teaches Optuna nothing (optuna issues 332, 566). Only broken attempts are told as FAIL.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import optuna
from optuna.samplers import RandomSampler
from optuna.trial import Trial, TrialState, create_trial

from partitune.analysis.pareto import front
from partitune.candidate import FlagValue, Objective, Origin, Outcome, Result, Submission
from partitune.errors import InfeasibleSpace
from partitune.execution.driver import MEMORY_CONSTRAINT, RULES_CONSTRAINT, TIME_CONSTRAINT
from partitune.search.proposers.axes import Axes, Columns, Point
from partitune.search.proposers.ranking import RankingSampler
from partitune.search.space import Space

#: Rankings of a large space in a row that held nothing new before points are drawn at random.
PATIENCE = 3
#: Points of a small space that are ranked for an ask; of a larger one another sample for each.
CONSIDERED = 500
#: Random draws in a row that gave nothing new before a large space counts as exhausted.
DRAWS = 500
#: Constraints every told trial carries whatever its limits: what can keep a candidate from running at all.
SITE_CONSTRAINTS = (MEMORY_CONSTRAINT, RULES_CONSTRAINT, TIME_CONSTRAINT)
#: Random trials before TPE models anything.
STARTUP_TRIALS = 3
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
        self._axes = Axes(space.parameters)
        self._grid = self._axes.grid(seed)
        self._walked = 0  # points of the grid that were passed over or taken in its order
        self._known: set[str] = set()  # digests of all that was proposed, reserved or told of
        self._pending: dict[str, Trial | None] = {}  # of those that were not told of yet; their trial if of this study
        self._lessons: list[_Lesson] = []  # of this epoch and the one before, and the front of what came earlier
        self._epoch_start = 0
        self._taught = 0
        self._finished = 0
        self._worst: list[float | None] = [None for _ in self._objectives]

    def ask(self) -> Submission | None:
        """The next new candidate; None when the space holds nothing that was not tried."""
        if not self._axes.distributions:
            return None
        self._teach()
        for point, origin in self._points():
            if (new := self._new(point)) is not None:
                new = replace(new, origin=origin)
                self._study.enqueue_trial(self._axes.coded(point))
                self._study.sampler = RandomSampler(self._seed)  # all of the trial is given: nothing to model
                self._begin(new, self._study.ask(self._axes.distributions))
                return new
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

    def _points(self) -> Iterator[tuple[Point, Origin]]:
        """Points to take one after the other until one of them is new, each with what makes it."""
        modelled = self._taught >= STARTUP_TRIALS
        if modelled:
            for attempt in range(PATIENCE if self._grid is None else 1):
                for point in self._ranked(attempt, STARTUP_TRIALS):
                    yield point, Origin.SAMPLER
        if self._grid is None:
            for draw in range(DRAWS):
                for point in self._ranked(PATIENCE + draw, sys.maxsize):
                    yield point, Origin.RANDOM
            return
        # Never from the start: what was passed over once is never new again.
        while self._walked < len(self._grid):
            yield self._grid[self._walked], Origin.ENUMERATED if modelled else Origin.RANDOM
            self._walked += 1

    def _ranked(self, attempt: int, startup: int) -> Iterator[Point]:
        """The best first by TPE's own ratio, of its draws or of a small space's points; one at random at first."""
        seed = int(self._entropy(attempt).generate_state(1)[0])
        considered: Columns | None = None
        if self._grid is not None:
            among = np.random.default_rng(seed).permutation(len(self._grid))[:CONSIDERED]
            considered = self._axes.columns([self._grid[index] for index in among])
        sampler = RankingSampler(considered, seed, startup)
        self._study.sampler = sampler
        trial = self._study.ask(self._axes.distributions)
        self._study.tell(trial, state=TrialState.FAIL)  # TPE does not look at these
        if not len(sampler.order):
            yield self._axes.named(trial.params)
        for index in sampler.order:
            yield self._axes.point(sampler.considered, index)

    def _entropy(self, attempt: int) -> np.random.SeedSequence:
        """Random numbers of their own for every (seed, finished trials, trials in flight, attempt)."""
        return np.random.SeedSequence([self._seed, self._finished, len(self._pending), attempt])

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
            params = self._axes.coded(known)
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
                create_trial(
                    params=params, distributions=self._axes.distributions, values=values, constraints=constraints
                )
            )
        self._taught = len(self._lessons)

    def _new_study(self) -> optuna.Study:
        return optuna.create_study(directions=[objective.direction for objective in self._objectives])

    def _constraint(self, name: str, given: Mapping[str, float]) -> float:
        if name in given:
            return given[name]
        broken = any(value > 0 for value in given.values())
        # A limit nobody could measure counts as missed on a candidate that did not run.
        return 1.0 if broken and name not in SITE_CONSTRAINTS else 0.0
