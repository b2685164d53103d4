"""What a study holds beside its trials: candidates that were only simulated, and trials that were run again.

Decision: both are kept apart from the trials, whose numbers, budget and front they must not touch. A repeat is as
durable as a trial: committed when it ends, never changed, and known by its run, so that a final goes on where it
stopped and no run is made twice. Stages are left out: what is compared later are the metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, Table, insert, select
from sqlalchemy.orm import Session

from partitune.analysis.final import Run
from partitune.analysis.trial import Repeat, Screened
from partitune.candidate import Result
from partitune.errors import StoreError
from partitune.store.cells import Cells
from partitune.store.database import Database
from partitune.store.records import checked, flaw_of, printable, result_columns, result_of
from partitune.store.schema import RepeatRow, ScreenedRow


class BesideTrials(Database):
    """Screened candidates and repeats of the studies of a database, of the spec a study has now."""

    def record_screened(self, study: str, origin: str, result: Result) -> None:
        """Commit a simulated candidate; one that is stored already stays as it is."""
        self._refuse_flaw(study, "a simulated candidate", result)
        with self._writing() as session:
            row, kind = self._row(session, study), ScreenedRow
            mine = {"study_id": row.id, "revision": self._revision(row)}
            stored = select(kind.id).where(kind.study_id == row.id, kind.revision == mine["revision"])
            if session.scalar(stored.where(kind.digest == result.candidate.digest)) is None:
                session.execute(insert(kind), {**mine, "origin": origin, **result_columns(result)})

    def screened(self, study: str) -> list[Screened]:
        """Simulated candidates in their order."""
        with self._reading() as session:
            return [
                checked(Screened(study, row.origin, result_of(row, cells)), row, cells)
                for row, cells in self._rows(session, ScreenedRow, study, "simulated candidate")
            ]

    def record_repeat(self, study: str, run: Run, result: Result, *, finished_at: datetime | None = None) -> None:
        """Commit one run of a final that ended now, or at `finished_at` (UTC).

        Raises:
            StoreError: this run is stored with another result.
        """
        self._refuse_flaw(study, f"{run.text}", result)
        now = finished_at or datetime.now(UTC)
        with self._writing() as session:
            stored = {repeat.run: repeat.result for repeat in self._repeats(session, study)}
            if run not in stored:
                row = self._row(session, study)
                mine = {"study_id": row.id, "revision": self._revision(row), "finished_at": now.isoformat()}
                which = {"trial": run.trial, "phase": run.phase, "repeat": run.repeat}
                session.execute(insert(RepeatRow), {**mine, **which, **result_columns(result)})
            elif stored[run] != _as_stored(result, run):
                raise StoreError(
                    f"{self.label}: {run.text} of study {study} is already stored with another result, and stored "
                    "runs never change"
                )

    def repeats(self, study: str) -> list[Repeat]:
        """Runs of the final, in the order in which they ended."""
        with self._reading() as session:
            return self._repeats(session, study)

    def _repeats(self, session: Session, study: str) -> list[Repeat]:
        repeats = []
        for row, cells in self._rows(session, RepeatRow, study, "repeat"):
            ended = cells.time("finished_at", row.finished_at)
            repeat = Repeat(study, row.phase, row.repeat, row.trial, ended, result_of(row, cells))
            load = checked(repeat, row, cells).run.load
            repeats.append(replace(repeat, result=replace(repeat.result, repeat=load)))
        return repeats

    def _rows(
        self, session: Session, kind: type[ScreenedRow] | type[RepeatRow], study: str, name: str
    ) -> Iterator[tuple[Row[Any], Cells]]:
        owner = self._row(session, study)
        table: Table = kind.__table__  # type: ignore[assignment]  # SQLAlchemy calls it a FromClause
        of_study = (table.c.study_id == owner.id, table.c.revision == self._revision(owner))
        for number, row in enumerate(session.execute(select(*table.c).where(*of_study).order_by(table.c.id)), 1):
            yield row, Cells(self.label, table.name, f"{name} {number} of study {study}")

    def _refuse_flaw(self, study: str, what: str, result: Result) -> None:
        if flaw := flaw_of(result):
            raise StoreError(f"{self.label}: {what} of study {study} cannot be stored: {flaw}")


def _as_stored(result: Result, run: Run) -> Result:
    measured = None if result.measurement is None else replace(result.measurement, stages=())
    return replace(result, reason=printable(result.reason), measurement=measured, repeat=run.load)
