"""Which partitions a model admits, as reasons for a person.

Decision: `planning.planner` has the same rules as windows for the solver. Rules come from the engines (facts of vLLM
0.32/0.33):

* every stage owns at least one layer: `get_pp_indices` allows zero, the KV planner then divides by zero;
* in a hybrid model every stage owns a layer that keeps KV per token, or block sizes stop being unified and capacity
  falls about six-fold (`platforms/interface.py`, `update_block_size_for_backend` returns early);
* a cut must not separate layers that share KV or an index (`Architecture.illegal_cuts`).
"""

from __future__ import annotations

from collections.abc import Sequence

from partitune.models.architecture import Architecture
from partitune.partition import Partition


def illegal_reasons(architecture: Architecture, partition: Sequence[int]) -> tuple[str, ...]:
    """Every reason why `partition` cannot serve `architecture`; empty when it can."""
    layers, ranges = len(architecture.layers), Partition(partition).ranges
    reasons = []
    if sum(partition) != layers:
        reasons.append(f"{Partition(partition).text} sums to {sum(partition)}, {architecture.name} has {layers} layers")
    token_kv = [layer.has_token_kv for layer in architecture.layers]
    for stage, (start, end) in enumerate(ranges):
        if end <= start:
            reasons.append(f"stage {stage} has no layer")
        elif architecture.is_hybrid and not any(token_kv[start:end]):
            reasons.append(
                f"stage {stage} (layers {start}-{end - 1}) has no layer with KV per token: {architecture.name} is a "
                "hybrid and needs at least one attention layer on every stage"
            )
    reasons.extend(
        f"the cut before layer {cut} separates layers of {architecture.name} that must stay together"
        for cut, _ in ranges[1:]
        if cut in architecture.illegal_cuts
    )
    return tuple(reasons)
