"""A Gaussian process over few points of a discrete space: what to expect of an untried point, and how surely.

Decision: the kernel is the exponential one (Matérn 1/2), a product over the parameters. Figures of a server jump where
a batch no longer fits or a partition changes, and a smooth kernel would ring around every jump. Each parameter has a
length of its own, found by maximum likelihood under a wide prior; level and variance follow in closed form. Fitting a
few dozen points takes milliseconds, so that it is done anew for every ask and depends on nothing but the points. The
matrices are small and inverted outright: triangular solvers start threads for them, which costs more than it saves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

#: Share of the variance that is noise: two runs of one candidate hardly differ, and a little keeps matrices invertible.
NOISE = 1e-4
#: Mean and standard deviation of the prior of a length's logarithm; a parameter runs from 0 to 1.
LENGTH_PRIOR = (1.0, 1.5)
#: Least and greatest logarithm of a length.
LENGTH_BOUNDS = (-3.0, 5.0)
#: Steps of the fit at most.
STEPS = 25
#: Points whose lengths are fitted, the last ones; all are conditioned on.
FITTED = 80


class GaussianProcess:
    """Points with their targets, and what follows from them for other points."""

    def __init__(self, points: Floats, targets: Floats, ordered: Flags, rates: Floats | None = None) -> None:
        """Condition on points.

        Args:
            points: one row a point. An ordered parameter runs from 0 to 1; of another only counts what is equal.
            targets: one a row, in any unit.
            ordered: one a column.
            rates: one over the length of every parameter; None: they are fitted.
        """
        self._points, self._targets, self._ordered = points, targets, ordered
        if rates is None:
            rates = _likeliest_rates(_distances(points[-FITTED:], ordered), targets[-FITTED:])
        self._rates = rates
        self._inverse = _inverse(self._kernel(points, points))
        self._level, self._residual, self._variance = _level(self._inverse, targets)

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the target at each of `points`."""
        across = self._kernel(self._points, points)
        unknown = np.maximum(1e-12, 1 - np.einsum("ij,ij->j", across, self._inverse @ across))
        return self._level + self._residual @ across, np.sqrt(self._variance * unknown)

    def believing(self, points: Floats) -> GaussianProcess:
        """As if each of `points`, which are being tried, had come out as it is expected to."""
        mean, _ = self.predict(points)
        together, targets = np.vstack((self._points, points)), np.concatenate((self._targets, mean))
        return GaussianProcess(together, targets, self._ordered, self._rates)

    def _kernel(self, one: Floats, other: Floats) -> Floats:
        total = np.zeros((len(one), len(other)))
        for column, rate in enumerate(self._rates):  # one after the other: all at once would not fit memory
            total += rate * _apart(one[:, column], other[:, column], ordered=bool(self._ordered[column]))
        return np.asarray(np.exp(-total), dtype=np.float64)


def _apart(one: Floats, other: Floats, *, ordered: bool) -> Floats:
    """How far apart, by rows of one and of the other; of what has no order, 1 unless equal."""
    apart = np.abs(one[:, None] - other[None, :])
    return apart if ordered else (apart > 0).astype(np.float64)


def _distances(points: Floats, ordered: Flags) -> Floats:
    """Between points, by parameter: shape [parameters, points, points]."""
    columns = (_apart(column, column, ordered=bool(order)) for column, order in zip(points.T, ordered, strict=True))
    return np.array(list(columns))


def _inverse(kernel: Floats) -> Floats:
    return np.asarray(np.linalg.inv(kernel + NOISE * np.eye(len(kernel))), dtype=np.float64)


def _level(inverse: Floats, targets: Floats) -> tuple[float, Floats, float]:
    """The constant mean, the solved residuals and the variance under which the targets are likeliest."""
    ones = inverse.sum(axis=1)
    level = float(ones @ targets / ones.sum())
    residual = inverse @ (targets - level)
    return level, residual, max(float((targets - level) @ residual) / len(targets), 1e-18)


def _likeliest_rates(apart: Floats, targets: Floats) -> Floats:
    """One over the length of every parameter: the maximum of likelihood and prior."""
    middle, deviation = LENGTH_PRIOR

    def loss(log_lengths: Floats) -> tuple[float, Floats]:
        rates = np.exp(-log_lengths)
        kernel = np.exp(-np.tensordot(rates, apart, 1))
        inverse = _inverse(kernel)
        _, residual, variance = _level(inverse, targets)
        weight = (inverse - np.outer(residual, residual) / variance) * kernel
        prior = (log_lengths - middle) / deviation
        fit = (len(targets) * np.log(variance) - np.linalg.slogdet(inverse)[1]) / 2
        return float(fit + (prior @ prior) / 2), np.tensordot(apart, weight, 2) * rates / 2 + prior / deviation

    start = np.full(len(apart), middle)
    limits = [LENGTH_BOUNDS] * len(apart)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": STEPS})
    return np.asarray(np.exp(-found.x), dtype=np.float64)
