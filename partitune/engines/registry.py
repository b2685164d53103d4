"""The one place that knows an engine's spelling, defaults and refusals."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from partitune.engines.engine import Engine
from partitune.engines.sglang.engine import Sglang
from partitune.engines.vllm.engine import Vllm
from partitune.errors import SpecError

ENGINES: Mapping[str, Engine] = {"vllm": Vllm(), "sglang": Sglang()}


def engine(name: str, source: str = "engine.name") -> Engine:
    """The engine of that name.

    Raises:
        SpecError: unknown name; the message has the nearest.
    """
    if name in ENGINES:
        return ENGINES[name]
    close = difflib.get_close_matches(name.lower(), ENGINES, n=1, cutoff=0.4)
    hint = f"; nearest: {close[0]}" if close else ""
    raise SpecError(f"{source}: {name!r} is not a known engine; known are {', '.join(ENGINES)}{hint}")
