"""The results database: append-only, one commit per finished trial, one writing process, any number of readers.

Decision: this is the one source of truth. A sampler is rebuilt by replaying `trials()`; nothing else remembers a study.
A result counts as soon as `record` returns: a killed process loses none. Recording is idempotent: the same trial again
changes nothing, another result under a number that is taken is refused. Figures that are not numbers never get in;
whoever measures turns them into an `invalid` result beforehand (`partitune.result.flaw_in` says which figure it is).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Engine, func, select, update
from sqlalchemy.orm import Session, selectinload

from partitune import __version__
from partitune.errors import StoreError
from partitune.result import Outcome, Result, flaw_in
from partitune.store.cells import to_json
from partitune.store.connection import connect, for_writing
from partitune.store.faults import explained
from partitune.store.location import check_readable, check_writable, locate
from partitune.store.migrations import check, migrate
from partitune.store.records import (
    StudyRecord,
    StudyState,
    TrialRecord,
    flaw_of,
    printable,
    spec_digest,
    study_record,
    to_row,
    trial_record,
)
from partitune.store.schema import StudyRow, TrialRow
from partitune.store.spec_changes import changes
from partitune.store.writer import WriterLock, lock_for_writing


class Store:
    """An open results database. A context manager; every error is a StoreError that names the database."""

    def __init__(self, label: str, engine: Engine, lock: WriterLock | None) -> None:
        """Use `Store.open`."""
        self.label = label
        self.engine = engine
        self._lock = lock

    @classmethod
    def open(cls, where: str | Path, *, read_only: bool = False) -> Self:
        """Open an SQLite file (a path or `sqlite:///` URL) or a `postgresql://` URL.

        For writing, the file is created if it is missing, an older schema is brought up to date, this process becomes
        the only writer, and studies that a killed one left running become interrupted. For reading, nothing is created
        or changed, and a search may write meanwhile.
        """
        location = locate(where)
        label = location.label
        if location.path is not None:
            (check_readable if read_only else check_writable)(location.path, label)
        engine = connect(location, read_only=read_only)
        store = cls(label, engine, None)
        try:
            if not read_only:
                store._lock = lock_for_writing(location, engine)
            with explained(label), (engine if read_only else for_writing(engine)).begin() as connection:
                if read_only:
                    check(connection, label)
                else:
                    migrate(connection, label)
                    left = update(StudyRow).where(StudyRow.state == StudyState.RUNNING)
                    connection.execute(left.values(state=StudyState.INTERRUPTED.value))
        except StoreError:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close every connection and let the next writer in."""
        try:
            with explained(self.label):
                self.engine.dispose()
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with explained(self.label), Session(self.engine) as session:
            yield session

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        if self._lock is None:
            raise StoreError(f"{self.label}: opened for reading; nothing can be recorded")
        with explained(self.label), Session(for_writing(self.engine)) as session, session.begin():
            yield session

    # Studies

    def create_study(
        self,
        name: str,
        resolved_spec: Mapping[str, Any],
        *,
        engine: str,
        engine_version: str,
        runner: str,
        random_seed: int,
    ) -> StudyRecord:
        """Start a study under a new name."""
        check_study_name(name)
        self._check_spec(name, resolved_spec)
        row = StudyRow(
            name=name,
            created_at=datetime.now(UTC).isoformat(),
            finished_at=None,
            state=StudyState.RUNNING.value,
            spec=to_json(resolved_spec),
            spec_digest=spec_digest(resolved_spec),
            partitune_version=__version__,
            engine=engine,
            engine_version=engine_version,
            runner=runner,
            random_seed=random_seed,
        )
        with self._writing() as session:
            if name in self._names(session):
                free = _first_free(name, self._names(session))
                raise StoreError(
                    f"{self.label}: the study {name} exists. Resume it, or choose another name, such as {free}"
                )
            session.add(row)
            session.flush()
            return study_record(row, self.label)

    def resume(
        self, name: str, resolved_spec: Mapping[str, Any], *, runner: str, may_differ: Collection[str] = ()
    ) -> StudyRecord:
        """Go on with an existing study, whose spec and runner must be the same.

        `may_differ` names top-level keys of the spec that do not change what a trial means, such as a budget.
        """
        self._check_spec(name, resolved_spec)
        with self._writing() as session:
            row = self._row(session, name)
            record = study_record(row, self.label)
            given = json.loads(to_json(resolved_spec))
            before, after = ({key: spec[key] for key in spec if key not in may_differ} for spec in (record.spec, given))
            found = changes(before, after)
            if record.runner != runner:
                found.append(f"runner: {record.runner!r} -> {runner!r}")
            if found:
                shown = "; ".join(found[:8]) + (f"; and {len(found) - 8} more" if len(found) > 8 else "")
                raise StoreError(
                    f"{self.label}: the study {name} was started with another spec. Changed: {shown}. "
                    f"Undo that, or start a new study, such as {_first_free(name, self._names(session))}"
                )
            row.state, row.finished_at = StudyState.RUNNING.value, None
            session.flush()
            return study_record(row, self.label)

    def finish(self, name: str, state: StudyState) -> None:
        """Say how a study ended, for now: finished or interrupted."""
        with self._writing() as session:
            row = self._row(session, name)
            row.state, row.finished_at = state.value, datetime.now(UTC).isoformat()

    def studies(self) -> list[StudyRecord]:
        """All studies, oldest first."""
        with self._reading() as session:
            return [study_record(row, self.label) for row in session.scalars(select(StudyRow).order_by(StudyRow.id))]

    def study(self, name: str) -> StudyRecord:
        """One study by name."""
        with self._reading() as session:
            return study_record(self._row(session, name), self.label)

    def unique_study_name(self, base: str) -> str:
        """`base` if it is free, else `base-2`, `base-3`, ..."""
        with self._reading() as session:
            return _first_free(base, self._names(session))

    # Trials

    def record(
        self, study: str, number: int, result: Result, origin: str, *, finished_at: datetime | None = None
    ) -> None:
        """Commit one trial that finished now, or at `finished_at` (UTC) when it comes from elsewhere.

        `origin` says why it was tried: default, seed, exact or sampler, and details.
        """
        if flaw := flaw_of(result):
            raise StoreError(f"{self.label}: trial {number} of study {study} cannot be stored: {flaw}")
        with self._writing() as session:
            study_id = self._row(session, study).id
            taken = session.scalar(_trials(study_id).where(TrialRow.number == number))
            if taken is None:
                session.add(to_row(study_id, number, result, origin, finished_at or datetime.now(UTC)))
            elif not _same(trial_record(taken, study, self.label), result, origin):
                raise StoreError(
                    f"{self.label}: trial {number} of study {study} is already stored with another result, "
                    "and stored trials never change"
                )

    def trials(self, study: str) -> list[TrialRecord]:
        """All finished trials of a study, by number."""
        with self._reading() as session:
            rows = session.scalars(_trials(self._row(session, study).id).order_by(TrialRow.number))
            return [trial_record(row, study, self.label) for row in rows]

    def find_measured(self, study: str, digest: str) -> TrialRecord | None:
        """The first trial of a candidate, by `Candidate.digest`. Lost ones do not count: those are run again."""
        with self._reading() as session:
            same = (TrialRow.digest == digest, TrialRow.outcome != Outcome.LOST)
            row = session.scalar(_trials(self._row(session, study).id).where(*same).order_by(TrialRow.number).limit(1))
            return None if row is None else trial_record(row, study, self.label)

    def counts(self, study: str) -> dict[Outcome, int]:
        """Trials by outcome, every outcome named."""
        with self._reading() as session:
            of_study = TrialRow.study_id == self._row(session, study).id
            rows = session.execute(select(TrialRow.outcome, func.count()).where(of_study).group_by(TrialRow.outcome))
            found = {row[0]: row[1] for row in rows}
            return {outcome: found.get(outcome.value, 0) for outcome in Outcome}

    def _check_spec(self, name: str, spec: Mapping[str, Any]) -> None:
        if flaw := flaw_in(spec, "spec"):
            raise StoreError(f"{self.label}: study {name} cannot be stored: {flaw}")

    def _names(self, session: Session) -> list[str]:
        return list(session.scalars(select(StudyRow.name).order_by(StudyRow.id)))

    def _row(self, session: Session, name: str) -> StudyRow:
        row = session.scalar(select(StudyRow).where(StudyRow.name == name))
        if row is None:
            names = self._names(session)
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[-3:]
            known = f"Did you mean {', '.join(near)}?" if near else "The database holds no study yet"
            raise StoreError(f"{self.label}: no study {name}. {known}")
        return row


def check_study_name(name: str) -> None:
    """Raise StoreError unless `name` can be the name of a study."""
    if not name or not name.isprintable() or name != name.strip():
        raise StoreError(f"{name!r} is not a study name: use printable characters, no space at either end")


def _trials(study_id: int) -> Any:
    return select(TrialRow).where(TrialRow.study_id == study_id).options(selectinload(TrialRow.stages))


def _same(stored: TrialRecord, result: Result, origin: str) -> bool:
    return stored.result == replace(result, reason=printable(result.reason)) and stored.origin == origin


def _first_free(base: str, names: Collection[str]) -> str:
    if base not in names:
        return base
    number = 2
    while f"{base}-{number}" in names:
        number += 1
    return f"{base}-{number}"
