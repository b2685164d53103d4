"""What one engine start consists of, before anything runs: the values a dry run prints and a node executes.

Decision: a start is plain data, complete and picklable. The same value is printed by `partitune launch --dry-run`, sent
to a node's agent and checked afterwards against what really ran, so that the three cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from partitune.engines.launch import LOOPBACK, LayerReport


@dataclass(frozen=True, slots=True)
class ProcessCommand:
    """One process group on one node."""

    node: int  # 0-based, in the order of the stages
    host: str  # address of that node as the others reach it
    argv: tuple[str, ...]
    env: Mapping[str, str]  # set over the node's own environment
    unset: tuple[str, ...] = ()  # names removed from the node's own environment: a stale partition silently wins
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # set as env is, and never shown
    uses_gpus: bool = True  # False: the memory of the GPUs says nothing about its end


@dataclass(frozen=True, slots=True)
class LaunchCommands:
    """One engine start: the first process serves HTTP."""

    trial: str  # marker of this start, in every process's environment and in the served model's name
    engine: str
    served_name: str  # what /v1/models must answer for the server to be ours
    port: int
    processes: tuple[ProcessCommand, ...]
    partition: tuple[int, ...]
    notes: tuple[str, ...] = field(default=())  # what the start assumes
    sees_port: bool = True  # False: a container or a scheduler's step listens; its name alone proves that it is ours
    stage_nodes: tuple[int, ...] | None = None  # node of every stage in this launcher's order; None: it cannot be known
    layer_report: LayerReport | None = None  # how the workers can be asked for their layers; None: they cannot
    key: str = field(default="", repr=False)  # that whoever asks the server brings

    @property
    def url(self) -> str:
        """Address at which the server answers whoever stands on the first node, and nobody else."""
        return f"http://{LOOPBACK}:{self.port}"
