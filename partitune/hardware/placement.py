"""From nodes x GPUs to a Placement: which node each stage of each replica stands on, and what joins it to the next.

Decision: ranks are laid out as the launchers do. vLLM's `mp` executor (0.32 `v1/executor/multiproc_executor.py`) and
SGLang (0.5.23 `srt/entrypoints/engine.py`) give every node the same number of ranks, contiguous, tensor ranks fastest;
which of data and pipeline ranks counts slower differs (`RankOrder`). The ranks of a stage stand on one node, or, where
its tensor ranks are more than a node has, on whole nodes: both engines start that (vLLM `--nnodes`, SGLang
`--nnodes`), and its all-reduces cross the network twice a layer. A group that only straddles a border is refused: the
network would cost it what it costs a large one. Ray numbers nodes by ids it draws when the cluster starts. GPUs of
different types inside one stage work in step: the stage is as fast and large as the weakest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from partitune.errors import SpecError
from partitune.hardware.gpus import GIB, Gpu
from partitune.hardware.links import Link, link_between_nodes, link_in_node
from partitune.hardware.parallelism import Layout, RankOrder


@dataclass(frozen=True, slots=True)
class Seat:
    """Where the tensor and context ranks of one stage of one replica stand."""

    node: int  # 0-based; the first of them
    first_gpu: int  # on that node, as the launcher counts its ranks


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
    tensor_nodes: int = 1  # whole nodes that the tensor ranks of one stage stand on
    tensor_link: Link | None = None  # joins those nodes; None: one node

    @property
    def node_count(self) -> int:
        """How many nodes hold a rank; the cluster may have more."""
        return self.tensor_nodes + max(seat.node for replica in self.seats for seat in replica)

    @property
    def expert_nodes(self) -> int:
        """Nodes that the experts of one layer are spread over, at most over the stages."""
        of_replicas = max(len({seat.node for seat in of_stage}) for of_stage in zip(*self.seats, strict=True))
        return self.tensor_nodes * of_replicas


@dataclass(frozen=True, slots=True)
class Machines:
    """What deployments are placed on. A list has one entry for all, one a stage, or one a GPU, node after node."""

    nodes: int
    gpus_per_node: int
    gpus: Sequence[Gpu]
    reserved_gib: Sequence[float] = (0.0,)  # taken by others on every GPU
    in_node: Link | None = None  # joins two stages on one node; None: by GPU generation, the slower one of two
    between_nodes: Link | None = None  # joins two stages on different nodes; None: by GPU generation

    @property
    def total(self) -> int:
        """GPUs of all nodes, used or not."""
        return self.nodes * self.gpus_per_node

    def idle_note(self, layout: Layout) -> str:
        """What a person should know of a layout that leaves GPUs unused; empty where it uses all."""
        idle = self.total - layout.gpus
        return f"{layout.name} leaves {idle} of {self.total} GPUs idle" if idle else ""


_Value = TypeVar("_Value", Gpu, float)


def place(machines: Machines, layout: Layout, order: RankOrder = RankOrder.REPLICAS_OUTSIDE) -> Placement:
    """Place every stage of every replica.

    Args:
        machines: where they may stand.
        layout: sizes of the deployment.
        order: how the engine numbers ranks.

    Raises:
        SpecError: too few GPUs, lists of the wrong length, no way that keeps tensor groups on a node.
    """
    seats = _seats(machines, layout, order)
    stages = list(zip(*seats, strict=True))
    starts = [[seat.node * machines.gpus_per_node + seat.first_gpu for seat in of_stage] for of_stage in stages]
    owned = [[start + rank for start in of_stage for rank in range(layout.tp * layout.pcp)] for of_stage in starts]
    total = machines.total
    per_stage = tuple(weakest(members) for members in _members("gpus", machines.gpus, owned, total))
    reserved = [max(members) for members in _members("reserved_gib", machines.reserved_gib, owned, total)]
    for stage, (gpu, gib) in enumerate(zip(per_stage, reserved, strict=True)):
        if not 0 <= gib * GIB < gpu.memory_bytes:
            room = gpu.memory_bytes / GIB
            raise SpecError(f"cluster: reserved_gib of stage {stage} is {gib}; {gpu.name} has 0 to {room:.1f} GiB")

    def joining(ends: Sequence[Gpu], crosses: bool) -> Link:
        default = link_between_nodes if crosses else link_in_node
        given = machines.between_nodes if crosses else machines.in_node
        return given or min((default(end) for end in ends), key=lambda end: end.bandwidth_bytes_s)

    links = []
    for boundary in range(1, layout.pp):
        crosses = [seat.node for seat in stages[boundary - 1]] != [seat.node for seat in stages[boundary]]
        links.append(joining(per_stage[boundary - 1 : boundary + 1], crosses))
    tensor_nodes = max(1, layout.tp // machines.gpus_per_node)
    apart = tensor_nodes > 1 or any(len({seat.node for seat in of_stage}) > 1 for of_stage in stages)
    return Placement(
        gpus=per_stage,
        reserved_bytes=tuple(round(gib * GIB) for gib in reserved),
        nodes=tuple(seat.node for seat in seats[0]),
        links=tuple(links),
        layout=layout,
        seats=seats,
        expert_link=joining(per_stage, True) if apart else None,
        tensor_nodes=tensor_nodes,
        tensor_link=joining(per_stage, True) if tensor_nodes > 1 else None,
    )


def weakest(gpus: Sequence[Gpu]) -> Gpu:
    """What GPUs that work in step amount to: the least of each figure, under the name of the slowest."""
    return replace(
        min(gpus, key=lambda gpu: gpu.bandwidth_bytes_s),
        memory_bytes=min(gpu.memory_bytes for gpu in gpus),
        bf16_flops_s=min(gpu.bf16_flops_s for gpu in gpus),
        fp8_flops_s=min(gpu.fp8_flops_s for gpu in gpus),
        fp4_flops_s=min(gpu.fp4_flops_s for gpu in gpus),
        doubt="; ".join(dict.fromkeys(gpu.doubt for gpu in gpus if gpu.doubt)),
    )


def _members(key: str, values: Sequence[_Value], owned: list[list[int]], total: int) -> list[list[_Value]]:
    """The entries of a list that belong to each stage; it has one, one per stage, or one per GPU of the cluster."""
    if len(values) == 1:
        return [list(values)] * len(owned)
    if len(values) == len(owned):
        return [[value] for value in values]
    if len(values) != total:
        several = f"{len(owned)}, one per stage, or {total}, one per GPU"
        raise SpecError(f"cluster: {key} has {len(values)} entries; give one for all, {several}")
    return [[values[gpu] for gpu in gpus] for gpus in owned]


def _seats(machines: Machines, layout: Layout, order: RankOrder) -> tuple[tuple[Seat, ...], ...]:
    width = layout.tp * layout.pcp
    on_node = _ranks_per_node(machines, layout)

    def seat(replica: int, stage: int) -> Seat:
        outside = order is RankOrder.REPLICAS_OUTSIDE
        group = replica * layout.pp + stage if outside else stage * layout.dp + replica
        return Seat(*divmod(group * width, on_node))

    return tuple(tuple(seat(replica, stage) for stage in range(layout.pp)) for replica in range(layout.dp))


def _ranks_per_node(machines: Machines, layout: Layout) -> int:
    """Ranks on each used node: the fewest nodes that share the ranks evenly and keep every tensor group whole."""
    world, width = layout.gpus, layout.tp * layout.pcp
    per_node = machines.gpus_per_node
    cluster = f"{machines.nodes} x {per_node}"
    named = {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp, "pcp": layout.pcp}
    sizes = " x ".join(f"{key} {size}" for key, size in named.items() if key in ("tp", "pp") or size > 1)
    if world > machines.total:
        raise SpecError(f"cluster: {sizes} needs {world} GPUs; {cluster} has {machines.total}")
    if width > per_node:
        if layout.pcp == 1 and layout.dcp == 1 and width % per_node == 0:
            return per_node
        what = f"tp {layout.tp}" if layout.pcp == 1 else f"tp {layout.tp} x pcp {layout.pcp}"
        text = f"a TP group stands on one node, or without context ranks on whole nodes (a multiple of {per_node})"
        raise SpecError(f"cluster: {what} does not fit a node of {per_node} GPUs; {text}")
    for used in range(-(-world // per_node), machines.nodes + 1):
        if world % used == 0 and (world // used) % width == 0:
            return world // used
    raise SpecError(
        f"cluster: {sizes} on {cluster} GPUs cannot be laid out with whole TP groups and the same number of "
        f"ranks on every node; choose pp so that the {world} ranks divide by the nodes in multiples of {width}"
    )
