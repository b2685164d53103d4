"""The same store on PostgreSQL. Runs where `initdb` and psycopg are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partitune.errors import StoreError
from partitune.store import Store, StudyState
from tests.store_examples import failed, ok, start

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.skipif(shutil.which("initdb") is None, reason="needs PostgreSQL's initdb")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A private server on a Unix socket."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL}
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            os.chown(folder, 65534, 65534)
            run["user"] = 65534
        subprocess.run(["initdb", "-D", folder / "data", "-U", "me", "--auth=trust", "--no-sync"], **run, cwd=folder)
        options = f"-c listen_addresses='' -k {folder} -c fsync=off"
        subprocess.run(
            ["pg_ctl", "-D", folder / "data", "-w", "-l", folder / "log", "-o", options, "start"], **run, cwd=folder
        )
        try:
            yield f"postgresql+psycopg://me@/postgres?host={folder}"
        finally:
            subprocess.run(["pg_ctl", "-D", folder / "data", "-m", "immediate", "stop"], **run, cwd=folder)


def test_trials_come_back_equal_and_one_process_writes(url: str) -> None:
    with pytest.raises(StoreError, match="not a partitune database"):
        Store.open(url, read_only=True)
    with Store.open(url) as store:
        start(store)
        for number, result in enumerate([ok(), failed(reason="a\0b \udcff"), ok(knob=2**62)]):
            store.record("k3", number, result, "sampler:0")
        store.record("k3", 0, ok(), "sampler:0")
        with pytest.raises(StoreError, match=rf"partitune {os.getpid()} from the server, since 20.*is writing to it"):
            Store.open(url)
        with Store.open(url, read_only=True) as reader:
            assert [trial.result for trial in reader.trials("k3")][::2] == [ok(), ok(knob=2**62)]
            found = reader.find_measured("k3", ok().candidate.digest)
            assert found is not None
            assert found.number == 0
    with Store.open(url) as store:
        assert store.study("k3").state is StudyState.INTERRUPTED
        store.record("k3", 3, ok(), "sampler:0")


def test_an_unreachable_server_is_one_message() -> None:
    with pytest.raises(
        StoreError, match=r"postgresql\+psycopg://me:\*\*\*@/x\?host=%2Fnowhere: the database answers: .*"
    ):
        Store.open("postgresql+psycopg://me:secret@/x?host=/nowhere")
