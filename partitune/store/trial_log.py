"""What a trial had to say beyond its result: one JSON line a trial, in `DATABASE.logs/STUDY.jsonl`.

Decision: the database holds what is compared; a traceback or a server's last words are read once, by a person, and may
be thrown away (`partitune gc`). So they lie beside it, in files of bounded size, and a log that cannot be written never
ends a search. A database on a server has no folder beside it, and no logs.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from partitune.analysis.trial import Repeat, Trial
from partitune.spec.own_file import mode_of, own_file, own_folder
from partitune.store.location import locate

#: A log that grows beyond this becomes the old one; the old one before it goes.
LARGEST_FILE = 16 * 2**20
#: Characters of one trial's detail that are kept: its end.
LONGEST_DETAIL = 64 * 2**10
_BESIDE = ".logs"


def log_folder(database: str | Path) -> Path | None:
    """The folder of a database's logs; None for a server. Raises StoreError for what is no database."""
    path = locate(database).path
    return None if path is None else path.with_name(path.name + _BESIDE)


def log_file(database: str | Path, study: str) -> Path | None:
    """The log of one study, whatever characters its name has."""
    folder = log_folder(database)
    # A folder holds names of 255 bytes.
    return None if folder is None else folder / f"{quote(study, safe=' ')[:200]}.jsonl"


def log_trial(database: str | Path, ended: Trial | Repeat) -> None:
    """Append one line about a finished trial, or a run of a final, to the log of its study."""
    file = log_file(database, ended.study)
    if file is None:
        return
    result = ended.result
    line = {
        "time": datetime.now(UTC).isoformat(),
        "trial": ended.number if isinstance(ended, Trial) else ended.trial,
        "origin": ended.origin,
        "partition": result.candidate.partition_text,
        "knobs": result.candidate.settings,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "duration_s": result.duration_s,
        **({"detail": result.detail[-LONGEST_DETAIL:]} if result.detail else {}),
    }
    with suppress(OSError):  # a full disk is the database's to report
        mode = mode_of(file.parent.with_name(file.parent.name.removesuffix(_BESIDE)))  # who reads the one reads both
        own_folder(file.parent, mode)
        if file.exists() and file.stat().st_size > LARGEST_FILE:
            file.replace(file.with_name(file.name + ".1"))
        with own_file(file, mode).open("a", encoding="utf-8", errors="backslashreplace") as lines:
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
