"""Several processes at one database: hard kills, second writers, readers during writes. All with real processes."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from partitune.errors import StoreError
from partitune.store import Store, StudyState
from tests.store_examples import filled, ok, record, start

REPOSITORY = Path(__file__).parent.parent.parent
#: Forks from a clean server that has everything imported: cheap, and safe beside the threads of other tests.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])

#: Records trials for ever and says the number of each one that was committed.
WRITER = """
import sys
from partitune.store import Store
from tests.store_examples import ok, record, start
store = Store.open(sys.argv[1])
start(store)
number = 0
while True:
    record(store, "k3", number, ok(knob=number), "sampler")
    print(number, flush=True)
    number += 1
"""


@contextmanager
def writer(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that writes to `path`, past its first commit; killed at the end."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "0\n"
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.mark.parametrize("more_trials", [0, 7, 40])
def test_a_hard_kill_loses_no_finished_trial(tmp_path: Path, more_trials: int) -> None:
    path = tmp_path / "results.db"
    with writer(path) as child:
        assert child.stdout is not None
        said = [0, *(int(child.stdout.readline()) for _ in range(more_trials))]
        time.sleep(0.0007 * more_trials)  # not always at the same point of a commit
        child.send_signal(signal.SIGKILL)
        child.wait()
        said += [int(line) for line in child.stdout.readlines()]
    with Store.open(path, read_only=True) as store:
        trials = store.trials("k3")
    numbers = [trial.number for trial in trials]
    assert numbers[: len(said)] == said
    assert len(numbers) - len(said) in (0, 1)  # committed and killed before it could say so
    assert [trial.result for trial in trials] == [ok(knob=number) for number in numbers]
    # The dead one's lock is nobody's; its study can be resumed.
    with Store.open(path) as store:
        assert store.study("k3").state is StudyState.INTERRUPTED
        record(store, "k3", len(numbers), ok(knob=-1), "sampler")
        assert len(store.trials("k3")) == len(numbers) + 1
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_second_writer_is_told_who_the_first_is_while_readers_read(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    with writer(path) as child:
        seen = []
        for _ in range(6):
            with Store.open(path, read_only=True) as reader:
                seen.append(len(reader.trials("k3")))
            with pytest.raises(StoreError) as caught:
                Store.open(path)
            assert child.stdout is not None
            child.stdout.readline()
        expected = (
            rf"results\.db: process {child.pid} on {re.escape(socket.gethostname())}, since 20\d\d-.* UTC is writing"
        )
        assert re.search(expected, str(caught.value))
        assert "only one process may" in str(caught.value)
        assert seen == sorted(seen)
        assert seen[-1] > seen[0] >= 1
        # One transaction sees one moment, however many queries it takes: every trial has its stages.
        with Store.open(path, read_only=True) as reader:
            for trial in reader.trials("k3"):
                assert trial.result.measurement is not None
                assert len(trial.result.measurement.stages) == 2


def test_another_link_to_the_file_is_the_same_database(tmp_path: Path) -> None:
    path = filled(tmp_path / "results.db")
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with Store.open(path), pytest.raises(StoreError, match=rf"this process \({os.getpid()}\) is writing to it"):
        Store.open(link)
    with Store.open(link) as store:
        assert len(store.trials("k3")) == 3


def test_a_refused_second_writer_leaves_the_lock_to_the_first(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    with Store.open(path):
        with pytest.raises(StoreError, match="this process"):
            Store.open(path)
        assert f"process {os.getpid()} on " in attempts(path, 1)[0]
    assert attempts(path, 1) == ["ok"]


def test_a_lock_file_that_nobody_holds_is_taken_over_whatever_it_says(tmp_path: Path) -> None:
    path = filled(tmp_path / "results.db")
    for left in ('{"pid": 1, "host": "gone", "since": "2020-01-01"}', "", "not JSON", '"text"'):
        Path(f"{path}.lock").write_text(left)
        Store.open(path).close()


FORKING = """
import os, signal, sys, time
from partitune.store import Store
store = Store.open(sys.argv[1])
worker = os.fork()
if worker == 0:
    time.sleep(60)
print(worker, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_outlives_a_killed_search_does_not_keep_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    search = subprocess.Popen(
        [sys.executable, "-c", FORKING, str(path)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert search.stdout is not None
    worker = int(search.stdout.readline())
    search.stdout.close()
    assert search.wait() == -signal.SIGKILL
    try:
        os.kill(worker, 0)
        Store.open(path).close()
    finally:
        os.kill(worker, signal.SIGKILL)


def attempt(path: Path, ready: multiprocessing.synchronize.Barrier, answers: multiprocessing.Queue[str]) -> None:
    ready.wait()
    try:
        store = Store.open(path)
    except StoreError as error:
        answers.put(str(error))
        ready.wait()
        return
    answers.put("ok")
    ready.wait()  # hold it until everybody has tried
    start(store, store.unique_study_name("k3"))
    store.close()


def attempts(path: Path, processes: int) -> list[str]:
    """What `processes` that open `path` at the same moment are told, sorted with the shortest first."""
    ready, answers = FORKS.Barrier(processes), FORKS.Queue()
    workers = [FORKS.Process(target=attempt, args=(path, ready, answers)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    told = [answers.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    return sorted(told, key=len)


def test_of_many_that_start_at_once_one_writes_and_all_others_are_told(tmp_path: Path) -> None:
    # optuna issue 820: eight processes create one study, seven die in the middle of creating the schema.
    path = tmp_path / "results.db"
    for round_number in range(1, 4):
        first, *others = attempts(path, 8)
        assert first == "ok"
        assert all("only one process may" in told for told in others), others
        with Store.open(path, read_only=True) as store:
            assert len(store.studies()) == round_number
