"""Databases that cannot be used: one clear message, nothing written, nothing lost."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from partitune.errors import StoreError
from partitune.store import Store, connection, location
from tests.store_examples import failed, filled, ok, record, start


def refusal(where: Path | str, *, read_only: bool = True) -> str:
    """The one-line message with which `where` is refused."""
    with pytest.raises(StoreError) as caught:
        Store.open(where, read_only=read_only)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def both(where: Path | str) -> str:
    reading = refusal(where)
    assert reading == refusal(where, read_only=False)
    return reading


def test_a_missing_file_is_not_created_by_reading(tmp_path: Path) -> None:
    assert refusal(tmp_path / "results.db").startswith(f"{tmp_path}/results.db: no such file")
    assert list(tmp_path.iterdir()) == []


def test_reading_leaves_no_file_behind(tmp_path: Path) -> None:
    path = filled(tmp_path / "results.db")
    before = sorted(tmp_path.iterdir())
    with Store.open(path, read_only=True) as store:
        assert len(store.trials("k3")) == 3
        with pytest.raises(StoreError, match="opened for reading"):
            record(store, "k3", 3, ok(), "seed")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("content", [b"output_throughput,ttft\n1,2\n", b"\0" * 4096, b"SQLite", b"\x1f\x8b\x08" * 500])
def test_another_kind_of_file_is_refused_untouched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "results.db"
    path.write_bytes(content)
    assert "results.db: not an SQLite database. Give" in both(path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_header_with_garbage_behind_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 8192)
    assert "results.db: not an SQLite database" in both(path)


def test_a_damaged_file_is_reported_and_kept(tmp_path: Path) -> None:
    path = filled(tmp_path / "results.db", trials=30)
    whole = path.read_bytes()
    damaged = whole[:8192] + b"\xaa" * (len(whole) - 8192)
    path.write_bytes(damaged)
    with (
        pytest.raises(StoreError, match=r"the database is damaged. Keep the file.*recover"),
        Store.open(path, read_only=True) as store,
    ):
        store.trials("k3")
    assert path.read_bytes() == damaged


def test_a_file_cut_short_is_reported(tmp_path: Path) -> None:
    path = filled(tmp_path / "results.db", trials=30)
    path.write_bytes(path.read_bytes()[:20480])
    with (
        pytest.raises(StoreError, match=r"results.db: the database is damaged"),
        Store.open(path, read_only=True) as store,
    ):
        store.trials("k3")


def test_an_empty_file_is_a_new_database_only_for_writing(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    path.touch()
    assert "not a partitune database" in refusal(path)
    with Store.open(path) as store:
        assert store.studies() == []


def test_a_foreign_database_is_not_read_and_not_harmed(tmp_path: Path) -> None:
    path = tmp_path / "places.db"
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE studies (study_id INTEGER PRIMARY KEY, study_name TEXT)")
    foreign.execute("INSERT INTO studies VALUES (1, 'theirs')")
    foreign.commit()
    assert "places.db: not a partitune database: it has no partitune tables" in refusal(path)
    with Store.open(path) as store:
        start(store)
        assert [study.name for study in store.studies()] == ["k3"]
    assert foreign.execute("SELECT * FROM studies").fetchall() == [(1, "theirs")]
    foreign.close()


@pytest.mark.parametrize("ours_first", [True, False])
def test_an_optuna_study_lives_in_the_same_file(tmp_path: Path, ours_first: bool) -> None:
    import optuna

    path = tmp_path / "results.db"
    if ours_first:
        filled(path)
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    study = optuna.create_study(storage=storage, study_name="theirs")
    study.add_trial(optuna.trial.create_trial(value=1.0))
    storage.engine.dispose()
    if not ours_first:
        filled(path)
    with Store.open(path, read_only=True) as store:
        assert [one.name for one in store.studies()] == ["k3"]
        assert len(store.trials("k3")) == 3
    assert [trial.value for trial in study.get_trials()] == [1.0]
    storage.engine.dispose()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = filled(tmp_path / "results.db")
    newer = sqlite3.connect(path)
    newer.execute("INSERT INTO partitune_migrations VALUES ('m999_from_the_future', '2030-01-01T00:00:00+00:00')")
    newer.commit()
    newer.close()
    message = both(path)
    assert "results.db: written by a newer partitune (schema step m999_from_the_future)" in message
    assert "Upgrade partitune" in message


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert f"{tmp_path}: is a folder. Give a file, such as {tmp_path}/results.db" in both(tmp_path)


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "is not a regular file" in both(pipe)
    assert "is not a regular file" in both("/dev/null")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert f"the folder {tmp_path}/runs does not exist" in refusal(tmp_path / "runs" / "results.db", read_only=False)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "'' is not a file name"),
        ("a\0b", r"'a\x00b' is not a file name"),
        ("x" * 300, "File name too long"),
        ("nonsense://", "nonsense is not supported. Allowed: sqlite, postgresql"),
        ("://", "not a database URL"),
        ("mysql://user:secret@host/db", "mysql://user:***@host/db: mysql is not supported"),
        ("sqlite://", "only a plain file is allowed"),
        ("sqlite:///:memory:", "only a plain file is allowed"),
        ("sqlite:///results.db?mode=memory", "only a plain file is allowed"),
    ],
)
def test_what_names_no_database_is_refused(where: str, message: str) -> None:
    assert message in both(where)


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "symbolic links" in both(tmp_path / "a")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3"])
def test_a_network_file_system_is_refused_for_writing_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    filled(tmp_path / "results.db")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/home {tmp_path} {kind} rw,relatime 0 0\n")
    monkeypatch.setattr(location, "MOUNTS", mounts)
    assert f"lies on a network file system ({kind})" in refusal(tmp_path / "results.db", read_only=False)
    assert f"({kind})" in refusal(tmp_path / "new.db", read_only=False)
    assert not (tmp_path / "new.db").exists()
    with Store.open(tmp_path / "results.db", read_only=True) as store:
        assert len(store.trials("k3")) == 3


def test_the_innermost_and_latest_mount_holds_a_path() -> None:
    mounts = (
        "/dev/vda / ext4 rw 0 0\nhost:/x /home nfs4 rw 0 0\ntmpfs /home/me/fast tmpfs rw 0 0\n"
        "//nas/data /mnt/m\u00fc\\040share cifs rw 0 0\ntmpfs /over ext4 rw 0 0\nhost:/y /over nfs rw 0 0\n"
    )
    kinds = {
        "/home/me/results.db": "nfs4",
        "/home/me/fast/results.db": "tmpfs",
        "/homely/results.db": "ext4",
        "/mnt/mü share/r.db": "cifs",
        "/over/r.db": "nfs",
    }
    assert {path: location.file_system(Path(path), mounts) for path in kinds} == kinds


def test_a_program_that_holds_the_file_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_S", 0.05)
    path = filled(tmp_path / "results.db")
    browser = sqlite3.connect(path, isolation_level=None)
    with Store.open(path) as store:
        browser.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"results.db: locked by another program"):
            record(store, "k3", 3, ok(), "seed")
        assert len(store.trials("k3")) == 3  # readers do not wait
        browser.execute("ROLLBACK")
        record(store, "k3", 3, ok(), "seed")
        assert len(store.trials("k3")) == 4
    browser.close()


def test_a_full_disk_keeps_every_earlier_trial_and_the_store_goes_on(tmp_path: Path) -> None:
    with Store.open(tmp_path / "results.db") as store:
        start(store)
        record(store, "k3", 0, ok(), "default")
        with store.engine.connect() as only:
            # SQLite answers SQLITE_FULL at its own page limit exactly as it does at the disk's end.
            only.exec_driver_sql("PRAGMA max_page_count = 1")
        with pytest.raises(StoreError, match=r"the disk is full. This trial was not stored, all earlier ones are"):
            record(store, "k3", 1, failed(reason="x" * 100_000), "sampler")
        with store.engine.connect() as only:
            only.exec_driver_sql("PRAGMA max_page_count = 1000000")
        record(store, "k3", 1, failed(reason="x" * 100_000), "sampler")
        assert [trial.number for trial in store.trials("k3")] == [0, 1]


AS_NOBODY = """
import os, sys
from pathlib import Path
from partitune.errors import StoreError
from partitune.store import Store
where, mode = sys.argv[1:]
with Store.open(where, read_only=True) as store:
    store.trials("k3")  # loads every module while it still may
if os.getuid() == 0:
    os.setuid(65534)
os.chdir("/")
try:
    with Store.open(where, read_only=mode == "read") as store:
        print(len(store.trials("k3")))
except StoreError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "mode", "answer"),
    [
        (0o444, 0o777, "write", "the file is read-only. Make it writable"),
        (0o644, 0o555, "write", "is read-only. Make it writable"),
        (0o444, 0o555, "read", "3\n"),
        (0o444, 0o777, "read", "3\n"),
        (0o000, 0o777, "read", "Permission denied"),
        (0o000, 0o777, "write", "Permission denied"),
    ],
)
def test_read_only_files_and_folders(file_mode: int, folder_mode: int, mode: str, answer: str) -> None:
    # Not tmp_path: its parents are closed to the user that root becomes here, and root itself may write anything.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = filled(folder / "results.db")
        (folder / "results.db.lock").unlink()
        script = [sys.executable, "-c", AS_NOBODY.replace("Store.open(where", "Store.open(where", 1), str(path), mode]
        if os.getuid() != 0:
            script[2] = AS_NOBODY.replace("with Store.open(where, read_only=True) as store:", "if store := None:", 1)
        path.chmod(file_mode)
        folder.chmod(folder_mode)
        try:
            done = subprocess.run(
                script, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent.parent
            )
        finally:
            folder.chmod(0o755)
        assert answer in done.stdout, done
        assert done.stderr == ""


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("trials", "outcome", "fine", "'fine' is not one of ok, infeasible, failed, invalid, lost"),
        ("trials", "partition", "47;46", "'47;46' is not a partition such as 11,11,12"),
        ("trials", "partition", "٤٧,46", "is not a partition"),
        ("trials", "partition", "", "'' is not a partition"),
        ("trials", "knobs", '{"a": 1', """'{"a": 1' is not JSON"""),
        ("trials", "knobs", "[1]", "'[1]' is not a JSON object"),
        ("trials", "knobs", b"\x01", "is not a text"),
        ("trials", "metrics", '{"ttft_p99_ms": NaN}', "is not JSON"),
        ("trials", "metrics", '{"ttft_p99_ms": "fast"}', "is not a JSON object of numbers"),
        ("trials", "metrics", None, "None is not a text"),
        ("trials", "measurement", '{"regime": "R1"}', "is not the rest of a measurement"),
        ("trials", "constraints", "", "'' is not JSON"),
        ("trials", "finished_at", "yesterday", "'yesterday' is not a time"),
        ("trials", "started_at", "2026-11-29T12:00:00", "is not a time with its zone"),
        ("trials", "duration_s", "long", "'long' is not a number"),
        ("stages", "layers", "many", "'many' is not an integer"),
        ("stages", "kinds", "{'kda': 3}", "is not JSON"),
        ("stages", "wait_s", float("inf"), "inf is not a number"),
    ],
)
def test_a_damaged_cell_is_named_and_nothing_else_is_touched(
    tmp_path: Path, table: str, column: str, value: object, message: str
) -> None:
    path = filled(tmp_path / "results.db")
    raw = sqlite3.connect(path)
    key = "id = 2" if table == "trials" else "trial_id = 2 AND stage = 1"
    raw.execute(f"UPDATE partitune_{table} SET {column} = ? WHERE {key}", (value,))
    raw.commit()
    row = "trial 1 of study k3" if table == "trials" else "stage 1 of trial 1 of study k3"
    with Store.open(path, read_only=True) as store:
        with pytest.raises(StoreError) as caught:
            store.trials("k3")
        assert f"results.db: table partitune_{table}, {row}, column {column}: " in str(caught.value)
        assert message in str(caught.value)
        assert store.trial("k3", 2).result == ok(knob=2)
    assert raw.execute(f"SELECT {column} FROM partitune_{table} WHERE {key}").fetchone() == (value,)
    raw.close()


@pytest.mark.parametrize(
    ("column", "value"), [("spec", "{"), ("state", "paused"), ("created_at", ""), ("random_seed", "seven")]
)
def test_a_damaged_study_is_named(tmp_path: Path, column: str, value: str) -> None:
    path = filled(tmp_path / "results.db")
    raw = sqlite3.connect(path)
    raw.execute(f"UPDATE partitune_studies SET {column} = ?", (value,))
    raw.commit()
    raw.close()
    with (
        Store.open(path, read_only=True) as store,
        pytest.raises(StoreError, match=f"table partitune_studies, study k3, column {column}: "),
    ):
        store.studies()


def test_a_missing_table_is_reported(tmp_path: Path) -> None:
    path = filled(tmp_path / "results.db")
    raw = sqlite3.connect(path)
    raw.execute("DROP TABLE partitune_stages")
    raw.close()
    with Store.open(path, read_only=True) as store, pytest.raises(StoreError, match="no such table: partitune_stages"):
        store.trials("k3")
