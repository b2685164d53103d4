"""However a database came to the current schema, it is the same schema, and its trials are still there."""

from __future__ import annotations

import dataclasses
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, inspect, text

from partitune.candidate import Outcome, StageReport
from partitune.errors import StoreError
from partitune.store import Store, migrations
from partitune.store.schema import METADATA, stages
from tests.store_examples import SPEC, failed, filled, ok, record

FIRST = Path(__file__).parent.parent / "data" / "results_m001.sql"


def first_database(path: Path) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(FIRST.read_text())
    connection.close()
    return path


def schema(path: Path) -> dict[str, object]:
    engine = create_engine(f"sqlite:///{path}")
    inspector = inspect(engine)
    found: dict[str, object] = {}
    for table in inspector.get_table_names():
        columns = [
            (one["name"], str(one["type"]), one["nullable"], one["default"]) for one in inspector.get_columns(table)
        ]
        indexes = [(one["name"], one["column_names"], one["unique"]) for one in inspector.get_indexes(table)]
        unique = [one["column_names"] for one in inspector.get_unique_constraints(table)]
        keys = [(one["constrained_columns"], one["referred_table"]) for one in inspector.get_foreign_keys(table)]
        primary = inspector.get_pk_constraint(table)["constrained_columns"]
        found[table] = (sorted(columns, key=str), sorted(indexes, key=str), sorted(unique), keys, primary)
    engine.dispose()
    return found


def steps(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    found = [name for (name,) in connection.execute("SELECT name FROM partitune_migrations ORDER BY rowid")]
    connection.close()
    return found


def test_a_migrated_database_has_the_schema_of_a_fresh_one(tmp_path: Path) -> None:
    old = first_database(tmp_path / "old.db")
    Store.open(old).close()
    Store.open(tmp_path / "fresh.db").close()
    assert schema(old) == schema(tmp_path / "fresh.db")
    assert len(schema(old)) == 7
    assert steps(old) == steps(tmp_path / "fresh.db") == [step.__name__ for step in migrations.MIGRATIONS]


def test_the_first_trials_ever_written_are_still_read(tmp_path: Path) -> None:
    with Store.open(first_database(tmp_path / "old.db")) as store:
        assert store.study("k3").spec == SPEC
        infeasible = failed(Outcome.INFEASIBLE, "stage 1 is short of 3.5 GiB", seqs=64)
        assert [(one.origin, one.result) for one in store.trials("k3")] == [
            ("default:", ok()),
            ("sampler:1", infeasible),
        ]
        record(store, "k3", 2, ok(), "sampler:1")
        assert [one.revision for one in store.trials("k3")] == [0, 0, 0]


def test_every_table_is_prefixed_since_optuna_may_share_the_file() -> None:
    names = [*METADATA.tables, *(index.name for table in METADATA.tables.values() for index in table.indexes)]
    assert all(str(name).startswith("partitune_") for name in names)


def test_stage_columns_are_the_fields_of_a_stage_report() -> None:
    fields = {field.name for field in dataclasses.fields(StageReport)}
    assert {column.name for column in stages.columns} == fields | {"trial_id"}


def m900_test_note(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE partitune_studies ADD COLUMN note TEXT"))


def m901_test_breaks(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE partitune_half (id INTEGER)"))
    connection.execute(text("INSERT INTO no_such_table VALUES (1)"))


def test_an_older_database_is_migrated_by_writing_and_refused_by_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(tmp_path / "results.db")
    monkeypatch.setattr(migrations, "MIGRATIONS", [*migrations.MIGRATIONS, m900_test_note])
    with pytest.raises(StoreError, match="older partitune; it lacks m900_test_note"):
        Store.open(path, read_only=True)
    for _ in range(2):
        with Store.open(path) as store:
            assert len(store.trials("k3")) == 3
    assert steps(path)[-1] == "m900_test_note"
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT note FROM partitune_studies").fetchall() == [(None,)]
    connection.close()
    monkeypatch.undo()
    with pytest.raises(StoreError, match="newer partitune"):
        Store.open(path)


def test_a_step_that_breaks_leaves_the_database_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path / "results.db")
    before = schema(path)
    monkeypatch.setattr(migrations, "MIGRATIONS", [*migrations.MIGRATIONS, m900_test_note, m901_test_breaks])
    with pytest.raises(StoreError, match="no_such_table"):
        Store.open(path)
    monkeypatch.undo()
    assert schema(path) == before
    with Store.open(path) as store:
        assert len(store.trials("k3")) == 3
