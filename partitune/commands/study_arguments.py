"""The arguments that name a study of a database, and the study they mean.

Decision: a command without a name means the study created last, as that is the one a person just ran.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from partitune.errors import SpecError

if TYPE_CHECKING:  # for annotations only: these imports cost most of a second
    from partitune.analysis.summary import Summary
    from partitune.store import Store

DEFAULT_DATABASE = "results.db"


def add_study_arguments(command: argparse.ArgumentParser) -> None:
    """Which study of which database, and how its figures come out."""
    command.add_argument("study", nargs="?", help="study (default: the one created last)")
    add_output_arguments(command, "JSON on stdout")


def add_output_arguments(command: argparse.ArgumentParser, text: str) -> None:
    """`--db`, and `--json` with its help text."""
    command.add_argument("--db", default=DEFAULT_DATABASE, help=f"results database (default: {DEFAULT_DATABASE})")
    command.add_argument("--json", action="store_true", help=text)


def reading(arguments: argparse.Namespace) -> Store:
    """The database, to read only. Raises StoreError."""
    from partitune.store import Store

    return Store.open(arguments.db, read_only=True)


def study_name(store: Store, given: str | None) -> str:
    """The study a command means: the one named, else the one created last."""
    if given is not None:
        return store.study(given).name
    studies = store.studies()
    if not studies:
        raise SpecError(f"{store.label}: holds no study yet; run partitune search first")
    return studies[-1].name


def summary_of(store: Store, study: str) -> Summary:
    """What that study found."""
    from partitune.search.study import objectives_of, rules_of
    from partitune.spec.search_space import SearchSpace
    from partitune.store.conclusions import stored_summary

    spec = SearchSpace.from_mapping(store.study(study).spec, source=f"{store.label}: study {study}")
    return stored_summary(store, study, objectives_of(spec), rules_of(spec))


def explained_summary_of(store: Store, study: str) -> Summary:
    """The same, with how far the best is from the limit, as the simulator sees it."""
    from partitune.analysis.limits import distances
    from partitune.errors import RunError
    from partitune.planning.resolve import resolve
    from partitune.spec.search_space import SearchSpace

    summary = summary_of(store, study)
    if summary.best is None:
        return summary
    with suppress(SpecError, RunError):  # a model that is no longer there, a best that only runs on the real engine
        spec = SearchSpace.from_mapping(store.study(study).spec, source=f"{store.label}: study {study}")
        return replace(summary, distance=distances(resolve(spec), summary.best.result.candidate))
    return summary
