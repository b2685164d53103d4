"""What `partitune validate` finds: tables of errors, or pairs of results, each with what is off and a test of record.

Decision: every table may have its test of record, with the limit, and what is off is never left without a word about
its cause: `data/causes.yaml` has them, by table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import yaml

from partitune.fidelity.pairs import Pair
from partitune.fidelity.points import Errors
from partitune.fidelity.set_ups import shipped


@dataclass(frozen=True, slots=True)
class Verdict:
    """A test of record: what was held against which limit, in a sentence."""

    text: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Group:
    """How far the points of one model, GPU and engine are off, with measured kernels and by the roofline alone."""

    model: str
    gpu: str
    engine: str
    errors: Errors
    roofline: Errors


@dataclass(frozen=True, slots=True)
class Validation:
    """Predictions beside what was published: points by group, or pairs of results."""

    title: str
    groups: tuple[Group, ...]  # the last one is all points; none for pairs
    pairs: tuple[Pair, ...]  # none for points
    notes: tuple[str, ...]  # what is off and why, and what was not simulated
    verdict: Verdict | None  # None: there is no limit


@cache
def causes(table: str) -> tuple[Mapping[str, str], ...]:
    """What remains off in one table, and why: `data/causes.yaml`."""
    return tuple(cause for cause in yaml.safe_load(shipped("causes.yaml")) if cause["table"] == table)
