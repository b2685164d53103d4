"""The one place that knows an engine's spelling, defaults and refusals."""

from __future__ import annotations

from collections.abc import Mapping

from partitune.engines.engine import Engine
from partitune.engines.sglang.engine import Sglang
from partitune.engines.vllm.engine import Vllm
from partitune.errors import SpecError, did_you_mean

_ALL: tuple[Engine, ...] = (Vllm(), Sglang())
ENGINES: Mapping[str, Engine] = {each.name: each for each in _ALL}


def engine(name: str, source: str = "engine.name") -> Engine:
    """The engine of that name.

    Raises:
        SpecError: unknown name; the message has the nearest.
    """
    if name in ENGINES:
        return ENGINES[name]
    hint = did_you_mean(name, ENGINES)
    raise SpecError(f"{source}: {name!r} is not a known engine{hint}; known are {', '.join(ENGINES)}")
