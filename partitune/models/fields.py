"""Reading numbers out of a config.json that nobody has checked.

Decision: a config.json is input written by a person (or by a tool we do not know), so no value is used before its type
and range are known, and every complaint names file, key and what is allowed. Ranges are generous; they exist to catch
strings, booleans, NaN, negative and absurd numbers, not to judge a model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from reprlib import Repr
from typing import TYPE_CHECKING, Any, Final, TypeVar

from partitune.errors import SpecError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LAYERS_MAX: Final = 4_096
WIDTH_MAX: Final = 2**24  # of any dimension: hidden, intermediate, vocabulary, context
_PLACE_MAX: Final = 200
_Value = TypeVar("_Value")
_Shape = TypeVar("_Shape", bound="DataclassInstance")
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60


class Fields:
    """One JSON object of a config, with the file and the key path it came from.

    Attributes:
        source: file, for messages.
        data: the object itself.
        asked: keys that were looked for, present or not.
    """

    __slots__ = ("asked", "data", "path", "source")

    def __init__(self, data: Mapping[str, object], source: str, path: str = "") -> None:
        self.asked: set[str] = set()
        self.data = data
        self.source = source
        self.path = path

    def error(self, key: str, problem: str) -> SpecError:
        """A SpecError that names file and key."""
        where = f"{self.path}{key}"
        where = where if len(where) <= _PLACE_MAX else f"{where[:_PLACE_MAX]}..."  # keys are input too
        return SpecError(f"{self.source}: {where}: {problem}")

    def wrong(self, key: str, value: object, allowed: str) -> SpecError:
        """A SpecError that names file, key, the value (shortened) and what is allowed."""
        return self.error(key, f"{_SHORT.repr(value)} given, allowed is {allowed}")

    def _present(self, names: tuple[str, ...]) -> str | None:
        self.asked.update(names)
        return next((name for name in names if self.data.get(name) is not None), None)

    def has(self, *names: str) -> bool:
        """True when any of the keys is present and not null."""
        return self._present(names) is not None

    def _whole(self, key: str, value: object, low: int, high: int) -> int:
        # bool is an int in Python: True must not pass for 1.
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(key, value, f"a whole number from {low} to {high}")
        return value

    def integer_or_none(self, *names: str, low: int = 1, high: int = WIDTH_MAX) -> int | None:
        """The first present key as a whole number in [low, high]; None when all are missing or null.

        Raises:
            SpecError: the value is no whole number or out of range.
        """
        name = self._present(names)
        return None if name is None else self._whole(name, self.data[name], low, high)

    def integer(self, *names: str, default: int | None = None, low: int = 1, high: int = WIDTH_MAX) -> int:
        """Like integer_or_none, with a default.

        Raises:
            SpecError: missing without a default, ill-typed or out of range.
        """
        value = self.integer_or_none(*names, low=low, high=high)
        if value is None:
            value = default
        if value is None:
            also = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
            raise self.error(names[0], f"missing{also}; a whole number from {low} to {high} is needed")
        return value

    def _typed(self, name: str, kind: type[_Value], allowed: str) -> _Value | None:
        self.asked.add(name)
        value = self.data.get(name)
        if value is None or isinstance(value, kind):
            return value
        raise self.wrong(name, value, allowed)

    def number_or_none(self, name: str, *, low: float, high: float) -> float | None:
        """The value of a key that is a number in [low, high]; None where it is missing or null.

        Raises:
            SpecError: no number, or out of range.
        """
        self.asked.add(name)
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.wrong(name, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def unread(self) -> list[str]:
        """Keys that say something (are not null, false, 0 or empty) and that nobody has asked for, sorted."""
        return sorted(key for key, value in self.data.items() if value and key not in self.asked)

    def flag(self, name: str, *, default: bool) -> bool:
        """The value of a key that is true or false; `default` where it is missing or null.

        Raises:
            SpecError: anything else; 0 and 1 are no booleans.
        """
        value = self._typed(name, bool, "true or false")
        return default if value is None else value

    def text(self, name: str, default: str = "") -> str:
        """The value of a key that is a string; `default` where it is missing or null.

        Raises:
            SpecError: the value is no string.
        """
        value = self._typed(name, str, "a string")
        return default if value is None else value

    def sequence(self, name: str) -> list[object] | None:
        """A JSON list, None when missing.

        Raises:
            SpecError: the value is no list.
        """
        return self._typed(name, list, "a list")

    def per_layer(self, name: str, layers: int, allowed: Collection[object]) -> list[object] | None:
        """A list with one entry a layer, each one of `allowed`; None when missing. Longer lists are cut.

        Checkpoints with draft modules list those behind the layers (DeepSeek-V4, Step-3.7), hence the cut.

        Raises:
            SpecError: too few entries, or one that is not allowed.
        """
        values = self.sequence(name)
        if values is None:
            return None
        if len(values) < layers:
            raise self.error(name, f"{len(values)} entries for {layers} layers; one entry a layer is needed")
        for index, value in enumerate(values[:layers]):
            if isinstance(value, bool) or not isinstance(value, (str, int)) or value not in allowed:
                options = ", ".join(repr(option) for option in sorted(allowed, key=str))
                raise self.wrong(f"{name}[{index}]", value, options)
        return values[:layers]

    def integers(self, name: str, *, low: int, high: int) -> list[int]:
        """A list of whole numbers in [low, high]; empty when missing.

        Raises:
            SpecError: the value is no list, or an entry no whole number or out of range.
        """
        values = self.sequence(name) or []
        return [self._whole(f"{name}[{index}]", value, low, high) for index, value in enumerate(values)]

    def section(self, name: str) -> Fields | None:
        """A JSON object, None when missing.

        Raises:
            SpecError: the value is no object.
        """
        value = self._typed(name, dict, "an object")
        return None if value is None else Fields(value, self.source, f"{self.path}{name}.")

    def layers(self) -> int:
        """How many layers the text model has, by `num_hidden_layers`; at most `LAYERS_MAX`."""
        return self.integer("num_hidden_layers", high=LAYERS_MAX)

    def shape(self, kind: type[_Shape], **given: int) -> _Shape:
        """A dataclass whose fields say how they are read, as `heads: int = read_number("num_heads")`.

        Args:
            kind: the dataclass.
            given: values of its other fields.

        Raises:
            SpecError: a field's value is missing, ill-typed or out of range.
        """
        read = {field.name: field.metadata["read"](self) for field in dataclasses.fields(kind) if field.metadata}
        return kind(**read, **given)


def read_by(read: Callable[[Fields], object]) -> Any:
    """A dataclass field whose value `read` takes from a config."""
    return dataclasses.field(metadata={"read": read})


def read_number(*names: str, **limits: int) -> Any:
    """A dataclass field read by `Fields.integer`."""
    return read_by(lambda fields: fields.integer(*names, **limits))


def read_optional(*names: str, **limits: int) -> Any:
    """A dataclass field read by `Fields.integer_or_none`."""
    return read_by(lambda fields: fields.integer_or_none(*names, **limits))


def read_flag(name: str, *, default: bool) -> Any:
    """A dataclass field read by `Fields.flag`."""
    return read_by(lambda fields: fields.flag(name, default=default))
