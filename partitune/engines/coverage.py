"""What the simulator makes of an engine's flags: heeds them, leaves them out, or has nothing to leave out.

Decision: every flag of an engine stands in one of three lists, alike ones together with one reason, and a test finds
the flag that is in none. A flag that was set, changes bytes or times in the engine and no figure here, is named beside
every figure; so is one that nobody here knows, because silence would say that it does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from partitune.candidate import FlagValue
from partitune.engines.flags import Flag

#: What a flag is set to where it asks for nothing.
_OFF = (False, "auto", "none", "null", "default", "", "{}")
#: Variables that say where something lies, how to reach it or what to log, by whole words: a LOG is no LOGITS.
_PLACES = re.compile(
    r"(?:^|_)(?:(?:LOG|LOGS|LOGGING|DEBUG|TRACE|HOME|PATH|ROOT|DIR|HOST|PORT|ADDR|IFNAME|ENDPOINT|VISIBLE_DEVICES|"
    r"DEVICE_ORDER|OFFLINE|TELEMETRY|USAGE|TIMEOUT|WORKER_MULTIPROC|PLUGINS)(?:_|$)|(?:TOKEN|KEY|(?<!KV_)CACHE)$)"
)
#: Why the flags of speculative decoding change nothing here: how much is accepted hangs on the text.
DRAFTING = "drafting is launched and not simulated: no time of it, nor the tokens that are accepted"
_VARIABLE = "partitune does not know whether this variable changes times or bytes"


class Effect(StrEnum):
    """What becomes of a flag here."""

    MODELLED = "modelled"
    NOT_MODELLED = "not modelled"
    NONE = "no effect"


@dataclass(frozen=True, slots=True)
class Covered:
    """What becomes of one flag, and why; modelled ones need no reason."""

    effect: Effect
    why: str = ""


Group = tuple[Effect, str, str]  # effect, why, names


def covered(groups: Iterable[Group]) -> dict[str, Covered]:
    """The flags of all groups by their names. Raises ValueError for one that stands in two."""
    table: dict[str, Covered] = {}
    for effect, why, names in groups:
        for name in names.split():
            if name in table:
                raise ValueError(f"{name} stands in two groups")
            table[name] = Covered(effect, why)
    return table


def left_out(
    flags: Mapping[str, FlagValue], table: Mapping[str, Covered], known: Mapping[str, Flag], engine: str
) -> dict[str, str]:
    """Flags and variables that are set and change no figure here though they may change the engine's: name -> why.

    Args:
        flags: of a start, by snake-case name; UPPER-CASE ones are variables.
        table: of the engine.
        known: its flags, for their defaults.
        engine: as people write it.
    """
    named: dict[str, str] = {}
    for name, value in flags.items():
        row = table.get(name)
        if row is None:
            if not name.isupper():
                named[name] = f"partitune does not know this flag of {engine}"
            elif not _PLACES.search(name):
                named[name] = _VARIABLE
        elif row.effect is Effect.NOT_MODELLED and not _asks_for_nothing(value, known.get(name)):
            named[name] = row.why
    return named


def _asks_for_nothing(value: FlagValue, flag: Flag | None) -> bool:
    default = None if flag is None else flag.default
    return (value == default and type(value) is type(default)) or (
        any(value is off or (isinstance(value, str) and value == off) for off in _OFF) and default is not True
    )
