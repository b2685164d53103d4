"""What holds for every GPU of one architecture and one way of being joined.

Decision: an Enum whose members carry all their facts, so that nobody downstream compares names of generations: one
added without a fact does not pass the type check and does not import, and nothing falls back to another generation's
figures. Where no kernel of a generation was ever measured its members say so in `doubt`, which stands beside every
figure.
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
    capability: int = 0  # major number of NVIDIA's compute capability; 0: no GPU of theirs, or not known
    doubt: str = ""  # what makes every figure of it uncertain, as a sentence without its full stop

    @property
    def data_centre_blackwell(self) -> bool:
        """True for B200, B300 and their Grace twins."""
        return self.capability == 10


_HOPPER = ("h200_sxm", "h100_sxm")
_AMPERE = ("a100_sxm",)
_CARDS = ("l40s", "a100_sxm")
_UNMEASURED = "no kernel of a {} GPU was measured: those of {} are scaled by memory bandwidth and peaks"
_NO_BF16 = "; it has no bfloat16, so engines serve float16"


class Generation(Enum):
    """GPUs of one architecture and one way of being joined; `value` holds its facts."""

    # vLLM 0.14 `docs/getting_started/installation/gpu.cuda.inc.md` asks for compute capability 7.0, 0.21 for 7.5.
    VOLTA = Facts(
        "volta", "nvlink-v100", "network-a100", _AMPERE, 7,
        doubt=_UNMEASURED.format("Volta", "A100") + _NO_BF16 + ", and vLLM asks for compute capability 7.5 since 0.21",
    )  # fmt: skip
    VOLTA_PCIE = Facts("volta-pcie", "pcie3", "ethernet-100g", _AMPERE, 7, doubt=VOLTA.doubt)
    TURING = Facts("turing", "pcie3", "ethernet-100g", _CARDS, 7, doubt=_UNMEASURED.format("Turing", "L40S") + _NO_BF16)
    AMPERE = Facts("ampere", "nvlink-a100", "network-a100", _AMPERE, 8)
    AMPERE_A800 = Facts("ampere-a800", "nvlink-a800", "network-a100", _AMPERE, 8)
    AMPERE_PCIE = Facts("ampere-pcie", "pcie4", "ethernet-100g", _CARDS, 8)
    ADA = Facts("ada", "pcie4", "ethernet-100g", ("l40s",), 8)
    HOPPER = Facts("hopper", "nvlink-h100", "infiniband-400g", _HOPPER, 9)
    HOPPER_H800 = Facts("hopper-h800", "nvlink-h800", "infiniband-400g", _HOPPER, 9)
    HOPPER_PCIE = Facts("hopper-pcie", "pcie5", "infiniband-400g", _HOPPER, 9)
    BLACKWELL = Facts("blackwell", "nvlink-b200", "infiniband-800g", ("b200_sxm", "b300_sxm"), 10)
    BLACKWELL_RACK = Facts("blackwell-rack", "nvlink-b200", "nvlink-rack", ("gb200", "b300_sxm", "b200_sxm"), 10)
    BLACKWELL_PCIE = Facts("blackwell-pcie", "pcie5", "ethernet-100g", ("l40s", "b200_sxm"), 12)
    # DGX Spark: one GPU a node, ConnectX-7 between two.
    BLACKWELL_DESK = Facts("blackwell-desk", "pcie5", "infiniband-200g", ("l40s", "b200_sxm"), 12)
    CDNA2 = Facts("cdna2", "infinity-fabric", "infiniband-200g", _AMPERE, doubt=_UNMEASURED.format("CDNA2", "A100"))
    CDNA3 = Facts("cdna3", "infinity-fabric", "infiniband-400g", _HOPPER, doubt=_UNMEASURED.format("CDNA3", "H200"))
    CDNA4 = Facts(
        "cdna4", "infinity-fabric", "infiniband-400g", ("b200_sxm", "h200_sxm"),
        doubt=_UNMEASURED.format("CDNA4", "B200"),
    )  # fmt: skip
    RDNA = Facts("rdna", "pcie4", "ethernet-100g", ("l40s",), doubt=_UNMEASURED.format("RDNA", "L40S"))
    GAUDI = Facts("gaudi", "pcie5", "ethernet-100g", _HOPPER, doubt=_UNMEASURED.format("Gaudi", "H200"))
    XE = Facts("xe", "pcie4", "ethernet-100g", ("l40s",), doubt=_UNMEASURED.format("Xe", "L40S"))
    # Processes of one host; no table of a CPU exists.
    CPU = Facts("cpu", "pcie4", "ethernet-100g", _HOPPER, doubt=_UNMEASURED.format("CPU as", "H200"))
    # Described in a search space by its peaks alone.
    OTHER = Facts("other", "pcie4", "ethernet-100g", _HOPPER)
