"""One engine start: the value that every question to an engine is asked with.

Decision: everything is asked with one value (which model, how many stages, which flags, which version), so that a
default or a rule exists once and simulator, drivers, planner and export cannot ask about different starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from partitune.candidate import FlagValue
from partitune.hardware.gpus import Gpu
from partitune.hardware.parallelism import Layout
from partitune.models.architecture import Architecture


@dataclass(frozen=True, slots=True)
class Deployment:
    """One engine start, before the partition is chosen or with it."""

    version: str
    architecture: Architecture
    layout: Layout
    gpu: Gpu  # of the first stage: engines take their defaults from the GPU they start on
    flags: Mapping[str, FlagValue] = field(default_factory=dict)  # by snake-case name; UPPER-CASE ones are variables
    partition: tuple[int, ...] | None = None  # None: the engine's default split
    runner: str = "auto"  # vLLM's model runner: auto, v1, v2
    nodes: int = 1  # that its ranks stand on

    @property
    def stages(self) -> int:
        """How many pipeline stages the layout has."""
        return self.layout.pp

    @property
    def tp(self) -> int:
        """Tensor ranks of a stage."""
        return self.layout.tp


def command_flags(flags: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    """Those that are command-line flags."""
    return {name: value for name, value in flags.items() if not name.isupper()}


def environment_flags(flags: Mapping[str, FlagValue]) -> dict[str, str]:
    """The flags that are environment variables (names in upper case) as text; true is 1, false is 0."""
    return {
        name: str(int(value)) if isinstance(value, bool) else str(value)
        for name, value in flags.items()
        if name.isupper()
    }
