"""TPE that ranks points instead of naming one: where the best was tried before, the next best is at hand.

Decision: Optuna's TPE draws some candidates from its density of good trials and names the one with the best ratio of
good to bad. In a small discrete space that is soon one that was tried, and a search that then draws at random has lost
its model. Here the same ratio is taken of the points that are handed in, or of TPE's own draws, and all of them are
kept with their order. Both places where TPE lets itself be changed are Optuna's own (`_parzen_estimator_cls` is there
"to customize the TPE behavior"); a test fails where a release moves them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from optuna.samplers import TPESampler
from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator

from partitune.search.proposers.axes import Columns

#: Draws of TPE's own that are ranked, where no points are handed in.
DRAWN = 24


class RankingSampler(TPESampler):
    """Keeps what it considered for the last trial, and in which order it liked it. Asks for what it likes best."""

    def __init__(self, points: Columns | None, seed: int, startup: int) -> None:
        """`points` are ranked; None: some that TPE draws. Below `startup` trials nothing is modelled or ranked."""
        super().__init__(seed=seed, n_startup_trials=startup, n_ei_candidates=DRAWN, multivariate=True)
        self.considered: Columns = {}
        self.order: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # the best first
        if points is not None:
            self._parzen_estimator_cls = _considering(points)

    def _compute_acquisition_func(
        self, samples: Mapping[str, NDArray[np.float64]], mpe_below: _ParzenEstimator, mpe_above: _ParzenEstimator
    ) -> NDArray[np.float64]:
        self.considered = dict(samples)
        scores: NDArray[np.float64] = super()._compute_acquisition_func(self.considered, mpe_below, mpe_above)
        self.order = np.argsort(-scores, kind="stable")
        return scores


def _considering(points: Columns) -> type[_ParzenEstimator]:
    """An estimator whose draws are `points`."""

    class Considering(_ParzenEstimator):
        def sample(self, rng: np.random.RandomState, size: int) -> Columns:  # noqa: ARG002 - Optuna's words
            return points

    return Considering
