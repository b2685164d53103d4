"""What is wrong in a file, and how it is said.

Decision: a message is one line a fault, `file:line: key: what was found; what is allowed`, in the order of the file, so
that an editor can jump to it and nobody has to run twice to learn of the second fault. What was found is quoted short
and printable: a file may hold anything, a terminal must not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from partitune.errors import SpecError, printable, shortened

#: Keys and list positions from the top of the file.
KeyPath: TypeAlias = tuple[str | int, ...]

MAX_FAULTS = 100  # shown at once; more come from a file that is not a configuration at all


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a file: where, and `what was found; what is allowed`."""

    path: KeyPath
    text: str
    line: int | None = None  # where the path's own line does not do (a duplicate key, a syntax error)


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """The line of `path` or of its nearest known parent; 0 where there are no lines."""
    return next((lines[path[:length]] for length in range(len(path), -1, -1) if path[:length] in lines), 0)


def spell(path: KeyPath) -> str:
    """A key path as messages write it: `seeds[0].knobs.max_num_seqs`."""
    words = "".join(f"[{part}]" if isinstance(part, int) else f".{shown(part)}" for part in path)
    return words.removeprefix(".")


def complaint(source: str, lines: Mapping[KeyPath, int], faults: Iterable[Fault]) -> SpecError:
    """All faults of a file as one error, in the order of its lines."""
    rows = []
    for fault in faults:
        line = line_of(lines, fault.path) if fault.line is None else fault.line
        where = f"{source}:{line}" if line else source
        rows.append((line, printable(": ".join(part for part in (where, spell(fault.path), fault.text) if part))))
    rows.sort(key=lambda row: row[0])
    texts = list(dict.fromkeys(text for _, text in rows))
    more = [f"{source}: and {len(texts) - MAX_FAULTS} more"] if len(texts) > MAX_FAULTS else []
    return SpecError("\n".join(texts[:MAX_FAULTS] + more))


def describe(value: object) -> str:
    """A value as a message names what it found; never longer than a line, never with raw control characters."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() if abs(value) >= 10**20:  # Python refuses to print the very long ones
            return "a number beyond all bounds"
        case int() | float():
            return f"the number {value!r}"
        case str():
            return f"the text {shown(value)!r}"
        case list() | tuple():
            return f"a list of {len(value)}" if value else "an empty list"
        case dict() if value:
            return f"a mapping with {', '.join(shown(str(key)) for key in list(value)[:8])}"
        case dict():
            return "an empty mapping"
    return f"a {type(value).__name__}"


def shown(text: str) -> str:
    """A text cut to 60 characters, printable."""
    return shortened(printable(text[:61]), 60)


def text_fault(text: str) -> str | None:
    """What makes a text unfit for a file, a terminal and a database; None when it is fit."""
    bad = next(
        (c for c in text if (ord(c) < 32 and c not in "\n\t") or 0xD800 <= ord(c) <= 0xDFFF or ord(c) == 127), None
    )
    return None if bad is None else f"found a text with the character {bad!a}; allowed: printable text"
