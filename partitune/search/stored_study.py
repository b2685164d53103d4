"""What a stored study found: the study that is meant, its summary, and how far its best is from the limit.

Decision: a study without a name is the one created last, as that is the one a person just ran.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from partitune.analysis.limits import distances
from partitune.analysis.summary import Summary
from partitune.errors import RunError, SpecError
from partitune.planning.resolve import resolve
from partitune.search.study import objectives_of, rules_of
from partitune.spec.search_space import SearchSpace
from partitune.store import Store
from partitune.store.status import stored_summary


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
    return SearchSpace.from_mapping(store.study(study).spec, source=f"{store.label}: study {study}")


def summary_of(store: Store, study: str) -> Summary:
    """What a stored study found, told by its own objectives and rules. Raises StoreError."""
    spec = spec_of(store, study)
    return stored_summary(store, study, objectives_of(spec), rules_of(spec))


def explained_summary_of(store: Store, study: str) -> Summary:
    """The same, with how far the best is from the limit, as the simulator sees it."""
    summary = summary_of(store, study)
    if summary.best is None:
        return summary
    with suppress(SpecError, RunError):  # a model that is no longer there, a best that only runs on the real engine
        return replace(summary, distance=distances(resolve(spec_of(store, study)), summary.best.result.candidate))
    return summary
