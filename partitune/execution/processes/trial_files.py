"""What trials leave on this machine: logs of engines, files for and of the load generator; one folder a start.

Decision: a log may be of any size. An engine says what it is at the beginning and what went wrong at the end; one that
prints a line a token, or warns in a loop, fills a disk in between. So only head and tail are ever read, and of a log
beyond the cap only they are kept, once nobody can write to it any more. It is cut in place: a full disk has no room for
a copy.

Whether a start is over is asked of the ledger of this machine, never guessed from a process list; so only
this machine's own folder is looked at, though a shared home may hold those of others. A start that is in the ledger
keeps its files however old they are: it runs, or nobody has proved that it ended. Files come a moment before their
record, so what was written to within the hour stays as well.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from partitune.execution.processes.ledger import Ledger, state_folder

DAY_S, HOUR_S = 86_400.0, 3_600.0
#: Bytes that are read, and kept of a longer log than `LARGEST`.
HEAD, TAIL = 1 << 20, 4 << 20
#: Bytes that the log of an ended start may have.
LARGEST = 64 << 20


@dataclass(frozen=True, slots=True)
class TrialFiles:
    """The folder of one start that is over."""

    folder: Path
    age_days: float  # since anything in it was written
    bytes: int


def find_old_trials(older_than_days: float) -> tuple[TrialFiles, ...]:
    """Folders of starts that are over, of this machine, older than that and than an hour."""
    state = state_folder()
    trials = state / "trials"
    if trials.is_symlink() or not trials.is_dir():
        return ()
    kept = {start.trial for start in Ledger(state / "started").starts()}
    old = []
    for folder in sorted(trials.iterdir()):
        if folder.is_symlink() or not folder.is_dir() or folder.name in kept:
            continue
        facts = [path.lstat() for path in (folder, *folder.rglob("*"))]
        age_s = time.time() - max(fact.st_mtime for fact in facts)
        if age_s > max(older_than_days * DAY_S, HOUR_S):
            old.append(TrialFiles(folder, age_s / DAY_S, sum(fact.st_size for fact in facts[1:])))
    return tuple(old)


def throw_trials_away(trials: tuple[TrialFiles, ...]) -> None:
    """Remove them; links are removed, not followed."""
    for trial in trials:
        shutil.rmtree(trial.folder)


def read_log(file: Path) -> str:
    """Its text, or head and tail of it; empty when there is no such file."""
    try:
        with file.open("rb") as log:
            head = log.read(HEAD)
            size = os.fstat(log.fileno()).st_size
            if size <= HEAD + TAIL:
                return (head + log.read()).decode(errors="replace")
            log.seek(size - TAIL)
            return f"{head.decode(errors='replace')}\n[...]\n{log.read().decode(errors='replace')}"
    except FileNotFoundError:
        return ""


def cut_log(file: Path) -> None:
    """Leave head and tail of a log beyond the cap, and a line that says what went. Nobody may write to it any more."""
    with suppress(OSError), file.open("r+b") as log:  # it is gone, or not ours: no reason to fail a trial
        size = os.fstat(log.fileno()).st_size
        if size <= LARGEST:
            return
        log.seek(size - TAIL)
        tail = log.read()
        log.seek(HEAD)
        log.write(f"\n[partitune cut {size - HEAD - TAIL} bytes of {size} here]\n".encode())
        log.write(tail)
        log.truncate()
