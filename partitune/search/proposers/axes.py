"""The points of a space as rows of numbers, as Optuna's parameters, and back.

Decision: a list of numbers is an order and not a set of names, so it stands by places along the sorted list: that 4096
is a neighbour of 8192 is known before anything is tried. In a row whatever has an order runs from 0 to 1, the rest is a
number that only equality means something of. A parameter with one value is left out, since there is nothing to propose.
Parameters stand in the order of their names: a stored search space has lost the order its flags were written in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from partitune.candidate import FlagValue
from partitune.search.proposers.gaussian_process import Flags, Floats
from partitune.spec.domains import Domain, RealRange, WholeRange

#: Points of the largest space that is counted through.
COUNTED = 10_000
#: How far a neighbour is as a rule, as a share of a parameter's range; which share of what has an order is so near.
NEAR, LITTLE = 0.05, 0.75
#: A value for every parameter that varies.
Point = Mapping[str, FlagValue]


class _Listed:
    """A parameter that takes one of some values; numbers, of which there are three or more, are sorted by size."""

    def __init__(self, values: tuple[FlagValue, ...]) -> None:
        self.ordered = len(values) > 2 and all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in values
        )
        self._values = tuple(sorted(values)) if self.ordered else values
        self.count = len(values)
        self.distribution: BaseDistribution = (
            IntDistribution(0, self.count - 1) if self.ordered else CategoricalDistribution(values)
        )

    def numbers(self) -> Floats:
        """Of every value."""
        return np.arange(self.count) / (self.count - 1 if self.ordered else 1)

    def number(self, value: FlagValue) -> float:
        """Of one value."""
        return self._values.index(value) / (self.count - 1 if self.ordered else 1)

    def value(self, number: float) -> FlagValue:
        """With this number."""
        return self._values[round(number * (self.count - 1)) if self.ordered else round(number)]

    def coded(self, value: FlagValue) -> FlagValue:
        """As Optuna has it."""
        return self._values.index(value) if self.ordered else value

    def named(self, code: FlagValue) -> FlagValue:
        """What Optuna means."""
        return self._values[int(code)] if self.ordered else code


class _Ranged:
    """A parameter between two numbers."""

    ordered = True

    def __init__(self, domain: WholeRange | RealRange) -> None:
        low, high, self._log, self._whole = domain.low, domain.high, domain.log, isinstance(domain, WholeRange)
        self._low, self._high, self._step = low, high, domain.step or (1 if self._whole else None)
        #: How many values there are; infinite where there is no step.
        self.count: float = math.inf if self._step is None else round((high - low) / self._step) + 1
        if low == high:
            self.count = 1
        self.distribution: BaseDistribution = (
            IntDistribution(domain.low, domain.high, log=domain.log, step=domain.step or 1)
            if isinstance(domain, WholeRange)
            else FloatDistribution(low, high, log=domain.log, step=domain.step)
        )

    def numbers(self) -> Floats:
        """Of every value."""
        return np.array([self.number(self._low + place * (self._step or 0)) for place in range(int(self.count))])

    def number(self, value: FlagValue) -> float:
        """Of one value."""
        scale = math.log if self._log else float
        return (scale(float(value)) - scale(self._low)) / ((scale(self._high) - scale(self._low)) or 1.0)

    def value(self, number: float) -> FlagValue:
        """With this number, or the nearest that there is."""
        value = self._low + number * (self._high - self._low)
        if self._log:
            value = self._low * (self._high / self._low) ** number
        if self._step is not None:
            value = self._low + round((value - self._low) / self._step) * self._step
        value = min(max(value, self._low), self._high)
        return round(value) if self._whole else value

    def coded(self, value: FlagValue) -> FlagValue:
        """As Optuna has it."""
        return value

    named = coded


class Axes:
    """The parameters of a space that vary."""

    def __init__(self, parameters: Mapping[str, Domain]) -> None:
        every = {
            name: _Listed(domain) if isinstance(domain, tuple) else _Ranged(domain)
            for name, domain in sorted(parameters.items())
        }
        self._axes = {name: axis for name, axis in every.items() if axis.count > 1}
        self.distributions = {name: axis.distribution for name, axis in self._axes.items()}
        #: Which columns of a row have an order.
        self.ordered: Flags = np.array([axis.ordered for axis in self._axes.values()], dtype=np.bool_)

    def coded(self, point: Point) -> dict[str, FlagValue]:
        """`point`, which may have more, as Optuna's parameters."""
        return {name: axis.coded(point[name]) for name, axis in self._axes.items()}

    def named(self, coded: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
        """The point of Optuna's parameters."""
        return {name: axis.named(coded[name]) for name, axis in self._axes.items()}

    def row(self, point: Point) -> Floats:
        """`point`, which may have more, as numbers."""
        return np.array([axis.number(point[name]) for name, axis in self._axes.items()])

    def point(self, row: Sequence[float] | Floats) -> dict[str, FlagValue]:
        """The point of a row, or the nearest that there is."""
        return {name: axis.value(float(number)) for (name, axis), number in zip(self._axes.items(), row, strict=True)}

    def every_row(self) -> Floats | None:
        """All points, one a row; None where there are more than can be counted through."""
        if math.prod(axis.count for axis in self._axes.values()) > COUNTED:
            return None
        mesh = np.meshgrid(*(axis.numbers() for axis in self._axes.values()), indexing="ij")
        return np.stack([numbers.ravel() for numbers in mesh], axis=1) if mesh else np.zeros((1, 0))

    def drawn(self, count: int, random: np.random.Generator) -> Floats:
        """Points at random."""
        return np.column_stack([_drawn(axis, count, random) for axis in self._axes.values()])

    def around(self, row: Floats, count: int, random: np.random.Generator) -> Floats:
        """Points that differ from one in a parameter each; what has an order mostly by little."""
        rows, columns = np.arange(count), random.integers(len(row), size=count)
        far, near = self.drawn(count, random)[rows, columns], row[columns] + NEAR * random.standard_normal(count)
        little = self.ordered[columns] & (random.random(count) < LITTLE)
        changed = np.tile(row, (count, 1))
        changed[rows, columns] = np.where(little, near.clip(0, 1), far)
        return changed


def _drawn(axis: _Listed | _Ranged, count: int, random: np.random.Generator) -> Floats:
    if isinstance(axis, _Listed):
        return axis.numbers()[random.integers(axis.count, size=count)]
    return random.random(count)
