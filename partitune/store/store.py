"""The results database: append-only, one commit per finished trial, one writing process, any number of readers.

Decision: this is the one source of truth. A sampler is rebuilt by replaying `trials()`; nothing else remembers a study.
A result counts as soon as `record` returns: a killed process loses none. Recording is idempotent: the same trial again
changes nothing, another result under a number that is taken is refused. Figures that are not numbers never get in;
whoever measures turns them into an `invalid` result beforehand (`partitune.result.flaw_in` says which figure it is).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from sqlalchemy import ColumnElement, Engine, Row, Table, bindparam, delete, func, insert, select, update
from sqlalchemy.orm import Session

from partitune import __version__
from partitune.errors import StoreError
from partitune.result import Outcome, Result, flaw_in
from partitune.store.cells import to_json
from partitune.store.connection import connect, for_writing
from partitune.store.faults import explained
from partitune.store.location import Location, check_readable, check_writable, locate
from partitune.store.migrations import check, migrate
from partitune.store.records import (
    StudyRecord,
    StudyState,
    TrialRecord,
    flaw_of,
    printable,
    spec_digest,
    study_record,
    to_rows,
    trial_record,
)
from partitune.store.schema import StageRow, StudyRow, TrialRow
from partitune.store.spec_changes import changes
from partitune.store.writer import WriterLock, holder_of, lock_for_writing

# What runs for every trial, put together once: at three hundred trials a second that is half of the cost.
_STUDY_ID = select(StudyRow.__table__.c.id).where(StudyRow.__table__.c.name == bindparam("name"))
_TRIAL_ID = select(TrialRow.__table__.c.id).where(
    TrialRow.__table__.c.study_id == bindparam("study"), TrialRow.__table__.c.number == bindparam("number")
)
_NEW_TRIAL = insert(cast("Table", TrialRow.__table__)).returning(TrialRow.__table__.c.id)
_NEW_STAGE = insert(cast("Table", StageRow.__table__))


class SpecChanged(StoreError):
    """A study was to go on under another spec. `keys` are the top-level keys that changed."""

    def __init__(self, message: str, keys: set[str]) -> None:
        super().__init__(message)
        self.keys = keys


class Store:
    """An open results database. A context manager; every error is a StoreError that names the database."""

    def __init__(self, location: Location, engine: Engine, lock: WriterLock | None) -> None:
        """Use `Store.open`."""
        self.label = location.label
        self._location = location
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
        store = cls(location, engine, None)
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
        self,
        name: str,
        resolved_spec: Mapping[str, Any],
        *,
        runner: str,
        may_differ: Collection[str] = (),
        accepted: Collection[str] = (),
    ) -> StudyRecord:
        """Go on with an existing study, whose spec and runner must be the same; its new spec is stored.

        `may_differ` names top-level keys of the spec that do not change what a trial means, such as a budget;
        `accepted` further ones, whose changes somebody asked for.
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
            refused = [change for change in found if re.split(r"[.\[:]", change)[0] not in accepted]
            if refused:
                shown = "; ".join(refused[:8]) + (f"; and {len(refused) - 8} more" if len(refused) > 8 else "")
                raise SpecChanged(
                    f"{self.label}: the study {name} was started with another spec. Changed: {shown}. "
                    f"Undo that, or start a new study, such as {_first_free(name, self._names(session))}",
                    {re.split(r"[.\[:]", change)[0] for change in refused},
                )
            row.spec, row.spec_digest = to_json(given), spec_digest(given)
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

    def writer(self) -> str:
        """Who writes to the database now, in words; empty when nobody does."""
        return holder_of(self._location, self.engine)

    def delete_study(self, name: str) -> None:
        """Remove a study with its trials. The one thing that is ever deleted, and only by name."""
        with self._writing() as session:
            study_id = self._row(session, name).id
            trials = select(TrialRow.id).where(TrialRow.study_id == study_id)
            session.execute(delete(StageRow).where(StageRow.trial_id.in_(trials)))
            session.execute(delete(TrialRow).where(TrialRow.study_id == study_id))
            session.execute(delete(StudyRow).where(StudyRow.id == study_id))

    def compact(self) -> None:
        """Give the free pages of an SQLite file back to the disk; a server does that by itself."""
        if self._location.path is not None:
            with explained(self.label), closing(self.engine.raw_connection()) as connection:
                connection.cursor().execute("VACUUM")

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
            connection = session.connection()
            study_id = connection.scalar(_STUDY_ID, {"name": study}) or self._row(session, study).id
            if connection.scalar(_TRIAL_ID, {"study": study_id, "number": number}) is None:
                trial, stages = to_rows(study_id, number, result, origin, finished_at or datetime.now(UTC))
                trial_id = connection.scalar(_NEW_TRIAL, trial)
                if stages:
                    connection.execute(_NEW_STAGE, [{"trial_id": trial_id, **stage} for stage in stages])
                return
            (taken,) = self._load(session, study, TrialRow.study_id == study_id, TrialRow.number == number)
            if not _same(taken, result, origin):
                raise StoreError(
                    f"{self.label}: trial {number} of study {study} is already stored with another result, "
                    "and stored trials never change"
                )

    def trials(self, study: str, *, stages: bool = True) -> list[TrialRecord]:
        """All finished trials of a study, by number. Without `stages`, most of the data, a third of the time."""
        with self._reading() as session:
            return self._load(session, study, TrialRow.study_id == self._row(session, study).id, stages=stages)

    def trial(self, study: str, number: int) -> TrialRecord:
        """One trial by number."""
        with self._reading() as session:
            found = self._load(
                session, study, TrialRow.study_id == self._row(session, study).id, TrialRow.number == number
            )
        if not found:
            raise StoreError(f"{self.label}: study {study} has no trial {number}")
        return found[0]

    def find_measured(self, study: str, digest: str) -> TrialRecord | None:
        """The first trial of a candidate, by `Candidate.digest`. Lost ones do not count: those are run again."""
        with self._reading() as session:
            of_study = TrialRow.study_id == self._row(session, study).id
            same = (TrialRow.digest == digest, TrialRow.outcome != Outcome.LOST)
            first = session.scalar(select(func.min(TrialRow.number)).where(of_study, *same))
            return None if first is None else self._load(session, study, of_study, TrialRow.number == first)[0]

    def _load(
        self, session: Session, study: str, *which: ColumnElement[bool], stages: bool = True
    ) -> list[TrialRecord]:
        # Plain rows: mapped objects of ten thousand trials with their stages cost seconds and are thrown away at once.
        found: dict[int, list[Row[Any]]] = {}
        wanted = select(*StageRow.__table__.c).join(TrialRow, StageRow.trial_id == TrialRow.id).where(*which)
        for stage in session.execute(wanted.order_by(StageRow.trial_id, StageRow.stage)) if stages else ():
            found.setdefault(stage[0], []).append(stage)
        rows = session.execute(select(*TrialRow.__table__.c).where(*which).order_by(TrialRow.number))
        return [trial_record(row, found.get(row.id, ()), study, self.label) for row in rows]

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
            if len(names) > len(near):
                last = names[-10:]
                known += f" It holds {', '.join(last)}" + (f" and {len(names) - 10} older ones" if names[10:] else "")
            raise StoreError(f"{self.label}: no study {name}. {known}")
        return row


def check_study_name(name: str) -> None:
    """Raise StoreError unless `name` can be the name of a study."""
    if not name or not name.isprintable() or name != name.strip():
        raise StoreError(f"{name!r} is not a study name: use printable characters, no space at either end")


def _same(stored: TrialRecord, result: Result, origin: str) -> bool:
    return stored.result == replace(result, reason=printable(result.reason)) and stored.origin == origin


def _first_free(base: str, names: Collection[str]) -> str:
    if base not in names:
        return base
    number = 2
    while f"{base}-{number}" in names:
        number += 1
    return f"{base}-{number}"
