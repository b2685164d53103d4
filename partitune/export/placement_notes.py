"""What a person must know about GPUs before a deployment is started: which stage stands where, and what will not start.

Decision: a partition is only right for one order of GPUs, and neither engine checks it, so the order is written into
the file itself. Ranks are counted as the engine does on one command a node (`hardware.placement`). An engine started
over Ray counts the nodes by ids that Ray draws, the driver's first; nothing here says which node that makes which.
"""

from __future__ import annotations

from partitune.hardware.placement import Placement
from partitune.planning.resolved_candidate import ResolvedCandidate


def placement_notes(resolved: ResolvedCandidate) -> tuple[str, ...]:
    """One line a stage (layers, node, GPUs), and what follows from it."""
    placement, lines = resolved.problem.placement, []
    width = placement.layout.tp * placement.layout.pcp
    for stage, (first, end) in enumerate(resolved.partition.ranges):
        layers = f"layer {first}" if end == first + 1 else f"layers {first} to {end - 1}"
        for replica, seats in enumerate(placement.seats):
            seat, rank = seats[stage], f" of data rank {replica}" if len(placement.seats) > 1 else ""
            gpus = f"GPU {seat.first_gpu}" if width == 1 else f"GPUs {seat.first_gpu} to {seat.first_gpu + width - 1}"
            where = f"node {seat.node}, {gpus}"
            if placement.tensor_nodes > 1:
                where = f"nodes {seat.node} to {seat.node + placement.tensor_nodes - 1}, all their GPUs"
            lines.append(f"stage {stage}{rank}: {layers} on {where} ({placement.gpus[stage].name})")
    if stages_differ_on_a_node(placement):
        lines.append("GPUs of one node differ: hold the order above against nvidia-smi; to change it, list the GPUs")
        lines.append("of each node in CUDA_VISIBLE_DEVICES, those of its first stage first")
    transfers = resolved.problem.engine.launch.transfer_flags
    if any(resolved.deployment.flags.get(name, none) != none for name, none in transfers.items()):
        lines.append("one side of a KV transfer: the other side must be told this partition too")
    return tuple(lines)


def stages_differ_on_a_node(placement: Placement) -> bool:
    """True where it matters which GPU of a node is which: another type, or another amount held by others."""
    kinds = set(zip(placement.nodes, placement.gpus, placement.reserved_bytes, strict=True))
    return len(kinds) > len(set(placement.nodes))


def start_warnings(resolved: ResolvedCandidate) -> tuple[str, ...]:
    """What will keep the engine from starting although the trial could be simulated.

    vLLM asks for its share of all memory before it looks at what is free (0.32 `v1/worker/utils.py` request_memory).
    """
    limits = {stage.stage: stage.utilization_to_set for stage in resolved.memory}
    short = {stage: limit for stage, limit in limits.items() if limit is not None}
    if not short:
        return ()
    stages = f"stage{'s' if len(short) > 1 else ''} {', '.join(map(str, short))}"
    flag = resolved.memory[0].settings.share_flag
    share = resolved.problem.engine.effective_flags(resolved.deployment)[flag]
    return (f"{flag} {share} does not start on {stages}; set {min(short.values())} or less",)
