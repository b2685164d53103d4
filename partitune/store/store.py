"""The results database: append-only, one commit per finished trial, one writing process, any number of readers.

Decision: this is the one source of truth. A sampler is rebuilt by replaying `trials()`; nothing else remembers a study.
A result counts as soon as `record` returns: a killed process loses none. Recording is idempotent: the same trial again
changes nothing, another result under a number that is taken is refused. Figures that are not numbers never get in;
whoever measures turns them into an `invalid` result beforehand (`partitune.candidate.flaw_in` says which figure it is).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import ColumnElement, Row, Table, bindparam, delete, func, insert, select
from sqlalchemy.orm import Session

from partitune.analysis.trial import Trial
from partitune.candidate import Outcome, Result, flaw_in
from partitune.errors import StoreError
from partitune.store.beside_trials import BesideTrials
from partitune.store.cells import Cells, to_json
from partitune.store.records import (
    StudyRecord,
    StudyState,
    flaw_of,
    printable,
    spec_digest,
    study_record,
    to_rows,
    trial_of,
)
from partitune.store.schema import RepeatRow, RevisionRow, ScreenedRow, StageRow, StudyRow, TrialRow
from partitune.store.spec_changes import changes, meaning, top_level_key
from partitune.version import __version__

# What runs for every trial, put together once: at three hundred trials a second that is half of the cost.
_STUDY = select(StudyRow.__table__.c.id, StudyRow.__table__.c.revision).where(
    StudyRow.__table__.c.name == bindparam("name")
)
_TRIAL_ID = select(TrialRow.__table__.c.id).where(
    TrialRow.__table__.c.study_id == bindparam("study"), TrialRow.__table__.c.number == bindparam("number")
)
_NEW_TRIAL = insert(cast("Table", TrialRow.__table__)).returning(TrialRow.__table__.c.id)
_NEW_STAGE = insert(cast("Table", StageRow.__table__))
#: Changes of a spec that a refusal lists.
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Resumed:
    """A study that goes on."""

    study: StudyRecord
    changes: tuple[str, ...]  # of its spec, one `key: old -> new` each; without those that `may_differ`


class SpecChanged(StoreError):
    """A study was to go on under another spec. `keys` are the top-level keys that changed."""

    def __init__(self, message: str, keys: set[str]) -> None:
        super().__init__(message)
        self.keys = keys


class Store(BesideTrials):
    """An open results database. A context manager; every error is a StoreError that names the database."""

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
            revision=0,
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
        engine: str,
        engine_version: str,
        runner: str,
        random_seed: int,
        may_differ: Collection[str] = (),
        accepted: Collection[str] = (),
        anew: bool = False,
    ) -> Resumed:
        """Go on with an existing study; its new spec is stored.

        `may_differ` names top-level keys of the spec that do not change what a trial means, such as a budget;
        `accepted` further such ones, whose changes somebody asked for. Any other change, and another runner, is
        refused; with `anew` it begins a new revision of the spec, and trials of the earlier ones are set aside. A study
        without trials has nothing to refuse for.

        Raises:
            SpecChanged: a change nobody asked for.
        """
        self._check_spec(name, resolved_spec)
        with self._writing() as session:
            row = self._row(session, name)
            record = study_record(row, self.label)
            given = json.loads(to_json(resolved_spec))
            wanted = meaning(given, runner, may_differ)
            changed = changes(meaning(record.spec, record.runner, may_differ), wanted)
            refused = [change for change in changed if top_level_key(change) not in accepted]
            if refused:
                tried = session.scalar(select(TrialRow.id).where(*self._current(row)).limit(1)) is not None
                if tried and not anew:
                    free = _first_free(name, self._names(session))
                    raise SpecChanged(_refusal(self.label, name, refused, free), {*map(top_level_key, refused)})
                self._turn_to_revision(session, row, given, runner, (*may_differ, *accepted))
            row.spec, row.spec_digest = to_json(given), spec_digest(given)
            row.engine, row.engine_version, row.runner, row.random_seed = engine, engine_version, runner, random_seed
            row.state, row.finished_at = StudyState.RUNNING.value, None
            session.flush()
            return Resumed(study_record(row, self.label), tuple(changed))

    def _turn_to_revision(
        self, session: Session, row: StudyRow, spec: Mapping[str, Any], runner: str, ignoring: Collection[str]
    ) -> None:
        """Keep the spec of the trials so far. Those of an earlier revision that meant the same are back."""
        wanted = meaning(spec, runner, ignoring)
        former: dict[int, RevisionRow] = {}
        again = None
        for revision in session.scalars(select(RevisionRow).where(RevisionRow.study_id == row.id)):
            cells = Cells(self.label, RevisionRow.__tablename__, f"revision {revision.number} of study {row.name}")
            former[cells.integer("number", revision.number)] = revision
            if not changes(meaning(cells.mapping("spec", revision.spec), revision.runner, ignoring), wanted):
                again = revision
        session.add(RevisionRow(study_id=row.id, number=row.revision, spec=row.spec, runner=row.runner))
        if again is None:
            row.revision = max({row.revision, *former}) + 1
        else:
            row.revision = again.number
            session.delete(again)

    def finish(self, name: str, state: StudyState) -> None:
        """Say how a study ended, for now: finished or interrupted."""
        with self._writing() as session:
            row = self._row(session, name)
            row.state, row.finished_at = state.value, datetime.now(UTC).isoformat()

    def studies(self) -> list[StudyRecord]:
        """All studies of the database, oldest first. Raises StoreError."""
        with self._reading() as session:
            return [study_record(row, self.label) for row in session.scalars(select(StudyRow).order_by(StudyRow.id))]

    def study(self, name: str) -> StudyRecord:
        """One study by name. Raises StoreError, which says the nearest names."""
        with self._reading() as session:
            return study_record(self._row(session, name), self.label)

    def unique_study_name(self, base: str) -> str:
        """`base` if it is free, else `base-2`, `base-3`, ..."""
        with self._reading() as session:
            return _first_free(base, self._names(session))

    def delete_study(self, name: str) -> None:
        """Remove a study with its trials. The one thing that is ever deleted, and only by name."""
        with self._writing() as session:
            study_id = self._row(session, name).id
            trials = select(TrialRow.id).where(TrialRow.study_id == study_id)
            session.execute(delete(StageRow).where(StageRow.trial_id.in_(trials)))
            session.execute(delete(TrialRow).where(TrialRow.study_id == study_id))
            for kind in (ScreenedRow, RepeatRow, RevisionRow):
                session.execute(delete(kind).where(kind.study_id == study_id))
            session.execute(delete(StudyRow).where(StudyRow.id == study_id))

    # Trials

    def record(
        self, study: str, number: int, result: Result, origin: str, *, finished_at: datetime | None = None
    ) -> None:
        """Commit one trial that finished now, or at `finished_at` (UTC) when it comes from elsewhere.

        `origin` says why it was tried: default, seed, exact or sampler, and details.
        """
        if flaw := flaw_of(result):
            raise StoreError(f"{self.label}: trial {number} of study {study} cannot be stored: {flaw}")
        now = finished_at or datetime.now(UTC)
        with self._transaction() as connection:  # without a session, which costs a tenth of all this
            row = connection.execute(_STUDY, {"name": study}).first() or self._row(Session(connection), study)
            study_id = row.id
            if connection.scalar(_TRIAL_ID, {"study": study_id, "number": number}) is None:
                columns, stages = to_rows(study_id, Trial(study, number, origin, now, result, row.revision))
                trial_id = connection.scalar(_NEW_TRIAL, columns)
                if stages:
                    connection.execute(_NEW_STAGE, [{"trial_id": trial_id, **stage} for stage in stages])
                return
            (taken,) = self._load(Session(connection), study, TrialRow.study_id == study_id, TrialRow.number == number)
            if not _same(taken, result, origin):
                raise StoreError(
                    f"{self.label}: trial {number} of study {study} is already stored with another result, "
                    "and stored trials never change"
                )

    def trials(self, study: str, *, stages: bool = True) -> list[Trial]:
        """Finished trials of a study under the spec it has now, by number. Without `stages`, in a third of the time."""
        with self._reading() as session:
            return self._load(session, study, *self._current(self._row(session, study)), stages=stages)

    def set_aside(self, study: str) -> tuple[int, ...]:
        """Numbers of the trials that were measured under an earlier revision of the spec."""
        with self._reading() as session:
            of_study, current = self._current(self._row(session, study))
            numbers = session.scalars(select(TrialRow.number).where(of_study, ~current).order_by(TrialRow.number))
            return tuple(self._number(study, number) for number in numbers)

    def next_number(self, study: str) -> int:
        """The number of the next trial."""
        with self._reading() as session:
            of_study = TrialRow.study_id == self._row(session, study).id
            last = session.scalar(select(func.max(TrialRow.number)).where(of_study))
            return 0 if last is None else self._number(study, last) + 1

    def trial(self, study: str, number: int) -> Trial:
        """One trial by number, of any revision of the spec."""
        with self._reading() as session:
            of_study = TrialRow.study_id == self._row(session, study).id
            trials = self._load(session, study, of_study, TrialRow.number == number)
        if not trials:
            raise StoreError(f"{self.label}: study {study} has no trial {number}")
        return trials[0]

    def _load(self, session: Session, study: str, *which: ColumnElement[bool], stages: bool = True) -> list[Trial]:
        # Plain rows: mapped objects of ten thousand trials with their stages cost seconds and are thrown away at once.
        stages_of: dict[int, list[Row[Any]]] = {}
        wanted = select(*StageRow.__table__.c).join(TrialRow, StageRow.trial_id == TrialRow.id).where(*which)
        for stage in session.execute(wanted.order_by(StageRow.trial_id, StageRow.stage)) if stages else ():
            stages_of.setdefault(stage[0], []).append(stage)
        rows = session.execute(select(*TrialRow.__table__.c).where(*which).order_by(TrialRow.number))
        return [trial_of(row, stages_of.get(row.id, ()), study, self.label) for row in rows]

    def counts(self, study: str) -> dict[Outcome, int]:
        """Trials under the spec the study has now, by outcome, every outcome named."""
        with self._reading() as session:
            current = self._current(self._row(session, study))
            rows = session.execute(select(TrialRow.outcome, func.count()).where(*current).group_by(TrialRow.outcome))
            stored = {row[0]: row[1] for row in rows}
            return {outcome: stored.get(outcome.value, 0) for outcome in Outcome}

    def _current(self, row: StudyRow) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        """Which trials are of a study, and which of those of its current revision."""
        return TrialRow.study_id == row.id, TrialRow.revision == self._revision(row)

    def _number(self, study: str, value: object) -> int:
        return Cells(self.label, TrialRow.__tablename__, f"a trial of study {study}").integer("number", value)

    def _check_spec(self, name: str, spec: Mapping[str, Any]) -> None:
        if flaw := flaw_in(spec, "spec"):
            raise StoreError(f"{self.label}: study {name} cannot be stored: {flaw}")


def check_study_name(name: str) -> None:
    """Raise StoreError unless `name` can be the name of a study."""
    if not name or not name.isprintable() or name != name.strip():
        raise StoreError(f"{name!r} is not a study name: use printable characters, no space at either end")


def _refusal(label: str, study: str, changed: Sequence[str], free: str) -> str:
    shown = "".join(f"\n  {change}" for change in changed[:_SHOWN])
    if len(changed) > _SHOWN:
        shown += f"\n  and {len(changed) - _SHOWN} more"
    return (
        f"{label}: the study {study} was started with another spec:{shown}\n"
        f"Undo that, or start a new study: --study {free}"
    )


def _same(stored: Trial, result: Result, origin: str) -> bool:
    return stored.result == replace(result, reason=printable(result.reason)) and stored.origin == origin


def _first_free(base: str, names: Collection[str]) -> str:
    numbered = (f"{base}-{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([base], numbered) if name not in names)
