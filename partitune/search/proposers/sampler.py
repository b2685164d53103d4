"""A sampler for spaces that can be counted through: always the best point that was not tried, by what trials taught.

Decision: TPE and its kin draw points and name the best of their draws, which in a small space is soon one that was
tried. Here a Gaussian process is fitted to the trials, and every point that is left is ranked by its expected
improvement; the best one that gives a new candidate is taken, so that the model is followed to the end. Trials that are
running count as if they had come out as expected, which keeps others away from them. It is one of Optuna's samplers,
made of nothing of Optuna but what is public.

A space that cannot be counted through (a range of reals, millions of points) is sampled: random points and, around the
best trial, points that differ from it in one parameter are ranked in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from partitune.candidate import Origin
from partitune.search.proposers.axes import Axes, Point
from partitune.search.proposers.gaussian_process import Floats, GaussianProcess
from partitune.search.proposers.improvement import expected_improvement, learnt, targets, weights

#: Trials, at random, before anything is modelled: the model itself looks far from what it knows.
STARTUP_TRIALS = 1
#: Trials that the model is made of at most: past this, the best and the last ones.
LEARNT = 100
#: Points of a space that cannot be counted through that are considered for an ask: drawn at random, around the best.
DRAWN, AROUND = 512, 128


@dataclass(frozen=True, slots=True)
class _Known:
    """A finished trial."""

    row: Floats
    costs: Floats  # by objective, less is better
    miss: float  # by how much it is off what it has to keep, in all


@dataclass(frozen=True, slots=True)
class _Told:
    """Finished trials to learn from, each in one number, less is better."""

    rows: Floats
    numbers: Floats


class UnseenSampler(BaseSampler):
    """Names the most promising point that gives something new."""

    def __init__(self, axes: Axes, seed: int, offer: Callable[[Point], bool]) -> None:
        """`offer` says of a point whether it is taken: False where it cannot exist or gives what is known."""
        self._axes, self._seed, self._offer = axes, seed, offer
        self._every = axes.every_row()  # None: too many
        self._closed: set[int] = set()  # of these the points that were offered
        self._known: dict[int, _Known] = {}  # by the trial's number
        self._anything = RandomSampler(seed)
        #: Random numbers of their own for every ask: whoever asks changes it before.
        self.entropy: Sequence[int] = ()
        #: What made the last point; None where none was left.
        self.origin: Origin | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002 - Optuna's words
        """All parameters belong together."""
        return dict(self._axes.distributions)

    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002 - Optuna's words
    ) -> dict[str, Any]:
        """The next point; empty where none is left."""
        random = np.random.default_rng([self._seed, *self.entropy])
        others = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        running = [self._axes.row(self._axes.named(other.params)) for other in others if other.number != trial.number]
        told = self._told(study, len(running), random)
        modelled = len(told.numbers) >= STARTUP_TRIALS
        # All points, also those that are closed: what is left differs, and with it the last digits, after a resume.
        rows = self._considered(told, random) if self._every is None else self._every
        order = random.permutation(len(rows))  # of equally promising ones, too
        if modelled:
            order = order[np.argsort(-self._promise(told, running, rows[order]), kind="stable")]
        self.origin = Origin.SAMPLER if modelled else Origin.RANDOM
        for index in order:
            if self._every is not None and index in self._closed:
                continue
            self._closed.add(index)  # taken now or never
            if self._offer(point := self._axes.point(rows[index])):
                return self._axes.coded(point)
        self.origin = None
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Of a parameter that is not of the space, or where none of its points is left: anything."""
        return self._anything.sample_independent(study, trial, param_name, param_distribution)

    def _told(self, study: Study, running: int, random: np.random.Generator) -> _Told:
        """What finished trials taught, in one number each: another one at every ask where objectives are several."""
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        signs = np.array([-1.0 if way == StudyDirection.MAXIMIZE else 1.0 for way in study.directions])
        for trial in trials:
            if trial.number not in self._known:
                row = self._axes.row(self._axes.named(trial.params))
                miss = sum(max(0.0, value) for value in trial.constraints.values())
                self._known[trial.number] = _Known(row, signs * np.array(trial.values), miss)
        known = [self._known[trial.number] for trial in trials]
        weight = weights(len(signs), len(trials) + running, random)
        costs = np.array([one.costs for one in known]).reshape(-1, len(signs))
        numbers = targets(costs, np.array([one.miss for one in known]), weight)
        kept = learnt(numbers, LEARNT)
        rows = np.array([known[index].row for index in kept])
        return _Told(rows, numbers[kept])

    def _promise(self, told: _Told, running: Sequence[Floats], rows: Floats) -> Floats:
        """Of every row, by how much it is expected to better the best."""
        process = GaussianProcess(told.rows, told.numbers, self._axes.ordered)
        if running:
            process = process.believing(np.array(running))
        mean, deviation = process.predict(rows)
        return expected_improvement(mean, deviation, float(told.numbers.min()))

    def _considered(self, told: _Told, random: np.random.Generator) -> Floats:
        """Some of the points of a space that cannot be counted through."""
        drawn = self._axes.drawn(DRAWN, random)
        if not len(told.numbers):
            return drawn
        return np.vstack((drawn, self._axes.around(told.rows[told.numbers.argmin()], AROUND, random)))
