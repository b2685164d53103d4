"""GPUs, links and where each stage stands: typed-in facts, each with its source.

Decision: the cost model never asks "which cluster file was that"; it gets a Placement with one GPU and one reserved
amount per stage and one link per boundary. TP groups are assumed inside one node (the engines put TP fastest).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU model. Peak figures are dense, per GPU."""

    name: str  # as the YAML spells it: H200
    memory_bytes: int  # what the driver reports as total
    bandwidth_bytes_s: float
    bf16_flops_s: float
    fp8_flops_s: float
    fp4_flops_s: float
    source: str
    generation: str = ""  # hopper, blackwell, ...; "" for a GPU typed in by hand: the fit falls back to Hopper's


@dataclass(frozen=True, slots=True)
class Link:
    """A point-to-point connection of two ranks: time = latency + bytes / bandwidth."""

    name: str
    latency_s: float
    bandwidth_bytes_s: float
    source: str

    def transfer_s(self, payload_bytes: float) -> float:
        """Seconds for one message of `payload_bytes` over one rank's link."""
        return self.latency_s + payload_bytes / self.bandwidth_bytes_s


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the stages of one replica stand."""

    gpus: tuple[Gpu, ...]  # per stage
    reserved_bytes: tuple[int, ...]  # per stage: taken by others on each of its GPUs
    nodes: tuple[int, ...]  # per stage: 0-based node
    links: tuple[Link, ...]  # per boundary, len = stages - 1
    tp: int
    idle_gpus: int = 0  # of the cluster, left unused by tp * pp

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.gpus)
