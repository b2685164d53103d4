"""An engine: the small protocols that the rest of partitune asks, put together, and what it is called.

Decision: a room that needs one of them takes that one; what an engine is called decides nothing outside `engines`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from partitune.engines.launch import Launch
from partitune.engines.memory import Memory
from partitune.engines.readout import Readout
from partitune.engines.recordings import Record
from partitune.engines.rules import Rules
from partitune.engines.scheduling import Scheduling


class Engine(Rules, Memory, Scheduling, Protocol):
    """What one serving engine answers: every protocol but those of a start, which it names."""

    name: str  # as the YAML spells it
    launch: Launch  # how its server and its load generator are started
    readout: Readout  # what its logs and metrics say
    recordings: Mapping[str, type[Record]] = MappingProxyType({})  # what was recorded: `schedules`, `KV caches`
