"""One prediction beside one measurement, and how far a group of them is off.

Decision: every point is predicted twice, with the measured kernels and with the fitted roofline alone, so that the
table itself says where which of the two is the better default. Errors are shares of what was measured; a group is
described by its median and its 90th percentile, because a mean hides both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

#: A point counts as covered when at least this share of its decode step rests on measured kernels.
COVERED = 0.7


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement and its two predictions, in the same unit."""

    engine: str
    model: str
    gpu: str
    case: str  # what else tells it from its neighbours
    measured: float
    predicted: float  # with measured kernels where there are any
    roofline: float  # by the fitted roofline alone
    covered: float = 1.0  # share of the prediction that rests on measured kernels

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1

    @property
    def roofline_error(self) -> float:
        """The same of the roofline."""
        return self.roofline / self.measured - 1


@dataclass(frozen=True, slots=True)
class Errors:
    """How far a group of predictions is off, as shares."""

    points: int
    bias: float  # median, with its sign
    median: float  # of the absolute errors
    p90: float

    @classmethod
    def of(cls, errors: Iterable[float]) -> Errors:
        """The same of one error or more, each predicted over measured, less one."""
        shares = np.array(list(errors))
        off = np.abs(shares)
        return cls(len(shares), float(np.median(shares)), float(np.median(off)), float(np.quantile(off, 0.9)))
