"""The engines there are: the one place that lists them.

Decision: an engine is a folder of this room, listed here by its name, whose `engine.py` has its one value `ENGINE`. So
a further engine is its folder and one line, and is held to the protocols where it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from partitune.engines.engine import Engine
from partitune.errors import SpecError, did_you_mean

#: Folders, in the order in which messages name them.
_FOLDERS = (
    "vllm",
    "sglang",
)
ENGINES: Mapping[str, Engine] = {name: import_module(f"partitune.engines.{name}.engine").ENGINE for name in _FOLDERS}


def engine(name: str) -> Engine:
    """The engine of that name.

    Raises:
        SpecError: unknown name; the message has the nearest.
    """
    if name in ENGINES:
        return ENGINES[name]
    hint = did_you_mean(name, ENGINES)
    raise SpecError(f"engine.name: {name!r} is not a known engine{hint}; known are {', '.join(ENGINES)}")
