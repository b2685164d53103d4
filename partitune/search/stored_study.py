"""What a stored study found: the study that is meant, its summary, and how far its best is from the limit.

Decision: a study without a name is the one created last, as that is the one a person just ran. To read a table takes
neither the simulator nor the reader of search spaces, which cost a second: they are imported where a figure is worked
out, or where the stored spec is not as it was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from partitune.analysis.final import DecisionRules
from partitune.analysis.summary import Summary
from partitune.candidate import Objective
from partitune.errors import RunError, SpecError
from partitune.spec.metrics import METRICS
from partitune.store import Store
from partitune.store.records import spec_digest
from partitune.store.status import stored_summary

if TYPE_CHECKING:  # see above
    from partitune.spec.search_space import SearchSpace


@dataclass(frozen=True, slots=True)
class Aim:
    """What a study is judged by."""

    objectives: tuple[Objective, ...]  # the first one names the winner
    rules: DecisionRules  # how it ends in a claim
    trials: int  # its budget

    @classmethod
    def of(cls, resolved: Mapping[str, Any]) -> Aim:
        """That of a search space, which `SearchSpace.resolved` has checked."""
        budget, names = resolved["budget"], [objective["metric"] for objective in resolved["objectives"]]
        rules = DecisionRules(budget["finalists"], budget["pairs"], resolved["indifference_zone"])
        return cls(tuple(Objective(name, METRICS[name]) for name in names), rules, budget["trials"])


def study_name(store: Store, given: str | None) -> str:
    """The study that is meant: the one named, else the one created last.

    Raises:
        StoreError: no study has that name. SpecError: the database holds none.
    """
    if given is not None:
        return store.study(given).name
    studies = store.studies()
    if not studies:
        raise SpecError(f"{store.label}: holds no study yet; run partitune search first")
    return studies[-1].name


def spec_of(store: Store, study: str) -> SearchSpace:
    """The search space that study was run on, as it was resolved then."""
    from partitune.spec.search_space import SearchSpace

    return SearchSpace.from_mapping(store.study(study).spec, source=f"{store.label}: study {study}")


def aim_of(store: Store, study: str) -> Aim:
    """What a stored study is judged by. Raises SpecError: its spec."""
    record = store.study(study)
    with suppress(KeyError, TypeError):  # an older release left out what had no meaning then
        if record.spec_digest == spec_digest(record.spec):
            return Aim.of(record.spec)
    return Aim.of(spec_of(store, study).resolved())


def summary_of(store: Store, study: str) -> Summary:
    """What a stored study found, told by its own objectives and rules. Raises StoreError."""
    aim = aim_of(store, study)
    return stored_summary(store, study, aim.objectives, aim.rules)


def explained_summary_of(store: Store, study: str) -> Summary:
    """The same, with how far the best is from the limit and what would make it better, as the simulator sees it."""
    from partitune.analysis.advice import advised
    from partitune.analysis.limits import distances
    from partitune.planning.resolve import resolve
    from partitune.spec.commands import words_of

    summary = summary_of(store, study)
    if summary.best is None:
        return summary
    with suppress(SpecError, RunError):  # a model that is no longer there, a best that only runs on the real engine
        spec, best = spec_of(store, study), summary.best.result.candidate
        problem = resolve(spec)
        away = distances(problem, best)
        return replace(summary, distance=away, advice=advised(problem, best, words=words_of(spec)))
    return summary
