"""An engine: the small protocols that the rest of partitune asks, put together, and what it is called.

Decision: a room that needs one of them takes that one; what an engine is called decides nothing outside `engines`.
"""

from __future__ import annotations

from typing import Protocol

from partitune.engines.launch import Launch
from partitune.engines.memory import Memory
from partitune.engines.readout import Readout
from partitune.engines.rules import Rules
from partitune.engines.scheduling import Scheduling


class Engine(Rules, Memory, Scheduling, Protocol):
    """One serving engine."""

    @property
    def name(self) -> str:
        """As the YAML spells it."""
        ...

    @property
    def launch(self) -> Launch:
        """How its server and its load generator are started."""
        ...

    @property
    def readout(self) -> Readout:
        """What its logs and metrics say."""
        ...
