"""Standard input, output and error as a command may count on them, and the signals that end it.

Decision: what is said on stderr is for people who may have left. A terminal that is gone, a pipe whose reader ended or
a full disk there never ends a search; on stdout, where the answer is wanted, they do. A closed stream is an open one
that leads nowhere: otherwise the next file that is opened, such as the database, would get its number and what is said.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from contextlib import suppress

#: Seconds in which a second Ctrl-C is the first one, sent to a process and to its group.
_IMPATIENT_S = 1.0
_ERASE_LINE, _SHOW_CURSOR = b"\r\x1b[2K", b"\x1b[?25h"


class _Unfailing(io.FileIO):
    """A file that takes whatever is written, also where nothing can be written any more."""

    def write(self, data: bytes, /) -> int:  # type: ignore[override]  # what a text stream writes
        try:
            return super().write(data)
        except OSError:
            return len(data)


def open_standard_streams() -> None:
    """Make all three usable, whatever the caller left closed; characters that a locale lacks become `?`."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - stays open as stdout does
    if sys.stderr is None or sys.stderr is sys.__stderr__:  # not where whoever called us reads it
        encoding = sys.stdout.encoding if sys.stderr is None else sys.stderr.encoding
        raw = _Unfailing(2, "w", closefd=False)
        sys.stderr = io.TextIOWrapper(raw, encoding, "replace", line_buffering=True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def end_by_signals() -> None:
    """Let SIGTERM and SIGINT end the command in order, and a Ctrl-C after that at once.

    The first signal raises KeyboardInterrupt: what runs is ended with proof. A supervisor may send several, and they
    change nothing. A person who cannot wait leaves the proof to the supervisors of what was started, which outlive this
    process.
    """
    signal.signal(signal.SIGTERM, _stop)  # ended by a supervisor as cleanly as by Ctrl-C
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _stop)


def _stop(*_: object) -> None:
    """Answer at once: ending workers can take a while."""
    _tell(b"partitune: stopping\n")
    signal.signal(signal.SIGTERM, lambda *_: None)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        stopped_s = time.monotonic()
        signal.signal(signal.SIGINT, lambda *_: _leave() if time.monotonic() > stopped_s + _IMPATIENT_S else None)
    raise KeyboardInterrupt


def _leave() -> None:
    _tell(b"partitune: stopped at once; what still runs is ended by its supervisors\n")
    os._exit(130)


def _tell(text: bytes) -> None:
    """Past everything that holds a lock or a buffer; a line that moves on a terminal makes way."""
    with suppress(OSError):
        os.write(2, (_ERASE_LINE + _SHOW_CURSOR if os.isatty(2) else b"") + text)
