"""In which order vLLM's Ray executors number the nodes of a cluster: known only once the cluster is up.

Decision: two rules, by executor, applied to what Ray itself tells about its nodes; nothing is guessed beforehand,
because one of them sorts by ids that Ray draws at random. A partition for unlike nodes must be held against this order
before it is trusted.

Source: vLLM 0.32 `v1/executor/ray_utils.py` (get_bundles_sorted_by_node), `v1/executor/ray_executor.py`
(sort_by_driver_then_worker_ip); `VLLM_USE_RAY_V2_EXECUTOR_BACKEND` chooses, on by default since 0.32 or earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node as Ray names it."""

    node_id: str  # hexadecimal
    ip: str
    gpus: int  # that the engine takes there


def ray_order(nodes: Sequence[RayNode], driver: str, *, legacy: bool = False) -> tuple[RayNode, ...]:
    """The nodes in the order of their ranks.

    Args:
        nodes: in any order.
        driver: id of the node the engine is started on.
        legacy: the older executor, which counts workers and compares addresses as texts: `10.0.0.10` comes before
            `10.0.0.9`.
    """

    def key(node: RayNode) -> tuple[bool, int, str]:
        return (node.node_id != driver, node.gpus, node.ip) if legacy else (node.node_id != driver, 0, node.node_id)

    return tuple(sorted(nodes, key=key))
