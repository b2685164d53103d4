"""What an engine's command-line flag is, and how its value is spelled.

Decision: a flag carries the engine's long flag name in snake case (`max_num_batched_tokens`), so a person looks it up
in the engine's own documentation and we map nothing. A table of the known flags with kind and range turns a misspelt
or removed flag into one message before anything is launched, instead of one failed launch per trial.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from partitune.candidate import FlagValue
from partitune.errors import SpecError, did_you_mean


class FlagType(StrEnum):
    """How a flag takes its value."""

    SWITCH = "switch"  # --name / --no-name
    ON = "on"  # --name only; there is no way to say off
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"  # also JSON, and lists of anything else
    SIZES = "sizes"  # whole numbers from 1: `[1, 2]` or `1 2`


_SIZE = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)

#: What a value of each is in Python, and in words.
_VALUES: Mapping[FlagType, tuple[tuple[type, ...], str]] = {
    FlagType.SWITCH: ((bool,), "true or false"),
    FlagType.ON: ((bool,), "true or false"),
    FlagType.INTEGER: ((int,), "an integer"),
    FlagType.NUMBER: ((int, float), "a number"),
    FlagType.TEXT: ((str,), "text"),
    FlagType.SIZES: ((str, int), "a list of whole numbers of 1 or more"),
}


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `default` is None where the engine decides from hardware and model."""

    name: str  # snake case
    type: FlagType
    default: FlagValue | None = None
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()  # of a text; empty: any
    above_low: bool = False  # the lower end itself is not allowed
    below_high: bool = False  # the upper end itself is not allowed

    def fault(self, value: FlagValue) -> str:
        """What is wrong with `value` and what is allowed; empty when nothing is."""
        types, words = _VALUES[self.type]
        is_none = self.type is FlagType.SIZES and _sizes(value) is None
        if is_none or not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            return f"{value!r} is not {words}"
        if isinstance(value, str):
            if not self.choices or value in self.choices:
                return ""
            return f"{value!r} is not one of {', '.join(self.choices)}{did_you_mean(value, self.choices)}"
        at_an_end = (value == self.low and not self.above_low) or (value == self.high and not self.below_high)
        if at_an_end or self.low < value < self.high:
            return ""
        ends = []
        if self.low > -math.inf:
            ends.append(f"{'>' if self.above_low else '>='} {self.low:g}")
        if self.high < math.inf:
            ends.append(f"{'<' if self.below_high else '<='} {self.high:g}")
        return f"{value!r} is out of range, allowed is {' and '.join(ends) or words}"


def flag_table(*groups: Iterable[Flag]) -> dict[str, Flag]:
    """The flags of all `groups` by their names, for look-ups."""
    return {flag.name: flag for group in groups for flag in group}


def whole_number(values: Mapping[str, FlagValue], name: str, otherwise: int) -> int:
    """A flag's value where it is a whole number, and `otherwise` where it is unset or of another type."""
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def whole_numbers(values: Mapping[str, FlagValue], name: str) -> tuple[int, ...]:
    """A flag that takes a list, written `[1, 2]` or `1 2`; empty where it is unset.

    Raises:
        SpecError: not a list of whole numbers of 1 or more.
    """
    if not (value := values.get(name)):
        return ()
    if (sizes := _sizes(value)) is None:
        raise SpecError(f"{name}: {value!r} is not {_VALUES[FlagType.SIZES][1]}")
    return sizes


def _sizes(value: FlagValue) -> tuple[int, ...] | None:
    listed = str(value).strip("[] ").replace(",", " ").split()
    return tuple(map(int, listed)) if listed and all(map(_SIZE.fullmatch, listed)) else None


def mapping(value: FlagValue | None) -> Mapping[str, object]:
    """A flag that takes JSON; empty where it is unset or something else (then its own parser complains)."""
    try:
        parsed = json.loads(value) if isinstance(value, str) else {}
    except json.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def unknown_flag(name: str, known: Collection[str], engine: str) -> str:
    """Message for a name that is not in `known`, with the nearest that is."""
    plain = name.strip().lstrip("-").replace("-", "_")
    if plain != name and plain in known:
        return f"{name}: write it {plain}"
    if plain.startswith("no_") and plain[3:] in known:
        return f"{name}: write {plain[3:]}: false"
    return f"{name}: {engine} has no such flag{did_you_mean(plain, known)}"


def config_entries(values: Mapping[str, FlagValue], known: Mapping[str, Flag]) -> dict[str, FlagValue]:
    """Entries of the engine's config file: long options. A switch that is off becomes `no-name: true`.

    vLLM 0.32 and 0.33 drop `name: false` silently: `utils/argparse_utils.py` looks for `--no-name` in the parser of
    `vllm`, and the flag lives in that of `vllm serve`. A flag that only other releases have counts as a switch.
    """
    entries: dict[str, FlagValue] = {}
    for name, value in values.items():
        option = name.replace("_", "-")
        if value is not False:
            entries[option] = value
        elif name not in known or known[name].type is FlagType.SWITCH:
            entries[f"no-{option}"] = True
    return entries


def arguments(values: Mapping[str, FlagValue], known: Mapping[str, Flag]) -> tuple[str, ...]:
    """Command-line words of `values`, in their order. Switches become `--name` or `--no-name`."""
    words: list[str] = []
    for option, value in config_entries(values, known).items():
        if value is True:
            words.append(f"--{option}")
        elif str(value).startswith("-"):
            words.append(f"--{option}={value}")  # argparse would take the value for an option
        else:
            words += [f"--{option}", str(value)]
    return tuple(words)


def read_config(entries: Mapping[str, object], known: Mapping[str, Flag]) -> dict[str, FlagValue]:
    """The flags that the engine takes from a config file, dropping what it drops: the inverse of `config_entries`."""
    values: dict[str, FlagValue] = {}
    for option, value in entries.items():
        name = option.replace("-", "_")
        if value is False or not isinstance(value, (bool, int, float, str)):
            continue
        if name not in known and name.startswith("no_") and value is True:
            values[name[3:]] = False
        else:
            values[name] = value
    return values
