"""A file system of its own that is full: what a person can still do there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.test_processes import REPOSITORY

#: Runs ACT in a file system of 2 MiB, seen by this process alone.
MOUNTED = """
import ctypes, os, sqlite3, sys
from pathlib import Path
from partitune.cli import main
from partitune.store import Store
from tests.store_examples import filled, start
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_PRIVATE, MS_REC = 0x20000, 1 << 18, 1 << 14
def done(code):
    if code: sys.exit(77)
done(libc.unshare(CLONE_NEWNS))
done(libc.mount(None, b"/", None, MS_PRIVATE | MS_REC, None))
done(libc.mount(b"tmpfs", os.getcwdb(), b"tmpfs", 0, b"size=2m"))
os.chdir(os.getcwd())
def fill():
    with open("fill", "wb", buffering=0) as file:
        try:
            while True: file.write(bytes(1024))
        except OSError: pass
def log(name, size):
    Path("results.db.logs").mkdir(exist_ok=True)
    Path("results.db.logs", name).write_bytes(bytes(size))
def typed(*arguments):
    print(*arguments, main(arguments), flush=True)
"""


def on_a_full_disk(act: str, folder: Path) -> list[str]:
    """The lines that `act` prints."""
    command = [sys.executable, "-c", MOUNTED + act]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env={"PYTHONPATH": str(REPOSITORY)}
    )
    if done.returncode == 77:
        pytest.skip("needs the right to mount")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines() + done.stderr.splitlines()


def test_gc_and_reading_take_no_room(tmp_path: Path) -> None:
    act = """
filled(Path("results.db"))
log("gone.jsonl", 40_000)
fill()
typed("gc", "--dry-run", "--older-than", "7")
typed("studies", "--json")
typed("gc", "--older-than", "7")
print(os.path.exists("results.db.logs/gone.jsonl"), sorted(os.listdir()))
"""
    lines = on_a_full_disk(act, tmp_path)
    assert "gc --dry-run --older-than 7 0" in lines
    assert "studies --json 0" in lines
    assert "gc --older-than 7 0" in lines
    assert "removed 1 logs, 40000 bytes; results of other studies stay" in lines
    assert "False ['fill', 'results.db', 'results.db.lock', 'results.db.logs']" in lines


def test_what_a_killed_search_left_in_the_write_ahead_log_is_read(tmp_path: Path) -> None:
    act = """
if os.fork() == 0:
    store = Store.open(filled(Path("results.db")))
    start(store, "last")
    os.kill(os.getpid(), 9)
os.wait()
fill()
typed("studies", "--json")
"""
    studies, code = on_a_full_disk(act, tmp_path)[:2]
    assert code == "studies --json 0"
    assert '"study": "last"' in studies


def test_a_database_that_cannot_be_compacted_is_said_to_stay(tmp_path: Path) -> None:
    act = """
with Store.open(filled(Path("results.db"), 60)) as store:
    start(store, "other")
with sqlite3.connect("results.db") as connection:
    for table in ("stages", "trials"):
        connection.execute(f"DELETE FROM partitune_{table}")
connection.close()
size = Path("results.db").stat().st_size
log("gone.jsonl", 70_000)
fill()
typed("gc")
print(Path("results.db").stat().st_size == size, os.path.exists("results.db.logs/gone.jsonl"))
os.unlink("fill")
typed("gc")
print(Path("results.db").stat().st_size < size)
"""
    lines = on_a_full_disk(act, tmp_path)
    said = [
        line for line in lines if line.startswith("the database stays as large as it is: results.db: compacting takes")
    ]
    assert len(said) == 1
    assert [line for line in lines if line.startswith(("gc", "True", "False"))] == [
        "gc 0",
        "True False",
        "gc 0",
        "True",
    ]
