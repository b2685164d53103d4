"""Throw away what nobody needs: logs of studies that are gone, old logs, free pages of the database.

Decision: results are never among it; a study goes only when its name is given. What would be done is worked out first
and then done, so `--dry-run` cannot differ. Only files that look like logs, and lie in the folder of logs, are touched.
It is what a person does whose disk is full, so it begins with what takes no room: reading, and removing logs.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from partitune.errors import StoreError
from partitune.execution.processes.trial_files import DAY_S
from partitune.store import Store
from partitune.store.trial_log import log_file, log_folder


@dataclass(frozen=True, slots=True)
class Rubbish:
    """What can go, each log with the reason."""

    logs: tuple[tuple[Path, str], ...]
    studies: tuple[str, ...]
    bytes: int


def find_rubbish(store: Store, database: str, older_than_days: float, studies: Collection[str] = ()) -> Rubbish:
    """What can go: logs of no study or of one in `studies`, logs not written to for that long, and `studies`.

    Raises:
        StoreError: no such study.
    """
    doomed = tuple(store.study(name).name for name in dict.fromkeys(studies))
    kept = {log_file(database, study.name) for study in store.studies() if study.name not in doomed}
    folder, logs = log_folder(database), []
    files = [] if folder is None or folder.is_symlink() or not folder.is_dir() else sorted(folder.iterdir())
    for file in files:
        if file.is_symlink() or not file.is_file() or not file.name.endswith((".jsonl", ".jsonl.1")):
            continue
        days = (time.time() - file.stat().st_mtime) / DAY_S
        if file.with_name(file.name.removesuffix(".1")) not in kept:
            logs.append((file, "of no study"))
        elif days > older_than_days:
            logs.append((file, f"{days:.0f} days old"))
    return Rubbish(tuple(logs), doomed, sum(file.stat().st_size for file, _ in logs))


def remove_logs(rubbish: Rubbish) -> None:
    """Remove the logs that were found; what is gone already is no fault."""
    for file, _ in rubbish.logs:
        file.unlink(missing_ok=True)


def remove_studies(database: str, rubbish: Rubbish) -> str:
    """Remove its studies, and give free pages of the database back to the disk.

    Returns:
        Why the database stays as large as it is; empty where it is compact.

    Raises:
        StoreError: a study cannot be removed.
    """
    try:
        with Store.open(database) as store:
            for name in rubbish.studies:
                store.delete_study(name)
            return store.compact()
    except StoreError as error:
        if rubbish.studies:
            raise
        return str(error)
