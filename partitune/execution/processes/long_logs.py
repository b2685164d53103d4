"""What is read and kept of a log that may be of any size.

Decision: an engine says what it is at the beginning and what went wrong at the end; one that prints a line a token, or
warns in a loop, fills a disk in between. So only head and tail are ever read, and of a log beyond the cap only they are
kept, once nobody can write to it any more. It is cut in place: a full disk has no room for a copy.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

#: Bytes that are read, and kept of a longer log than `LARGEST`.
HEAD, TAIL = 1 << 20, 4 << 20
#: Bytes that the log of an ended start may have.
LARGEST = 64 << 20


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
