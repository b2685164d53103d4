"""A database that is taken away from the search that writes to it, and one that has two names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from sqlalchemy import event

from partitune.cli import main
from partitune.errors import StoreError
from partitune.store import Store
from partitune.store.writer import file_key
from tests.store.test_processes import REPOSITORY, writer
from tests.store_examples import filled, ok, record, start

#: Measures as the simulator does; what is done to the database at the sixth candidate stands in place of ACT.
SITE = """
from pathlib import Path
from partitune.execution.simulator_driver import SimulatorDriver

class Site:
    def __init__(self, problem, runner):
        self.simulator, self.measured = SimulatorDriver(problem), 0

    def measure(self, candidate):
        self.measured += 1
        if self.measured == 6:
            ACT
        return self.simulator.measure(candidate)
"""
REMOVE = "Path('results.db').unlink()"
REMOVE_ALL = "[file.unlink() for file in Path().glob('results.db*') if file.is_file()]"
REPLACE = "Path('other.db').rename('results.db')"
REMOVE_LOG = "Path('results.db-wal').unlink()"


@pytest.mark.parametrize("act", [REMOVE, REMOVE_ALL, REPLACE, REMOVE_LOG])
def test_a_database_that_is_taken_away_ends_the_search_and_is_kept(
    act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    other = filled(Path("other.db"))
    whole = other.read_bytes()
    Path("site.py").write_text(SITE.replace("ACT", act))
    Path("site.yaml").write_text("kind: runner\nname: site\ndriver: site.py:Site\nworkers: 1\n")
    search = ["search", "tiny", "--runner", "site.yaml", "--pool", "local", "--quiet", "--trials", "9"]
    search += ["--set", "budget.screen=0", "--set", "budget.finalists=0"]
    assert main(search) == 2
    said = capsys.readouterr()
    what = "results.db-wal beside it" if act == REMOVE_LOG else "the file"
    assert said.err == (
        f"partitune: results.db: {what} was removed or replaced while this process wrote. All 5 trials stored before "
        f"are kept in {tmp_path}/results.db.kept-1: move it back and resume. No other was stored\n"
    )
    assert said.out == ""
    with Store.open("results.db.kept-1", read_only=True) as store:
        assert [trial.number for trial in store.trials("tiny")] == [0, 1, 2, 3, 4]
    if act == REPLACE:
        assert Path("results.db").read_bytes() == whole
        with Store.open("results.db", read_only=True) as store:
            assert [study.name for study in store.studies()] == ["k3"]  # and nothing of ours is read into it
    Path("site.py").write_text(SITE.replace("ACT", "pass"))
    for file in Path().glob("results.db-*"):
        file.unlink()
    Path("results.db.kept-1").rename("results.db")
    assert main(search) == 0
    with Store.open("results.db", read_only=True) as store:
        assert len(store.trials("tiny")) == 9


def test_where_the_folder_went_too_it_is_kept_among_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, spare = tmp_path / "runs", tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spare))
    for there in (True, False):
        if there:
            spare.mkdir(exist_ok=True)
        with Store.open(folder / "results.db") as store:
            start(store)
            record(store, "k3", 0, ok(), "sampler")
            shutil.rmtree(folder)
            what = rf"All 1 trials stored before are kept in {spare}/results\.db\.kept-1: move it back"
            for _ in range(2):  # every further try is answered alike
                with pytest.raises(StoreError, match=what if there else "could not be kept: No such file or directory"):
                    record(store, "k3", 1, ok(), "sampler")
        assert not folder.exists()
        folder.mkdir()
        shutil.rmtree(spare, ignore_errors=True)


def test_a_hard_link_is_the_same_database(tmp_path: Path) -> None:
    path, link = tmp_path / "results.db", tmp_path / "elsewhere.db"
    with writer(path):
        os.link(path, link)
        with pytest.raises(StoreError, match=r"elsewhere\.db: another process \(by this or another name of the file\)"):
            Store.open(link)
    with Store.open(link), pytest.raises(StoreError, match=rf"results\.db: this process \({os.getpid()}\) is writing"):
        Store.open(path)


MOUNTED = """
import ctypes, sys
from partitune.errors import StoreError
from partitune.store import Store
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_REC = 0x20000, 0x1000, 1 << 18, 1 << 14
def done(code):
    if code: sys.exit(77)
done(libc.unshare(CLONE_NEWNS))
done(libc.mount(None, b"/", None, MS_PRIVATE | MS_REC, None))
done(libc.mount(sys.argv[1].encode(), sys.argv[2].encode(), None, MS_BIND, None))
try:
    Store.open(sys.argv[2])
except StoreError as error:
    print(error)
"""


def test_a_bind_mount_is_the_same_database(tmp_path: Path) -> None:
    path, mounted = tmp_path / "results.db", tmp_path / "mounted.db"
    mounted.touch()
    with writer(path):
        command = [sys.executable, "-c", MOUNTED, str(path), str(mounted)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    if done.returncode == 77:
        pytest.skip("needs the right to mount")
    assert done.returncode == 0, done.stderr
    assert "mounted.db: another process (by this or another name of the file) is writing to it" in done.stdout


def test_elsewhere_than_on_linux_a_file_of_two_names_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(tmp_path / "results.db")
    os.link(path, tmp_path / "elsewhere.db")
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(StoreError, match=r"has 2 names \(hard links\), and SQLite loses data so. Keep one"):
        Store.open(path)
    with Store.open(path, read_only=True) as store:
        assert len(store.trials("k3")) == 3
    (tmp_path / "elsewhere.db").unlink()
    with Store.open(path):
        assert file_key(path) is not None
        script = f"from partitune.store import Store; Store.open({str(path)!r})"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert f"process {os.getpid()} on " in done.stderr


def interrupted_write(store: Store, study: str) -> None:
    """A write in which a signal comes: SQLAlchemy closes its connection, and SQLite removes its log with the last."""

    def interrupt(*_: object) -> None:
        event.remove(store.engine, "do_execute", interrupt)
        raise KeyboardInterrupt

    event.listen(store.engine, "do_execute", interrupt)
    with pytest.raises(KeyboardInterrupt):
        record(store, study, 1, ok(knob=1), "sampler:0")


def test_a_database_replaced_when_no_connection_is_left_is_not_taken_for_ours(tmp_path: Path) -> None:
    other = filled(tmp_path / "other.db")
    whole = other.read_bytes()
    with Store.open(tmp_path / "results.db") as store:
        study = start(store)
        record(store, study, 0, ok(knob=0), "sampler:0")
        interrupted_write(store, study)
        other.rename(tmp_path / "results.db")
        with pytest.raises(StoreError, match="could not be kept: no connection to it is left"):
            record(store, study, 1, ok(knob=1), "sampler:0")
    assert (tmp_path / "results.db").read_bytes() == whole
    assert not list(tmp_path.glob("*.kept-*"))


def test_a_signal_in_the_middle_of_a_commit_takes_nothing_away(tmp_path: Path) -> None:
    with Store.open(tmp_path / "results.db") as store:
        study = start(store)
        record(store, study, 0, ok(knob=0), "sampler:0")
        interrupted_write(store, study)
        assert not (tmp_path / "results.db-wal").exists()
        record(store, study, 1, ok(knob=1), "sampler:0")
        (tmp_path / "results.db-wal").unlink()
        with pytest.raises(StoreError, match=r"results\.db-wal beside it was removed"):
            record(store, study, 2, ok(knob=2), "sampler:0")
