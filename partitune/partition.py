"""The partition: layers per stage, read and written more strictly than any engine does.

Decision: an engine finds a bad vector minutes after it was launched, or never. vLLM 0.32 `distributed/utils.py` runs
`int()` on each comma piece and checks only count and sum, so `-1,49`, `1_0,38` and ` 10, 38` reach the workers; SGLang
0.5.23 does the same. We accept one spelling, ASCII digits and commas, because it is also the only one that docker,
systemd, kubectl and a shell all read alike. One message names everything that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise

from partitune.errors import SpecError

_DIGITS_AND_COMMAS = re.compile(r"[0-9]+(,[0-9]+)*\Z")
_NUMERALS = 4  # no model has 10,000 layers; also keeps int() away from absurd text
_SHOWN = 60  # characters of the input that a message repeats


class Partition(tuple[int, ...]):
    """Layers per stage, in order: a tuple that knows which layers each stage owns. Not checked against any model."""

    __slots__ = ()

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """First layer of every stage, and the layer after its last."""
        return tuple(pairwise(accumulate(self, initial=0)))

    @property
    def text(self) -> str:
        """The spelling that every engine and every env-file reader accepts: `11,11,12`."""
        return ",".join(map(str, self))


def parse_partition(
    value: str | Sequence[object], *, stages: int | None = None, layers: int | None = None, source: str = "--partition"
) -> Partition:
    """Layers per stage from `11,11,12,…` or from a list of integers (YAML).

    Args:
        value: text of ASCII digits and commas, or a sequence of integers.
        stages: required number of entries; None: any.
        layers: required sum; None: any.
        source: place that the message names (`file:line: key`, flag, variable).

    Raises:
        SpecError: everything that is wrong with the vector, in one message.
    """
    entries = _from_text(value, source) if isinstance(value, str) else _from_list(value, source)
    faults = []
    empty = [stage for stage, count in enumerate(entries) if count < 1]
    if empty:
        shown = ", ".join(f"stage {stage} has {entries[stage]}" for stage in empty[:4])
        faults.append(f"every stage needs at least 1 layer, {shown}")
    if stages is not None and len(entries) != stages:
        faults.append(f"has {_counted(len(entries), 'entry', 'entries')}, the pipeline has {_counted(stages, 'stage')}")
    if layers is not None and sum(entries) != layers:
        off = sum(entries) - layers
        side = "too many" if off > 0 else "too few"
        faults.append(f"sums to {sum(entries)}, the model has {_counted(layers, 'layer')}: {abs(off)} {side}")
    if faults:
        raise SpecError(f"{source}: {_quoted(entries.text)}: {'; '.join(faults)}")
    return entries


def _from_text(text: str, source: str) -> Partition:
    if not _DIGITS_AND_COMMAS.match(text):
        allowed = "digits 0-9 separated by single commas, e.g. 11,11,12,12"
        raise SpecError(f"{source}: {_quoted(text)}: {_odd_text(text)}; allowed are {allowed}")
    pieces = text.split(",")
    for stage, piece in enumerate(pieces):
        if len(piece) > _NUMERALS:
            flaw = f"stage {stage} has a number of {len(piece)} digits"
            raise SpecError(f"{source}: {_quoted(text)}: {flaw}; allowed are 1 to {'9' * _NUMERALS} layers")
    return Partition(int(piece) for piece in pieces)


def _from_list(values: Sequence[object], source: str) -> Partition:
    allowed = "allowed is one integer per stage, e.g. [11, 11, 12, 12]"
    if not values:
        raise SpecError(f"{source}: []: the list is empty; {allowed}")
    entries = []
    for stage, entry in enumerate(values):
        if isinstance(entry, bool) or not isinstance(entry, int):
            raise SpecError(f"{source}: stage {stage} is {entry!r} ({type(entry).__name__}); {allowed}")
        if entry >= 10**_NUMERALS:
            raise SpecError(f"{source}: stage {stage} is {entry}; allowed are 1 to {'9' * _NUMERALS} layers")
        entries.append(entry)
    return Partition(entries)


#: First match explains the text; order is from the most to the least specific.
_ODDITIES = (
    (re.compile(r"\A\s*\Z"), "is empty (leave it out for the engine's default)"),
    (re.compile("[\"'`]"), "has quotes"),
    (re.compile("#"), "has a comment"),
    (re.compile(r"[，、；]"), "has a full-width separator"),
    (re.compile(r"[0-9]_[0-9]"), "has an underscore inside a number"),
    (re.compile(r"\+"), "has a plus sign"),
    (re.compile("-"), "has a negative number"),
    (re.compile(r"[\[\](){}]"), "has brackets"),
    (re.compile(r"\A[0-9, ]*,\s*\Z"), "ends with a comma"),
    (re.compile(r"\A\s*,"), "starts with a comma"),
    (re.compile(r",\s*,"), "has two commas with nothing between"),
    (re.compile(r"\s"), "has white space"),
)


def _odd_text(text: str) -> str:
    for pattern, name in _ODDITIES:
        if pattern.search(text):
            return name
    odd = next((char for char in text if char not in "0123456789,"), "")
    return f"has the character {odd!r}"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _counted(number: int, singular: str, plural: str | None = None) -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
