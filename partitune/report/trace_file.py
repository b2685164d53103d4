"""Write a Chrome trace: whole or not at all, and never over a file that is not one of ours.

Decision: a profile of a real run can have cost hours of a cluster and has the same kind of name, so only a file that
says it was simulated is replaced. A name that ends in `.gz` is compressed, as the engines' own traces are.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from partitune.spec.own_file import PRIVATE, check_free, write_whole

#: How a file of ours begins; `partitune.simulation.chrome_trace.chrome_trace` puts these keys first.
_HEAD = b'{"schemaVersion":1,"partitune":{"simulated":true'


def write_trace(path: Path, trace: Mapping[str, object], mode: int = PRIVATE) -> None:
    """Write `trace` to `path`, with `mode` if it is new, replacing an older trace of ours in one step.

    Raises:
        SpecError: the folder is missing, `path` is something else than a trace of ours, or it cannot be written.
    """
    _write({path: trace}, "--trace", mode)


def write_traces(folder: Path, traces: Mapping[str, Mapping[str, object]], mode: int = PRIVATE) -> None:
    """Write every one of `traces` into `folder` by its file's name; all or none. Raises as `write_trace`."""
    _write({folder / name: trace for name, trace in traces.items()}, "--trace-dir", mode)


def _write(traces: Mapping[Path, Mapping[str, object]], asked_by: str, mode: int) -> None:
    contents = {}
    for path, trace in traces.items():
        data = json.dumps(trace, separators=(",", ":")).encode()
        contents[path] = gzip.compress(data, compresslevel=6, mtime=0) if path.suffix == ".gz" else data
        check_free(path, asked_by, _ours, "is not a simulated trace")
    write_whole(contents, asked_by, mode=mode)


def _ours(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(len(_HEAD))
    if start.startswith(b"\x1f\x8b"):
        with suppress(EOFError, gzip.BadGzipFile), gzip.open(path) as unpacked:
            start = unpacked.read(len(_HEAD))
    return start == _HEAD
