"""GPUs, links and where each stage stands: typed-in facts, each with its source.

Decision: the cost model never asks "which cluster file was that"; it gets a Placement with one GPU and one reserved
amount per stage and one link per boundary. Tensor and context ranks of a stage stand on one node (the engines number
them fastest); data ranks may be anywhere, so every (replica, stage) has a seat of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.cluster.layout import Layout


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

    def peak_flops_s(self, width: str) -> float:
        """Dense FLOP/s of `bf16`, `fp8` or `fp4` operands."""
        return {"bf16": self.bf16_flops_s, "fp8": self.fp8_flops_s, "fp4": self.fp4_flops_s}[width]


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
class Seat:
    """Where the tensor and context ranks of one stage of one replica stand."""

    node: int  # 0-based
    first_gpu: int  # on that node, as the launcher counts its ranks
    first_rank: int  # of the whole deployment


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the stages of a deployment stand."""

    gpus: tuple[Gpu, ...]  # per stage: the weakest of its GPUs, as they work in step
    reserved_bytes: tuple[int, ...]  # per stage: taken by others on each of its GPUs
    nodes: tuple[int, ...]  # per stage of the first replica: 0-based node
    links: tuple[Link, ...]  # per boundary, len = stages - 1; of the replica with the slowest
    layout: Layout
    seats: tuple[tuple[Seat, ...], ...]  # per replica, per stage
    expert_link: Link | None = None  # joins the nodes that the experts of one layer are spread over; None: one node
    idle_gpus: int = 0  # of the cluster, left unused

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.gpus)

    @property
    def tp(self) -> int:
        """Tensor ranks of a stage."""
        return self.layout.tp

    @property
    def node_count(self) -> int:
        """Nodes in use."""
        return 1 + max(seat.node for replica in self.seats for seat in replica)

    @property
    def expert_nodes(self) -> int:
        """Nodes that the experts of one layer are spread over, at most over the stages."""
        return max(len({replica[stage].node for replica in self.seats}) for stage in range(self.stages))
