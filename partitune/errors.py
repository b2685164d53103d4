"""One tree of errors, so that a caller can catch all of ours and nothing else.

    PartituneError
    ├── SpecError            a file, flag or vector a person wrote; names file:line, key and what is allowed
    │   └── InfeasibleSpace  the input is well formed, but no partition satisfies it
    ├── StoreError           a results database that cannot be opened, read or written
    ├── RunError             one candidate could not be measured; becomes a Result with a reason
    │   ├── Refused          the engine's own rules forbid it; known without a start, or said by the engine at its start
    │   ├── OutOfMemory      weights, activations or the smallest KV cache do not fit
    │   ├── LaunchFailed     the engine did not start
    │   ├── Unhealthy        it started and does not answer
    │   ├── BenchmarkFailed  it answered and the load generator's result cannot be trusted
    │   ├── Stalled          running requests, no token progress
    │   ├── TimedOut         a phase exceeded its limit
    │   └── NodeLost         the machine, not the candidate: a node went away or may not be used
    └── ClusterError         Ray unreachable, authentication, job rejected

Only `cli.py` prints errors. Nothing below it catches broadly except the pool boundary, which turns a RunError into a
Result.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from functools import partial


class PartituneError(Exception):
    """Root of every error partitune raises on purpose."""


class SpecError(PartituneError):
    """Input written by a person is wrong. The message is complete: place, key, what is allowed."""


class InfeasibleSpace(SpecError):
    """Well-formed input that admits no legal partition."""


class StoreError(PartituneError):
    """The results database cannot be used."""


class RunError(PartituneError):
    """One candidate could not be measured.

    `excess` is how far a constraint was missed in the constraint's own unit (GiB over, seconds over); it grades the
    failure for the sampler. None when there is nothing to grade. `detail` is what a person may want to read once (a
    server's last words); it goes to the trial's log.
    """

    def __init__(self, message: str, *, excess: float | None = None, detail: str = "") -> None:
        super().__init__(message)
        self.excess = excess
        self.detail = detail

    def __reduce__(self) -> tuple[object, ...]:
        # Ray pickles errors raised in workers; the keywords must survive the trip.
        return partial(type(self), excess=self.excess, detail=self.detail), (str(self),)


class Refused(RunError):
    """The engine's own rules forbid this candidate: known without a start, or said at it. `excess` counts the rules."""


class OutOfMemory(RunError):
    """Weights, activations or the smallest KV cache do not fit a stage."""


class LaunchFailed(RunError):
    """The engine did not start."""


class Unhealthy(RunError):
    """The engine started and does not answer."""


class BenchmarkFailed(RunError):
    """The load generator's result cannot be trusted."""


class Stalled(RunError):
    """Requests are running and no token comes."""


class TimedOut(RunError):
    """A phase exceeded its limit."""


class NodeLost(RunError):
    """A node went away, or is quarantined: nothing is said about the candidate, which is tried once more."""


class ClusterError(PartituneError):
    """Ray is unreachable, refuses us, or rejected a job."""


def nearest(word: str, allowed: Iterable[str], *, most: int = 1, alike: float = 0.6) -> list[str]:
    """The allowed names most like `word`, best first; empty when none is.

    Args:
        word: as written; its case does not count.
        allowed: names to choose from.
        most: how many at most.
        alike: from 0 (anything) to 1 (the same word), as difflib counts.
    """
    return difflib.get_close_matches(word.lower(), list(allowed), n=most, cutoff=alike)


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """`, did you mean NAME?` for the nearest allowed name, empty when none is near: the middle of a message."""
    near = nearest(word, allowed)
    return f", did you mean {near[0]}?" if near else ""


def not_known(kind: str, name: str, near: Sequence[str], known: Iterable[str]) -> SpecError:
    """The error for a name of which there is none: with those that may be meant, or else all that are known."""
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"
    return SpecError(f"{kind}: {name!r} is not known; {hint}")


def shortened(text: str, most: int) -> str:
    """A text of at most `most` characters; one that is longer ends in `...`."""
    return text if len(text) <= most else text[: most - 3] + "..."


def printable(text: str, *, lines: bool = False) -> str:
    """A text from outside with everything that is not printable spelled out: it cannot break a line or a terminal.

    Args:
        text: of an engine's log, a name, a database, a job.
        lines: whether it may have several, and tabs.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c in "\n\t") else ascii(c)[1:-1] for c in text)
