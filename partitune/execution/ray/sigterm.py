"""SIGTERM stays ours: Ray answers it with a stack trace of its C++ code.

Decision: what stood before Ray was started stands again, put back while Ray starts as well, since it takes over at a
moment of its own, once a process. Python sets a handler from its main thread only, and Ray starts in another; so the
kernel's own record is put back, which any thread may do.

Source: ray 2.60, `src/ray/util/logging.cc` (InstallFailureSignalHandler, called when a driver connects);
`_private/worker.py` (init sets a handler that exits with 15).
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Bytes that hold a `struct sigaction` of any system (Linux: 152).
_STRUCT = 512


@contextmanager
def own_sigterm() -> Iterator[Callable[[], None]]:
    """Gives what puts the answer to SIGTERM back that stands now; leaving it does so as well."""
    library, kept = ctypes.CDLL(None), ctypes.create_string_buffer(_STRUCT)
    handler = signal.getsignal(signal.SIGTERM)
    library.sigaction(signal.SIGTERM, None, kept)

    def put_back() -> None:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
        library.sigaction(signal.SIGTERM, kept, None)

    try:
        yield put_back
    finally:
        put_back()
