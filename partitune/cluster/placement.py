"""From nodes x GPUs to a Placement: which node each stage stands on and what joins it to the next.

Decision: ranks are laid out as vLLM's `mp` executor does (0.32 `v1/executor/multiproc_executor.py`: every node runs the
same number of ranks, contiguous, TP fastest), so stage s owns ranks s*tp ... s*tp + tp - 1. A TP group that would cross
nodes is refused: its all-reduce would run over the network twice a layer. Ray orders nodes differently; that is not
modelled here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from partitune.cluster.hardware import Gpu, Link, Placement
from partitune.cluster.links import link_between_nodes, link_in_node
from partitune.errors import SpecError

_GIB = 1 << 30
_Value = TypeVar("_Value", Gpu, float)


def build_placement(
    gpus: Gpu | Sequence[Gpu],
    *,
    nodes: int,
    gpus_per_node: int,
    tp: int,
    pp: int,
    reserved_gib: float | Sequence[float] = 0.0,
    in_node: Link | None = None,
    between_nodes: Link | None = None,
    boundary_links: Mapping[int, Link] | None = None,
) -> Placement:
    """Place `pp` stages of `tp` GPUs each.

    Args:
        gpus: one GPU for all stages, or one per stage.
        nodes: machines in the cluster.
        gpus_per_node: GPUs in each.
        tp: GPUs per stage.
        pp: stages.
        reserved_gib: GiB taken by others on every GPU, one figure or one per stage.
        in_node: link of two stages on one node; default by GPU generation (the slower one of two).
        between_nodes: link of two stages on different nodes; default by GPU generation.
        boundary_links: boundary (1 ... pp - 1, before stage `boundary`) -> link, over the two above.

    Raises:
        SpecError: sizes below 1, too few GPUs, lists of the wrong length, no layout that keeps TP groups on a node.
    """
    for key, value in (("nodes", nodes), ("gpus_per_node", gpus_per_node), ("tp", tp), ("pp", pp)):
        if value < 1:
            raise SpecError(f"cluster: {key} is {value}; it must be at least 1")
    per_stage = _per_stage("gpus", [gpus] if isinstance(gpus, Gpu) else list(gpus), pp)
    reserved = [reserved_gib] if isinstance(reserved_gib, (int, float)) else list(reserved_gib)
    reserved = _per_stage("reserved_gib", reserved, pp)
    for stage, (gpu, gib) in enumerate(zip(per_stage, reserved, strict=True)):
        if not 0 <= gib * _GIB < gpu.memory_bytes:
            room = gpu.memory_bytes / _GIB
            raise SpecError(f"cluster: reserved_gib of stage {stage} is {gib}; {gpu.name} has 0 to {room:.1f} GiB")
    ranks_per_node = _ranks_per_node(nodes, gpus_per_node, tp, pp)
    stage_nodes = tuple(stage * tp // ranks_per_node for stage in range(pp))
    overrides = dict(boundary_links or {})
    if wrong := [b for b in overrides if not 1 <= b < pp]:
        raise SpecError(f"cluster: links names boundary {wrong[0]}; {pp} stages have boundaries 1 to {pp - 1}")
    links = []
    for boundary in range(1, pp):
        same = stage_nodes[boundary - 1] == stage_nodes[boundary]
        default = link_in_node if same else link_between_nodes
        ends = [default(per_stage[boundary - 1]), default(per_stage[boundary])]
        given = in_node if same else between_nodes
        links.append(overrides.get(boundary) or given or min(ends, key=lambda end: end.bandwidth_bytes_s))
    return Placement(
        gpus=tuple(per_stage),
        reserved_bytes=tuple(round(gib * _GIB) for gib in reserved),
        nodes=stage_nodes,
        links=tuple(links),
        tp=tp,
        idle_gpus=nodes * gpus_per_node - tp * pp,
    )


def _per_stage(key: str, values: list[_Value], pp: int) -> list[_Value]:
    if len(values) == 1:
        return values * pp
    if len(values) != pp:
        raise SpecError(f"cluster: {key} has {len(values)} entries; give one for all stages or {pp}, one per stage")
    return values


def _ranks_per_node(nodes: int, gpus_per_node: int, tp: int, pp: int) -> int:
    """Ranks on each used node: the fewest nodes that share the ranks evenly and keep every TP group whole."""
    world = tp * pp
    cluster = f"{nodes} x {gpus_per_node}"
    if world > nodes * gpus_per_node:
        raise SpecError(f"cluster: tp {tp} x pp {pp} needs {world} GPUs; {cluster} has {nodes * gpus_per_node}")
    if tp > gpus_per_node:
        raise SpecError(
            f"cluster: tp {tp} does not fit a node of {gpus_per_node} GPUs; a TP group must stay on one node"
        )
    for used in range(-(-world // gpus_per_node), nodes + 1):
        if world % used == 0 and (world // used) % tp == 0:
            return world // used
    raise SpecError(
        f"cluster: tp {tp} x pp {pp} on {cluster} GPUs cannot be laid out with whole TP groups and the same number of "
        f"ranks on every node; choose pp so that the {world} ranks divide by the nodes in multiples of tp"
    )
