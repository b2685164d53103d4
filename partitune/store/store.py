"""The results database: append-only, one commit per finished trial, one writing process, any number of readers.

Decision: this is the one source of truth. A sampler is rebuilt by replaying `trials()`; nothing else remembers a study.
A result counts as soon as `record` returns: a killed process loses none. Recording is idempotent: the same trial again
changes nothing, another result under a number that is taken is refused. Figures that are not numbers never get in;
whoever measures turns them into an `invalid` result beforehand (`partitune.candidate.flaw_in` says which figure it is).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, bindparam, delete, func, insert, select, update
from sqlalchemy import Result as Rows

from partitune.analysis.trial import Repeat, Screened, Trial
from partitune.candidate import Outcome, StageReport, flaw_in
from partitune.errors import StoreError
from partitune.spec.names import STUDY_NAME, study_name_fault
from partitune.store import records, schema
from partitune.store.cells import integer, to_json
from partitune.store.database import Database
from partitune.store.records import Ended, Record, RecordKind, StudyRecord, StudyState, StudyTerms
from partitune.store.spec_changes import changes, meaning, top_level_key
from partitune.version import __version__

# What runs for every trial, put together once: at three hundred trials a second that is half of the cost.
_STUDY = select(schema.studies.c.id, schema.studies.c.revision).where(schema.studies.c.name == bindparam("name"))
_STORED = {
    kind: select(kind.table.c.id).where(*(kind.table.c[key] == bindparam(key) for key in ("study_id", *kind.key)))
    for kind in records.KINDS.values()
}
_NEW = {kind: insert(kind.table).returning(kind.table.c.id) for kind in records.KINDS.values()}
_NEW_STAGE = insert(schema.stages)
#: Changes of a spec that a refusal lists.
_SHOWN = 12


class SpecChanged(StoreError):
    """A study was to go on under another spec. `keys` are the top-level keys that changed."""

    def __init__(self, message: str, keys: set[str]) -> None:
        super().__init__(message)
        self.keys = keys


class Store(Database):
    """An open results database. A context manager; every error is a StoreError that names the database."""

    # Studies

    def create_study(self, terms: StudyTerms) -> None:
        """Start a study under a new name. Raises StoreError."""
        check_study_name(terms.name)
        self._check_spec(terms)
        now = datetime.now(UTC).isoformat()
        with self._writing() as connection:
            if terms.name in self._names(connection):
                free = _first_free(terms.name, self._names(connection))
                raise StoreError(
                    f"{self.label}: the study {terms.name} exists. Resume it, or choose another name, such as {free}"
                )
            begun = {"created_at": now, "partitune_version": __version__, "revision": 0}
            connection.execute(insert(schema.studies).values(**records.study_columns(terms), **begun))

    def resume(
        self,
        terms: StudyTerms,
        *,
        may_differ: Collection[str] = (),
        accepted: Collection[str] = (),
        anew: bool = False,
    ) -> list[str]:
        """Go on with an existing study; its new terms are stored.

        Args:
            terms: under which it goes on.
            may_differ: top-level keys of the spec that do not change what a trial means, such as a budget.
            accepted: further such ones, whose changes somebody asked for.
            anew: any other change, and another runner, is not refused, but begins a new revision of the spec, and
                trials of the earlier ones are set aside. A study without trials has nothing to refuse for.

        Returns:
            The changes of its spec and runner, one `key: old -> new` each; without those of `may_differ`.

        Raises:
            SpecChanged: a change nobody asked for. StoreError: no such study, or the database.
        """
        self._check_spec(terms)
        terms = replace(terms, spec=json.loads(to_json(terms.spec)))
        with self._writing() as connection:
            row = self._row(connection, terms.name)
            changed = changes(meaning(self._study(row), may_differ), meaning(terms, may_differ))
            refused = [change for change in changed if top_level_key(change) not in accepted]
            if refused:
                tried = connection.scalar(select(schema.trials.c.id).where(*self._current(row)).limit(1)) is not None
                if tried and not anew:
                    free = _first_free(terms.name, self._names(connection))
                    raise SpecChanged(_refusal(self.label, terms.name, refused, free), {*map(top_level_key, refused)})
                self._turn_to_revision(connection, row, terms, (*may_differ, *accepted))
            connection.execute(
                update(schema.studies).where(schema.studies.c.id == row.id).values(**records.study_columns(terms))
            )
        return changed

    def _turn_to_revision(
        self, connection: Connection, row: Row[Any], terms: StudyTerms, ignoring: Collection[str]
    ) -> None:
        """Keep the spec of the trials so far. Those of an earlier revision that meant the same are back."""
        of_study = schema.revisions.c.study_id == row.id
        former = self._load(connection, records.REVISIONS, row.name, of_study)
        wanted = meaning(terms, ignoring)
        again = [revision.number for revision in former if not changes(meaning(revision, ignoring), wanted)]
        kept = {"study_id": row.id, "number": row.revision, "spec": row.spec, "runner": row.runner}
        connection.execute(insert(schema.revisions), kept)
        turned = again[-1] if again else max([row.revision, *(revision.number for revision in former)]) + 1
        connection.execute(delete(schema.revisions).where(of_study, schema.revisions.c.number == turned))
        connection.execute(update(schema.studies).where(schema.studies.c.id == row.id).values(revision=turned))

    def finish(self, name: str, state: StudyState) -> None:
        """Say how a study ended, for now: finished or interrupted."""
        with self._writing() as connection:
            ended = {"state": state.value, "finished_at": datetime.now(UTC).isoformat()}
            connection.execute(
                update(schema.studies).where(schema.studies.c.id == self._row(connection, name).id).values(**ended)
            )

    def studies(self) -> list[StudyRecord]:
        """All studies of the database, oldest first. Raises StoreError."""
        with self._reading() as connection:
            return self._load(connection, records.STUDIES, "")

    def study(self, name: str) -> StudyRecord:
        """One study by name. Raises StoreError, which says the nearest names."""
        with self._reading() as connection:
            return self._study(self._row(connection, name))

    def unique_study_name(self, base: str) -> str:
        """`base` if it is free, else `base-2`, `base-3`, ..."""
        with self._reading() as connection:
            return _first_free(base, self._names(connection))

    def delete_study(self, name: str) -> None:
        """Remove a study with its trials. The one thing that is ever deleted, and only by name."""
        with self._writing() as connection:
            study_id = self._row(connection, name).id
            of_study = select(schema.trials.c.id).where(schema.trials.c.study_id == study_id)
            connection.execute(delete(schema.stages).where(schema.stages.c.trial_id.in_(of_study)))
            for kind in (*records.KINDS.values(), records.REVISIONS):
                connection.execute(delete(kind.table).where(kind.table.c.study_id == study_id))
            connection.execute(delete(schema.studies).where(schema.studies.c.id == study_id))

    # Trials, and beside them what was only simulated and what was run again

    def record(self, record: Ended) -> None:
        """Commit a trial, a screened candidate or a repeat of the spec that its study has now.

        The same again changes nothing; a screened candidate stays as it was first said of it.

        Raises:
            StoreError: it cannot be read back unchanged, or is stored with another result.
        """
        kind, record = records.KINDS[type(record)], records.as_stored(record)
        what = f"{self.label}: {record.text} of study {record.study}"
        if flaw := records.flaw_of(record.result):
            raise StoreError(f"{what} cannot be stored: {flaw}")
        with self._writing() as connection:
            row = connection.execute(_STUDY, {"name": record.study}).first()
            study = row or self._row(connection, record.study)
            columns = {**records.columns_of(record), "study_id": study.id, "revision": study.revision}
            key = {name: columns[name] for name in ("study_id", *kind.key)}
            if connection.scalar(_STORED[kind], key) is None:
                number = connection.scalar(_NEW[kind], columns)
                if reports := records.stage_columns(record):
                    connection.execute(_NEW_STAGE, [{"trial_id": number, **stage} for stage in reports])
            elif kind is not records.SCREENED:
                which = (kind.table.c[name] == value for name, value in key.items())
                (taken,) = self._load(connection, kind, record.study, *which, stages=True)
                if (records.as_stored(taken).result, taken.origin) != (record.result, record.origin):
                    many = "trials" if kind is records.TRIALS else "runs"
                    raise StoreError(f"{what} is already stored with another result, and stored {many} never change")

    def trials(self, study: str, *, stages: bool = True) -> list[Trial]:
        """Finished trials of a study under the spec it has now, by number. Without `stages`, in a third of the time."""
        return self._all(records.TRIALS, study, stages=stages)

    def screened(self, study: str) -> list[Screened]:
        """What was simulated before a launch under the spec a study has now, without stages, in its order."""
        return self._all(records.SCREENED, study)

    def repeats(self, study: str) -> list[Repeat]:
        """Runs of the final under the spec a study has now, without stages, in the order in which they ended."""
        return [records.as_stored(repeat) for repeat in self._all(records.REPEATS, study)]

    def set_aside(self, study: str) -> tuple[int, ...]:
        """Numbers of the trials that were measured under an earlier revision of the spec."""
        with self._reading() as connection:
            of_study, current = self._current(self._row(connection, study))
            numbers = connection.scalars(
                select(schema.trials.c.number).where(of_study, ~current).order_by(schema.trials.c.number)
            )
            return tuple(self._number(study, number) for number in numbers)

    def next_number(self, study: str) -> int:
        """The number of the next trial."""
        with self._reading() as connection:
            of_study = schema.trials.c.study_id == self._row(connection, study).id
            last = connection.scalar(select(func.max(schema.trials.c.number)).where(of_study))
            return 0 if last is None else self._number(study, last) + 1

    def trial(self, study: str, number: int) -> Trial:
        """One trial by number, of any revision of the spec."""
        with self._reading() as connection:
            of_study = schema.trials.c.study_id == self._row(connection, study).id
            trials = self._load(
                connection, records.TRIALS, study, of_study, schema.trials.c.number == number, stages=True
            )
        if not trials:
            raise StoreError(f"{self.label}: study {study} has no trial {number}")
        return trials[0]

    def _all(self, kind: RecordKind[Record], study: str, *, stages: bool = False) -> list[Record]:
        with self._reading() as connection:
            current = self._current(self._row(connection, study), kind)
            return self._load(connection, kind, study, *current, stages=stages)

    def _load(
        self,
        connection: Connection,
        kind: RecordKind[Record],
        study: str,
        *which: ColumnElement[bool],
        stages: bool = False,
    ) -> list[Record]:
        rows = _columns(connection.execute(select(*kind.table.c).where(*which).order_by(kind.order)))
        of_trials: dict[int, list[StageReport]] = {}
        if stages and kind is records.TRIALS:
            wanted = select(schema.trials.c.number.label("trial"), *schema.stages.c).join(schema.trials).where(*which)
            cells = _columns(connection.execute(wanted.order_by(schema.trials.c.number, records.STAGES.order)))
            reports = records.read(records.STAGES, study, cells, self.label)
            for trial, stage in zip(cells["trial"], reports, strict=True):
                of_trials.setdefault(trial, []).append(stage)
        return records.read(kind, study, rows, self.label, of_trials)

    def counts(self, study: str) -> dict[Outcome, int]:
        """Trials under the spec the study has now, by outcome, every outcome named."""
        with self._reading() as connection:
            current = self._current(self._row(connection, study))
            rows = connection.execute(
                select(schema.trials.c.outcome, func.count()).where(*current).group_by(schema.trials.c.outcome)
            )
            stored = {row[0]: row[1] for row in rows}
            return {outcome: stored.get(outcome.value, 0) for outcome in Outcome}

    def _current(self, row: Row[Any], kind: RecordKind[Any] = records.TRIALS) -> tuple[ColumnElement[bool], ...]:
        """Which records are of a study, and which of those of its current revision."""
        return kind.table.c.study_id == row.id, kind.table.c.revision == self._revision(row)

    def _number(self, study: str, value: object) -> int:
        return integer((self.label, records.TRIALS.table.name, f"a trial of study {study}"), "number", value)

    def _study(self, row: Row[Any]) -> StudyRecord:
        cells = {name: [getattr(row, name)] for name in records.STUDIES.columns}
        (study,) = records.read(records.STUDIES, "", cells, self.label)
        return study

    def _check_spec(self, terms: StudyTerms) -> None:
        if flaw := flaw_in(terms.spec, "spec"):
            raise StoreError(f"{self.label}: study {terms.name} cannot be stored: {flaw}")


def _columns(rows: Rows[*tuple[Any, ...]]) -> dict[str, Sequence[Any]]:
    """The cells of some rows, column by column."""
    names = tuple(rows.keys())
    return {name: cells for name, *cells in zip(names, *rows, strict=True)}


def check_study_name(name: str) -> None:
    """Raise StoreError unless `name` can be the name of a study."""
    if study_name_fault(name) is not None:
        raise StoreError(f"{name!r} is not a study name: use {STUDY_NAME}")


def _refusal(label: str, study: str, changed: Sequence[str], free: str) -> str:
    shown = "".join(f"\n  {change}" for change in changed[:_SHOWN])
    if len(changed) > _SHOWN:
        shown += f"\n  and {len(changed) - _SHOWN} more"
    return (
        f"{label}: the study {study} was started with another spec:{shown}\n"
        f"Undo that, or start a new study: --study {free}"
    )


def _first_free(base: str, names: Collection[str]) -> str:
    numbered = (f"{base}-{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([base], numbered) if name not in names)
