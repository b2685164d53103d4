"""Runs inside the job: a search into a database of its own, and every trial into the job's log as it is recorded.

    python3 -m partitune.jobs.sending SPACE [arguments of `partitune search` but --db]

Decision: the search is the same command a person types, in a process of its own; this one only reads its database. So
what was recorded is sent even when the search is killed. Ray signals every process of a job it stops: the search ends
as by Ctrl-C, this one sends the rest, removes the database and is the last to go. The database lies in a temporary
folder and not in the job's, which Ray shares between jobs with equal files.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path

from partitune.errors import StoreError
from partitune.jobs.messages import EndMessage, Message, encode
from partitune.store import Store, StudyTerms

#: Seconds a search has to end by itself after SIGTERM.
GRACE_S = 50.0
#: Share of time that may go into reading a database that grows.
_READING = 0.1


class Sender:
    """Sends what a database holds and was not sent yet."""

    def __init__(self, database: Path, write: Callable[[str], object]) -> None:
        self._database, self._write = database, write
        self._sent: Counter[tuple[str, str]] = Counter()  # study, what of it -> how many were sent

    def send_new(self) -> None:
        """Send new studies and trials. Raises StoreError."""
        if not self._database.exists():
            return
        with Store.open(self._database, read_only=True) as store:
            for study in store.studies():
                messages: dict[str, Sequence[Message]] = {
                    "study": [StudyTerms(**{part.name: getattr(study, part.name) for part in fields(StudyTerms)})],
                    "screened": store.screened(study.name),
                    "trials": store.trials(study.name),
                    "repeats": store.repeats(study.name),
                }
                for kind, of_kind in messages.items():  # each only ever becomes longer
                    for message in of_kind[self._sent[study.name, kind] :]:
                        self._send(message)
                        self._sent[study.name, kind] += 1

    def send_ends(self) -> None:
        """Send how every study ended. Raises StoreError."""
        with Store.open(self._database, read_only=True) as store:
            for study in store.studies():
                self._send(EndMessage(study.name, study.state))

    def _send(self, message: Message) -> None:
        for line in encode(message):
            self._write(line)


def main(arguments: Sequence[str]) -> int:
    """Search, send, and return the exit code of the search."""
    stopped: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(time.monotonic()))
    with tempfile.TemporaryDirectory(prefix="partitune-") as folder:
        database = Path(folder, "results.db")
        search = subprocess.Popen([sys.executable, "-m", "partitune", "search", *arguments, "--db", str(database)])
        sender = Sender(database, partial(print, end="", flush=True))
        pause_s = 1.0
        while search.poll() is None:
            try:
                search.wait(pause_s)
            except subprocess.TimeoutExpired:
                pause_s = _send(sender)
            if stopped and time.monotonic() > stopped[0] + GRACE_S:
                search.kill()
        if database.exists():
            sender.send_new()
            sender.send_ends()
    return search.returncode if search.returncode >= 0 else 128 - search.returncode


def _send(sender: Sender) -> float:
    """Send what is new; seconds to the next time."""
    start = time.monotonic()
    try:
        sender.send_new()
    except StoreError:
        return 1.0  # its tables are only being made
    return max(1.0, (time.monotonic() - start) / _READING)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
