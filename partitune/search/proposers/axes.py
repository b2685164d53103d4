"""The points of a space in the numbers of Optuna's parameters, and back.

Decision: a list of numbers is an order and not a set of names, so it is told to the sampler as places along the sorted
list: that 4096 is a neighbour of 8192 is known before anything is tried. A parameter with one value is left out, since
there is nothing to propose. Parameters stand in the order of their names: a stored search space has lost the order its
flags were written in, and samplers draw one after the other.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from partitune.candidate import FlagValue
from partitune.spec.domains import Domain, WholeRange

#: Largest number of points of a space whose points are walked through.
GRID_LIMIT = 50_000
#: A value for every parameter that varies.
Point = Mapping[str, FlagValue]
#: Internal values of many points by parameter, as Optuna's samplers hold them.
Columns = dict[str, NDArray[np.float64]]


class Axes:
    """The parameters of a space that vary."""

    def __init__(self, parameters: Mapping[str, Domain]) -> None:
        self._ordered = {name: tuple(sorted(domain)) for name, domain in parameters.items() if _is_order(domain)}
        every = {name: self._distribution(name, domain) for name, domain in sorted(parameters.items())}
        self.distributions = {name: domain for name, domain in every.items() if not domain.single()}
        self._domains = {name: parameters[name] for name in self.distributions}

    def _distribution(self, name: str, domain: Domain) -> BaseDistribution:
        if name in self._ordered:
            return IntDistribution(0, len(self._ordered[name]) - 1)
        if isinstance(domain, tuple):
            return CategoricalDistribution(domain)
        if isinstance(domain, WholeRange):
            return IntDistribution(domain.low, domain.high, log=domain.log, step=domain.step or 1)
        return FloatDistribution(domain.low, domain.high, log=domain.log, step=domain.step)

    def coded(self, point: Point) -> dict[str, FlagValue]:
        """`point`, which may have more, as Optuna's parameters."""
        return {
            name: self._ordered[name].index(point[name]) if name in self._ordered else point[name]
            for name in self.distributions
        }

    def columns(self, points: Sequence[Point]) -> Columns:
        """`points` as samplers hold them."""
        coded = [self.coded(point) for point in points]
        return {
            name: np.array([axis.to_internal_repr(one[name]) for one in coded], dtype=np.float64)
            for name, axis in self.distributions.items()
        }

    def point(self, columns: Columns, index: int) -> dict[str, FlagValue]:
        """One of the points of `columns`."""
        return self.named(
            {name: axis.to_external_repr(columns[name][index]) for name, axis in self.distributions.items()}
        )

    def named(self, coded: Mapping[str, Any]) -> dict[str, FlagValue]:
        """The point of Optuna's parameters."""
        return {name: self._ordered[name][value] if name in self._ordered else value for name, value in coded.items()}

    def grid(self, seed: int) -> Sequence[Point] | None:
        """Every point of a finite space in random order; None where it is not finite or too large to walk through."""
        values = [_values_of(domain) for domain in self._domains.values()]
        if math.prod(map(len, values)) > GRID_LIMIT:
            return None
        points = [dict(zip(self._domains, point, strict=True)) for point in itertools.product(*values)]
        random.Random(seed).shuffle(points)  # noqa: S311 - an order, not a secret
        return points


def _is_order(domain: Domain) -> bool:
    """A list of three numbers or more: of two, neither is between others."""
    return (
        isinstance(domain, tuple)
        and len({*domain}) == len(domain) > 2
        and all(isinstance(value, int | float) and not isinstance(value, bool) for value in domain)
    )


def _values_of(domain: Domain) -> Sequence[FlagValue]:
    """Every value of a domain; of one that is not finite, more than a grid may have points."""
    if isinstance(domain, tuple):
        return domain
    if isinstance(domain, WholeRange):
        return range(domain.low, domain.high + 1, domain.step or 1)
    if domain.step is None:
        return range(GRID_LIMIT + 1)
    return [domain.low + step * domain.step for step in range(round((domain.high - domain.low) / domain.step) + 1)]
