"""Requests read from a trace, one JSON object a line: in this project's words, Mooncake's or Bailian's.

Decision: a line is taken as it is or refused by its number, and what nothing here heeds is a doubt. Who continues whom
is said of lines before, so that the first lines of a trace are a trace. Bailian's `parent_chat_id` says of whom a
request is the next turn, not that its prompt repeats all of it (templates and tools cut conversations short), so it is
taken for `continues` where lengths and ids allow it.

Source: the README of Mooncake's `FAST25-release` (512 tokens a block, milliseconds) and of Bailian's anonymous usage
traces (16 tokens a block, seconds).
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from partitune.errors import SpecError, nearest
from partitune.simulation.content import spans
from partitune.simulation.hashed_blocks import prefixes
from partitune.simulation.request import Request, SharedPrefix


class _Spelling(NamedTuple):
    """How lines spell what they say."""

    keys: tuple[str, ...]  # arrival, prompt, output, and what else tells it from others
    unit: str  # of the arrival
    unit_s: float
    name: str = "id"
    parent: str = ""
    block_tokens: int = 0  # that one of the `hash_ids` stands for; 0: nobody says

    @property
    def heeded(self) -> tuple[str, ...]:
        return (*self.keys, self.name, "prefix", "continues", *(("hash_ids", self.parent) if self.block_tokens else ()))


_OURS = _Spelling(("timestamp_s", "prompt_tokens", "output_tokens"), "seconds", 1.0)
_MOONCAKE = _Spelling(("timestamp", "input_length", "output_length"), "milliseconds", 1e-3, block_tokens=512)
_BAILIAN = _Spelling((*_MOONCAKE.keys, "chat_id"), "seconds", 1.0, "chat_id", "parent_chat_id", 16)
_SPELLINGS = (_OURS, _MOONCAKE, _BAILIAN)
#: Keys of a trace that a doubt lists.
_NAMED = 8
#: Stands among the keys that are not heeded for a time that is finer than its unit.
_FRACTION = ""
_LATEST = 1e18  # of any unit


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trace says of its requests, and what it says that nothing here heeds."""

    requests: tuple[Request, ...]  # in the order of the file; the first to arrive does so at 0
    doubts: tuple[str, ...]


@dataclass(slots=True)
class _Line:
    """One line that was read."""

    place: str
    spelling: _Spelling
    request: Request
    blocks: list[int]
    parent: str | None  # that its prompt may begin with
    unheeded: list[str]


def read_trace(path: Path, most: int | None = None) -> Trace:
    """A JSON-lines trace, one object a line; blank lines are skipped.

    A line has `timestamp_s`, `prompt_tokens`, `output_tokens`, or as in the Mooncake traces `timestamp` (milliseconds),
    `input_length`, `output_length`, or as in Bailian's these and `chat_id`, where `timestamp` is in seconds. All lines
    of a trace are spelled alike. Further keys are optional:

    - `id`: a text or whole number; the number of the line where it is left out.
    - `prefix`: a list of `{group, tokens}`, each longer than the one before, or one such mapping: the first `tokens`
      of the prompt are those of every request that names the `group` behind the same beginning.
    - `continues`: `id` of a line before, with whose prompt and answer the prompt begins.
    - `hash_ids` of Mooncake and Bailian, one a block of 512 or 16 tokens, and Bailian's `parent_chat_id`.

    Any other key is a doubt.

    Args:
        path: of the file.
        most: only so many requests from its beginning; None: all.

    Raises:
        SpecError: the file cannot be read, or a line is not as described; names file, line and key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot read the trace: {error}") from None
    reading = _Reading()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            reading.add(line, f"{path}:{number}", str(number))
    if not reading.lines:
        raise SpecError(f"{path}: the trace has no requests; give one JSON object a line")
    lines = reading.lines[:most]
    requests = _with_blocks(lines)
    _check_texts(lines, requests)
    begin = min(request.arrival_s for request in requests)
    from_zero = (replace(request, arrival_s=request.arrival_s - begin) for request in requests)
    return Trace(tuple(from_zero), tuple(_doubts(path.name, lines, requests)))


@dataclass(slots=True)
class _Reading:
    """The lines so far."""

    lines: list[_Line] = field(default_factory=list)
    known: dict[str, _Line] = field(default_factory=dict)  # by id

    def add(self, line: str, place: str, number: str) -> None:
        """Take in one line. Raises SpecError."""
        try:
            row = json.loads(line)
        except ValueError as error:
            raise SpecError(f"{place}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise SpecError(f"{place}: must be a JSON object, not {type(row).__name__}")
        read = _line(row, place, number)
        request = read.request
        if read.spelling is not (first := self.lines[0].spelling if self.lines else read.spelling):
            raise SpecError(f"{place}: has {_names(read.spelling)}, lines before have {_names(first)}; allowed: one")
        if same := self.known.get(request.id):
            raise SpecError(f"{place}: id: {request.id} is that of {same.place}; allowed: every id once")
        if request.continues is not None:
            before = self.known.get(request.continues)
            if before is None or before.request.arrival_s > request.arrival_s:
                text = "is not the id of a line before" if before is None else f"arrives later ({before.place})"
                raise SpecError(f"{place}: continues: {request.continues} {text}; allowed: a request sent before it")
        elif (parent := self.known.get(read.parent or "")) and _begins_with(read, parent):
            read.request = replace(request, continues=parent.request.id)
        self.lines.append(read)
        self.known[request.id] = read


def _begins_with(line: _Line, parent: _Line) -> bool:
    """Whether its prompt can hold the prompt and answer of `parent`, by what the trace says of both."""
    one, before = line.request, parent.request
    full = before.prompt_tokens // parent.spelling.block_tokens
    fits = before.prompt_tokens + before.output_tokens <= one.prompt_tokens and before.arrival_s <= one.arrival_s
    return fits and line.blocks[:full] == parent.blocks[:full]


def _names(spelling: _Spelling) -> str:
    return ", ".join(spelling.keys)


def _line(row: dict[str, Any], place: str, number: str) -> _Line:
    spelling = max(_SPELLINGS, key=lambda spelling: len(row.keys() & set(spelling.keys)))
    for key in spelling.keys:
        if key not in row:
            near = nearest(key, row)
            hint = f"; did you mean it by {near[0]!r}?" if near else ""
            raise SpecError(f"{place}: {key}: missing; a line needs {_names(spelling)}{hint}")
    at, *lengths = spelling.keys[:3]
    if type(row[at]) not in (int, float) or not abs(row[at]) < _LATEST:
        raise SpecError(f"{place}: {at}: {row[at]!r} is not a number of {spelling.unit}")
    prompt, output = (_whole(row[key], place, key) for key in lengths)
    name = _id(row.get(spelling.name), place, spelling.name) or number
    continues = _id(row.get("continues"), place, "continues")
    parent = _id(row.get(spelling.parent), place, spelling.parent)
    blocks = _blocks(row.get("hash_ids"), place, prompt, spelling)
    shared = _prefix(row.get("prefix"), place)
    if shared and blocks:
        raise SpecError(f"{place}: prefix: found beside hash_ids, which say the same; allowed: one of the two")
    request = Request(name, row[at] * spelling.unit_s, prompt, output, prefix=shared, continues=continues)
    unheeded = [key for key in row if key not in spelling.heeded]
    if spelling is _MOONCAKE and isinstance(row[at], float) and not row[at].is_integer():
        unheeded.append(_FRACTION)
    return _Line(place, spelling, request, blocks, parent, unheeded)


def _whole(value: object, place: str, key: str) -> int:
    if type(value) is not int or value < 1:
        raise SpecError(f"{place}: {key}: {value!r} is not a whole number of 1 or more")
    return value


def _id(value: object, place: str, key: str) -> str | None:
    if value is None:
        return None
    if type(value) not in (int, str) or value == "":
        raise SpecError(f"{place}: {key}: {value!r} is not a text or a whole number")
    return str(value)


def _blocks(ids: object, place: str, prompt: int, spelling: _Spelling) -> list[int]:
    size = spelling.block_tokens
    if ids is None or not size:
        return []
    if not isinstance(ids, list) or not {*map(type, ids)} <= {int}:
        raise SpecError(f"{place}: hash_ids: must be a list of whole numbers")
    if len(ids) > (most := -(-prompt // size)):
        raise SpecError(
            f"{place}: hash_ids: {len(ids)} for a prompt of {prompt} tokens; allowed: at most {most}, one a block of "
            f"{size} tokens ({_MOONCAKE.block_tokens} in a trace like Mooncake's, {_BAILIAN.block_tokens} in one with "
            "chat_id like Bailian's)"
        )
    return ids


def _prefix(value: object, place: str) -> tuple[SharedPrefix, ...]:
    if value is None:
        return ()
    found = []
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, Mapping) or each.keys() != {"group", "tokens"}:
            raise SpecError(f"{place}: prefix: found {each!r}; allowed: a list of mappings with group and tokens")
        group = _id(each["group"], place, "prefix: group")
        if group is None:
            raise SpecError(f"{place}: prefix: group: found null; allowed: a text or a whole number")
        found.append(SharedPrefix(group, _whole(each["tokens"], place, "prefix: tokens")))
    return tuple(found)


def _with_blocks(lines: Sequence[_Line]) -> list[Request]:
    """The requests, with what `hash_ids` say of the beginnings of their prompts."""
    ends = {line.request.id: line.request.prompt_tokens + line.request.output_tokens for line in lines}
    requests = [line.request for line in lines]
    size = lines[0].spelling.block_tokens
    made = prefixes([line.blocks for line in lines], [request.prompt_tokens for request in requests], size)
    return [
        replace(request, prefix=tuple(each for each in own if each.tokens > ends.get(request.continues or "", 0)))
        if own
        else request
        for request, own in zip(requests, made, strict=True)
    ]


def _check_texts(lines: Sequence[_Line], requests: Sequence[Request]) -> None:
    """Raise SpecError for the first line whose text cannot be."""
    try:
        spans(requests)
    except SpecError:
        at = bisect_left(range(len(lines)), True, key=lambda last: _fault(requests[: last + 1]) is not None)
        raise SpecError(f"{lines[at].place}: {_fault(requests[: at + 1])}") from None


def _fault(requests: Sequence[Request]) -> SpecError | None:
    try:
        spans(requests)
    except SpecError as error:
        return error
    return None


def _doubts(trace: str, lines: Sequence[_Line], requests: Sequence[Request]) -> Iterator[str]:
    """What a person should know beside every figure under this trace."""
    unheeded = Counter(key for line in lines for key in line.unheeded)
    if unheeded.pop(_FRACTION, 0):
        yield (
            f"{trace}: timestamp has fractions, and is read as milliseconds; a trace in seconds says timestamp_s, or "
            "chat_id beside it like Bailian's"
        )
    size = lines[0].spelling.block_tokens
    if any(line.blocks for line in lines) and not any(line.parent for line in lines):
        yield f"{trace}: hash_ids are of prompts: what a prompt repeats of an earlier answer is computed anew here"
    if short := sum(len(line.blocks) < line.request.prompt_tokens // size for line in lines if line.blocks):
        yield f"{trace}: hash_ids of {short} requests end before their prompts, of which the rest is taken as new"
    pairs = zip(lines, requests, strict=True)
    apart = sum(line.parent not in (None, "-1") and request.continues is None for line, request in pairs)
    if apart:
        yield (
            f"{trace}: {apart} requests name a parent_chat_id whose prompt and answer are not what their prompts begin "
            "with, or which is not there: what they share is what their hash_ids say"
        )
    if others := list(unheeded):
        yield f"{trace}: not heeded of its lines: {', '.join(others[:_NAMED])}{', …' * (len(others) > _NAMED)}"
