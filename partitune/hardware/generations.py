"""What holds for every GPU of a generation, so that nobody downstream compares names of generations.

Decision: an Enum whose members carry all their facts. A generation added without one of them does not pass the type
check and does not import; nothing falls back to another generation's figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of one generation; the links are names of `hardware.links`."""

    label: str
    in_node: str  # what joins two GPUs of a node, unless the space says otherwise
    between_nodes: str  # what joins two nodes
    measured_like: tuple[str, ...]  # systems of costs/fitted_constants.json that stand in for it, nearest first
    data_centre_blackwell: bool = False  # compute capability 10


class Generation(Enum):
    """GPUs of one architecture and one way of being joined; `value` holds its facts."""

    AMPERE = Facts("ampere", "nvlink-a100", "network-a100", ("a100_sxm",))
    AMPERE_PCIE = Facts("ampere-pcie", "pcie4", "ethernet-100g", ("l40s", "a100_sxm"))
    ADA = Facts("ada", "pcie4", "ethernet-100g", ("l40s",))
    HOPPER = Facts("hopper", "nvlink-h100", "infiniband-400g", ("h200_sxm", "h100_sxm"))
    BLACKWELL = Facts(
        "blackwell", "nvlink-b200", "infiniband-800g", ("b200_sxm", "b300_sxm"), data_centre_blackwell=True
    )
    BLACKWELL_RACK = Facts(
        "blackwell-rack", "nvlink-b200", "nvlink-rack", ("gb200", "b300_sxm", "b200_sxm"), data_centre_blackwell=True
    )
    BLACKWELL_PCIE = Facts("blackwell-pcie", "pcie5", "ethernet-100g", ("l40s", "b200_sxm"))
    CDNA3 = Facts("cdna3", "infinity-fabric", "infiniband-400g", ("h200_sxm", "h100_sxm"))
    # Processes of one host; no table of a CPU exists.
    CPU = Facts("cpu", "pcie4", "ethernet-100g", ("h200_sxm", "h100_sxm"))
