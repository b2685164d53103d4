"""An engine: the small protocols that the rest of partitune asks, put together, and what it is called.

Decision: a room that needs one of them takes that one; what an engine is called decides nothing outside `engines`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from partitune.candidate import Knob
from partitune.engines.deployment import Deployment
from partitune.engines.memory import Memory
from partitune.engines.rules import Rules
from partitune.engines.scheduling import Scheduling


class Engine(Rules, Memory, Scheduling, Protocol):
    """One serving engine."""

    @property
    def name(self) -> str:
        """As the YAML spells it."""
        ...

    @property
    def partition_env(self) -> str:
        """Environment variable that carries the partition."""
        ...

    @property
    def model_key(self) -> str:
        """Key of the model in the engine's own config file."""
        ...

    def serve_arguments(self, model: str, deployment: Deployment) -> tuple[str, ...]:
        """Command-line words that start the server, program name first."""
        ...

    def config_yaml(self, deployment: Deployment) -> Mapping[str, Knob]:
        """The flags as the engine's own config file takes them."""
        ...

    def config_commands(self, config: str, deployment: Deployment, nodes: int) -> tuple[str, ...]:
        """Shell commands that start the server from such a file: one a node, or one in all."""
        ...

    def read_config(self, entries: Mapping[str, object]) -> Mapping[str, Knob]:
        """The flags the engine takes from such a file, dropping what it drops: for the check after an export."""
        ...

    def environment(self, deployment: Deployment) -> Mapping[str, str]:
        """Environment variables of the server."""
        ...
