"""The same store on PostgreSQL. Runs where a server and psycopg are installed (Debian: apt install postgresql)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partitune.cli import main
from partitune.errors import StoreError
from partitune.store import Store, StudyState
from tests.store_examples import SPEC, again, failed, ok, record, start

psycopg = pytest.importorskip("psycopg")
#: Debian keeps the server's programs out of PATH, by version.
PROGRAMS = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
INITDB = shutil.which("initdb", path=os.pathsep.join([os.environ.get("PATH", ""), *PROGRAMS]))
pytestmark = pytest.mark.skipif(INITDB is None, reason="no PostgreSQL server here (Debian: apt install postgresql)")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A private server on a Unix socket."""
    assert INITDB is not None
    pg_ctl = str(Path(INITDB).with_name("pg_ctl"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL}
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            os.chown(folder, 65534, 65534)
            run["user"] = 65534
        subprocess.run([INITDB, "-D", folder / "data", "-U", "me", "--auth=trust", "--no-sync"], **run, cwd=folder)
        options = f"-c listen_addresses='' -k {folder} -c fsync=off"
        subprocess.run(
            [pg_ctl, "-D", folder / "data", "-w", "-l", folder / "log", "-o", options, "start"], **run, cwd=folder
        )
        try:
            yield f"postgresql+psycopg://me@/postgres?host={folder}"
        finally:
            subprocess.run([pg_ctl, "-D", folder / "data", "-m", "immediate", "stop"], **run, cwd=folder)


def test_trials_come_back_equal_and_one_process_writes(url: str) -> None:
    with pytest.raises(StoreError, match="not a partitune database"):
        Store.open(url, read_only=True)
    with Store.open(url) as store:
        start(store)
        for number, result in enumerate([ok(), failed(reason="a\0b \udcff"), ok(knob=2**62)]):
            record(store, "k3", number, result, "sampler:0")
        record(store, "k3", 0, ok(), "sampler:0")
        with pytest.raises(StoreError, match=rf"partitune {os.getpid()} from the server, since 20.*is writing to it"):
            Store.open(url)
        with Store.open(url, read_only=True) as reader:
            assert [trial.result for trial in reader.trials("k3")][::2] == [ok(), ok(knob=2**62)]
    with Store.open(url) as store:
        assert store.study("k3").state is StudyState.INTERRUPTED
        record(store, "k3", 3, ok(), "sampler:0")


def test_studies_are_resumed_watched_and_deleted_there_too(url: str) -> None:
    with Store.open(url) as store:
        name = start(store, "long")
        for number in range(3):
            record(store, name, number, ok(knob=number), "sampler:front-0")
        with Store.open(url, read_only=True) as reader:
            assert reader.writer().startswith(f"partitune {os.getpid()} from ")
            assert [trial.number for trial in reader.trials(name, stages=False)] == [0, 1, 2]
            assert reader.trial(name, 1).result == ok(knob=1)
        again(store, {**SPEC, "budget": 9}, name, may_differ=["budget"])
        assert store.study(name).spec["budget"] == 9
        again(store, {**SPEC, "model": "qwen3-8b"}, name, anew=True)
        assert (store.trials(name), store.set_aside(name)) == ([], (0, 1, 2))
        store.delete_study(name)
        store.compact()
        assert name not in {study.name for study in store.studies()}
    with Store.open(url, read_only=True) as reader:
        assert reader.writer() == ""


def test_a_whole_search_runs_into_it(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    search = ["search", "tiny", "--pool", "local", "--quiet", "--db", url]
    assert main([*search, "--trials", "3"]) == 0
    assert main([*search[:1], "--resume", "tiny", *search[2:], "--trials", "5"]) == 0
    assert main(["status", "tiny", "--db", url]) == 0
    assert main(["gc", "--db", url]) == 0
    with Store.open(url, read_only=True) as store:
        assert len(store.trials("tiny")) == 5
    assert list(tmp_path.iterdir()) == []  # no logs: there is no folder beside a server


def test_an_unreachable_server_is_one_message() -> None:
    with pytest.raises(
        StoreError, match=r"postgresql\+psycopg://me:\*\*\*@/x\?host=%2Fnowhere: the database cannot be used: .*"
    ):
        Store.open("postgresql+psycopg://me:secret@/x?host=/nowhere")
