"""One prediction beside one measurement, and how far a group of them is off.

Decision: every point is predicted twice, with the measured kernels and with the fitted roofline alone, so that the
table itself says where which of the two is the better default. Errors are shares of what was measured; a group is
described by its median and its 90th percentile, because a mean hides both.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import TypeVar

import numpy as np

#: A point counts as covered when at least this share of its decode step rests on measured kernels.
COVERED = 0.7
Key = TypeVar("Key", bound=Hashable)


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
        """Of one error or more."""
        found = np.array(list(errors))
        off = np.abs(found)
        return cls(len(found), float(np.median(found)), float(np.median(off)), float(np.quantile(off, 0.9)))


def grouped(points: Iterable[Point], key: Callable[[Point], Key]) -> dict[Key, list[Point]]:
    """Points by `key`, in the order of the keys' first points."""
    groups: dict[Key, list[Point]] = defaultdict(list)
    for point in points:
        groups[key(point)].append(point)
    return dict(groups)


def shipped_rows(name: str) -> Iterator[dict[str, str]]:
    """Rows of a CSV file that ships with the package; lines that start with # say where it comes from."""
    text = resources.files("partitune.fidelity").joinpath("data", name).read_text("utf-8")
    yield from csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
