"""YAML text to plain values, and the line of every key.

Decision: a configuration file may say only what every YAML reader agrees on. A plain scalar that YAML 1.1 (PyYAML) and
YAML 1.2 read differently (`yes`, `010`, `1_000`, `1e3`, `12:30`, a date) is an error that names the ways out, and so
are tags, duplicate keys and a second document. Values are built from the parser's events, not by a constructor: the
nesting, the number of nodes and what aliases expand to are bounded before anything grows, and each key's line is kept,
because messages long after reading (a vector with a wrong sum) still have to point at it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import yaml
from yaml.resolver import Resolver

from partitune.spec.catalog import MAX_YAML_BYTES
from partitune.spec.yaml.faults import Fault, KeyPath, complaint, describe, shown, text_fault

#: A value as JSON knows it; integer keys are stage numbers.
Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str | int, Plain] | None"

MAX_DEPTH = 20  # the deepest legal value stands at 5
MAX_NODES = 20_000  # values in a file, aliases counted as often as they are used

_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,300})", re.ASCII)
_YAML_1_2_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+", re.ASCII)
_CONSTANTS: Mapping[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_YAML_1_1 = Resolver()


@dataclass(frozen=True, slots=True)
class Document:
    """A read file: values, lines, and the faults met so far."""

    source: str  # what messages call the file; `command line` where there is none
    value: dict[str | int, Plain]
    lines: Mapping[KeyPath, int]
    faults: tuple[Fault, ...] = ()


def read_yaml(content: bytes, source: str) -> Document:
    """Parse one file.

    Raises:
        SpecError: the file is not one readable YAML mapping; every fault up to there is in the message. Faults that
            leave the rest readable are in `Document.faults` instead, to be reported with those of the schema.
    """
    builder = _Builder()
    try:
        value = builder.document(_decode(content))
    except _UnreadableError as error:
        raise complaint(source, {}, [*builder.faults, Fault((), error.text, error.line)]) from error
    return Document(source, value, builder.lines, tuple(builder.faults))


def from_memory(value: object, source: str) -> Document:
    """The same for values that never were YAML: a copy that holds only what JSON knows, within the same bounds."""
    faults: list[Fault] = []
    plain = _copy(value, (), faults)
    if not isinstance(plain, dict):
        raise complaint(source, {}, [*faults, Fault((), f"found {describe(value)}; allowed: a mapping of keys")])
    return Document(source, plain, {}, tuple(faults))


def _copy(value: object, path: KeyPath, faults: list[Fault]) -> Plain:
    if len(path) > MAX_DEPTH:  # also ends a value that contains itself
        faults.append(Fault(path[:1], f"nested deeper than {MAX_DEPTH} levels"))
        return None
    if isinstance(value, Mapping):
        return {key: _copy(item, (*path, key), faults) for key, item in value.items() if _fit_key(key, path, faults)}
    if isinstance(value, list | tuple):
        return [_copy(item, (*path, index), faults) for index, item in enumerate(value)]
    if isinstance(value, str) and (text := text_fault(value)):
        faults.append(Fault(path, text))
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if value - value != 0:
            faults.append(Fault(path, f"found {describe(value)}; allowed: a finite number"))
        return value
    faults.append(Fault(path, f"found {describe(value)}; allowed: text, a number, true, false, a list or a mapping"))
    return None


def _fit_key(key: object, path: KeyPath, faults: list[Fault]) -> bool:
    if isinstance(key, int | str) and not isinstance(key, bool):
        return True
    faults.append(Fault(path, f"found {describe(key)} as a key; allowed: text"))
    return False


class _UnreadableError(Exception):
    """The rest of the file cannot be read."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.text = text
        self.line = line


def _decode(content: bytes) -> str:
    if len(content) > MAX_YAML_BYTES:
        raise _UnreadableError(f"larger than {MAX_YAML_BYTES >> 20} MiB; allowed: a hand-written YAML file", 1)
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _UnreadableError("found UTF-16; allowed: UTF-8 text (save the file as UTF-8)", 1)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _UnreadableError(f"found the byte 0x{content[error.start]:02x}; allowed: UTF-8 text", line) from error


@dataclass(slots=True)
class _Builder:
    """Turns parser events into values, noting lines and faults on the way."""

    lines: dict[KeyPath, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    anchors: dict[str, tuple[Plain, int]] = field(default_factory=dict)  # value and the nodes it expands to
    nodes: int = 0

    def document(self, text: str) -> dict[str | int, Plain]:
        events = self._events(text)
        next(events)  # the stream's start
        if isinstance(next(events), yaml.StreamEndEvent):
            raise _UnreadableError("the file is empty; allowed: a mapping of keys", 1)
        first = next(events)
        self.lines[()] = _line(first)
        value = self._value(first, events, ())
        next(events)  # the document's end
        if not isinstance(event := next(events), yaml.StreamEndEvent):
            raise _UnreadableError("a second document begins; allowed: one document a file", _line(event))
        if not isinstance(value, dict):
            content = "the file is empty" if value is None else f"the file holds {describe(value)}"
            raise _UnreadableError(f"{content}; allowed: a mapping of keys (`key: value` lines)", self.lines[()])
        return value

    def _events(self, text: str) -> Iterator[yaml.Event]:
        try:
            yield from yaml.parse(text, Loader=yaml.SafeLoader)
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise _UnreadableError(f"found the character {chr(error.character)!a}; allowed: text", line) from error
        except yaml.MarkedYAMLError as error:
            raise _syntax(error, text) from error
        except (ValueError, OverflowError) as error:  # escapes such as "\UFFFFFFFF" reach chr() unchecked in PyYAML
            raise _UnreadableError(f"not readable as YAML: {error}", self.lines.get((), 1)) from error

    def _value(self, event: yaml.Event, events: Iterator[yaml.Event], path: KeyPath) -> Plain:
        before = self.nodes
        self._count(1, event)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise _UnreadableError(f"the alias *{event.anchor} names no anchor above it", _line(event))
            value, size = self.anchors[event.anchor]
            self._count(size, event)
            return value
        if (tag := getattr(event, "tag", None)) is not None:
            self.faults.append(Fault(path, f"found the tag {tag!r}; allowed: values without tags", _line(event)))
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, path)
        elif len(path) >= MAX_DEPTH:
            raise _UnreadableError(f"nested deeper than {MAX_DEPTH} levels", _line(event))
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._list(events, path)
        else:
            value = self._mapping(events, path)
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            self.anchors[event.anchor] = (value, self.nodes - before)
        return value

    def _count(self, nodes: int, event: yaml.Event) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise _UnreadableError(f"more than {MAX_NODES} values, aliases expanded", _line(event))

    def _list(self, events: Iterator[yaml.Event], path: KeyPath) -> list[Plain]:
        items: list[Plain] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            here = (*path, len(items))
            self.lines[here] = _line(event)
            items.append(self._value(event, events, here))
        return items

    def _mapping(self, events: Iterator[yaml.Event], path: KeyPath) -> dict[str | int, Plain]:
        items: dict[str | int, Plain] = {}
        first_lines: dict[str, int] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            line = _line(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise _UnreadableError("a list, mapping or alias as a key; allowed: text", line)
            key = int(event.value) if event.implicit[0] and _INT.fullmatch(event.value) else event.value
            if text := text_fault(str(key)):
                self.faults.append(Fault(path, text, line))
            if (first := first_lines.get(str(key))) is not None:
                self.faults.append(Fault((*path, key), f"duplicate key; first given in line {first}", line))
                self._value(next(events), events, (*path, f"{key} (again)"))
                continue
            first_lines[str(key)] = line
            self.lines[(*path, key)] = line
            items[key] = self._value(next(events), events, (*path, key))
        return items

    def _scalar(self, event: yaml.ScalarEvent, path: KeyPath) -> Plain:
        text = event.value
        if not event.implicit[0]:  # quoted or a block: always text
            if fault := text_fault(text):
                self.faults.append(Fault(path, fault, _line(event)))
            return text
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if _INT.fullmatch(text):
            return int(text)
        kind = _yaml_1_1(text)
        if _YAML_1_2_NUMBER.fullmatch(text) and kind == "float":
            return float(text)
        if kind != "str" or _YAML_1_2_NUMBER.fullmatch(text):
            self.faults.append(Fault(path, _two_readings(text, kind), _line(event)))
        return text


def _syntax(error: yaml.MarkedYAMLError, text: str) -> _UnreadableError:
    mark = error.problem_mark or error.context_mark
    line = 1 if mark is None else mark.line + 1
    row = next(iter(text.splitlines()[line - 1 :]), "")
    if "\t" in row[: len(row) - len(row.lstrip())]:
        return _UnreadableError("a tab in the indentation; allowed: spaces", line)
    begun = "" if error.context_mark is None else f" (begun in line {error.context_mark.line + 1})"
    return _UnreadableError(f"not readable as YAML: {error.problem or error.context}{begun}", line)


def _yaml_1_1(text: str) -> str:
    """The type that PyYAML gives a plain scalar: bool, float, int, merge, null, str, timestamp, value."""
    tag: str = _YAML_1_1.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return tag.rpartition(":")[2]


def _two_readings(text: str, kind: str) -> str:
    if kind == "bool":
        return f"found {text}, a boolean to YAML 1.1 and text to YAML 1.2; allowed: true or false, or quotes around it"
    if text.lower().lstrip("+-") in {".inf", ".nan"}:
        return f"found {text}; allowed: a finite number"
    return (
        f"found {shown(text)}, which YAML 1.1 and YAML 1.2 read differently; "
        "allowed: a plain decimal number such as 1000 or 0.5, or quotes around a text"
    )


def _line(event: yaml.Event) -> int:
    return 0 if event.start_mark is None else event.start_mark.line + 1
