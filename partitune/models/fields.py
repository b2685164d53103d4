"""Reading numbers out of a config.json that nobody has checked.

Decision: a config.json is input written by a person (or by a tool we do not know), so no value is used before its type
and range are known, and every complaint names file, key and what is allowed. Ranges are generous; they exist to catch
strings, booleans, NaN, negative and absurd numbers, not to judge a model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from reprlib import Repr
from typing import Final

from partitune.errors import SpecError

LAYERS_MAX: Final = 4_096
WIDTH_MAX: Final = 2**24  # of any dimension: hidden, intermediate, vocabulary, context
_PLACE_MAX: Final = 200
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60


class Fields:
    """One JSON object of a config, with the file and the key path it came from.

    Attributes:
        source: file, for messages.
        data: the object itself.
    """

    __slots__ = ("data", "path", "source")

    def __init__(self, data: Mapping[str, object], source: str, path: str = "") -> None:
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

    def has(self, *names: str) -> bool:
        """True when any of the keys is present and not null."""
        return any(self.data.get(name) is not None for name in names)

    def _present(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if self.data.get(name) is not None), None)

    def integer_or_none(self, *names: str, low: int = 1, high: int = WIDTH_MAX) -> int | None:
        """The first present key as a whole number in [low, high]; None when all are missing or null.

        Raises:
            SpecError: the value is no whole number or out of range.
        """
        name = self._present(names)
        if name is None:
            return None
        value = self.data[name]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(name, value, f"a whole number from {low} to {high}")
        return value

    def integer(self, *names: str, default: int | None = None, low: int = 1, high: int = WIDTH_MAX) -> int:
        """Like integer_or_none, with a default.

        Raises:
            SpecError: missing without a default, ill-typed or out of range.
        """
        value = self.integer_or_none(*names, low=low, high=high)
        if value is not None:
            return value
        if default is not None:
            return default
        also = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        raise self.error(names[0], f"missing{also}; a whole number from {low} to {high} is needed")

    def flag(self, name: str, *, default: bool) -> bool:
        """The value of a key that is true or false; `default` where it is missing or null.

        Raises:
            SpecError: anything else; 0 and 1 are no booleans.
        """
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str = "") -> str:
        """The value of a key that is a string; `default` where it is missing or null.

        Raises:
            SpecError: the value is no string.
        """
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, value, "a string")
        return value

    def sequence(self, name: str) -> list[object] | None:
        """A JSON list, None when missing."""
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.wrong(name, value, "a list")
        return value

    def per_layer(self, name: str, layers: int, allowed: Collection[object]) -> list[object] | None:
        """A list with one entry a layer, each one of `allowed`; None when missing. Longer lists are cut.

        Checkpoints with draft modules list those behind the layers (DeepSeek-V4, Step-3.7), hence the cut.
        """
        values = self.sequence(name)
        if values is None:
            return None
        if len(values) < layers:
            raise self.error(name, f"{len(values)} entries for {layers} layers; one entry a layer is needed")
        for index, value in enumerate(values[:layers]):
            # bool is an int in Python: True must not pass for 1.
            if isinstance(value, bool) or not isinstance(value, (str, int)) or value not in allowed:
                options = ", ".join(repr(option) for option in sorted(allowed, key=str))
                raise self.wrong(f"{name}[{index}]", value, options)
        return values[:layers]

    def integers(self, name: str, *, low: int, high: int) -> list[int]:
        """A list of whole numbers in [low, high]; empty when missing."""
        numbers: list[int] = []
        for index, value in enumerate(self.sequence(name) or []):
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise self.wrong(f"{name}[{index}]", value, f"a whole number from {low} to {high}")
            numbers.append(value)
        return numbers

    def section(self, name: str) -> Fields | None:
        """A JSON object, None when missing."""
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "an object")
        return Fields(value, self.source, f"{self.path}{name}.")

    def layers(self) -> int:
        """How many layers the text model has, by `num_hidden_layers`; at most `LAYERS_MAX`."""
        return self.integer("num_hidden_layers", high=LAYERS_MAX)
