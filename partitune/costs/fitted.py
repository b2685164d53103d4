"""One formula for every kernel, its fitted constants, and which measured GPU stands in for one that was not measured.

Decision: all operations share `fixed + ((bytes / B)^k + (flops / F)^k)^(1/k)`: a fixed start, then the slower of
reading and computing, joined smoothly. It has no cliffs, rises with both arguments, and four constants an operation can
be fitted by anyone with a table. The knee k says how well reading hides behind computing: 1 adds them, large takes the
larger, below 1 is worse than the sum (expert tiles that are read and padded). Constants are fractions of a GPU's
data-sheet peaks, so a fit on H200 says something about H20 and one on B200 about B300; collectives and state scans do
not follow a peak and are kept absolute. Every answer carries the system it was measured on, so that the cost model can
say what is extrapolated. `fitted_constants.json` is written by benchmarks/fit_costs.py from tables of
aiconfigurator-core 0.12.0 (Apache-2.0, Copyright NVIDIA) and never by hand.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from pydantic import TypeAdapter

from partitune.hardware.gpus import GPUS, Gpu

#: GPU -> measured systems, nearest first, before those of its generation. The first is the GPU itself.
_NEAREST: dict[str, tuple[str, ...]] = {
    "H100": ("h100_sxm", "h200_sxm"),
    "H200": ("h200_sxm", "h100_sxm"),
    "B200": ("b200_sxm", "b300_sxm", "gb200"),
    "B300": ("b300_sxm", "b200_sxm", "gb200"),
    "GB200": ("gb200", "b200_sxm", "b300_sxm"),
    "A100-80GB": ("a100_sxm",),
    "L40S": ("l40s",),
    # Nothing was fitted to these two; their kernels stand in tables of their own.
    "GB300": ("gb300",),
    "RTX-PRO-6000": ("rtx_pro_6000_server",),
}
#: Tried last, for everything.
_ANY = ("h200_sxm", "h100_sxm", "b200_sxm", "a100_sxm")
#: What aiconfigurator-core calls a GPU it has tables of.
SYSTEMS = {name: systems[0] for name, systems in _NEAREST.items()}
_GPU_OF_SYSTEM = {system: name for name, system in SYSTEMS.items()}


@dataclass(frozen=True, slots=True)
class Curve:
    """A fitted operation on one GPU: seconds of (bytes read, FLOPs done)."""

    fixed_s: float
    s_per_byte: float
    s_per_flop: float
    knee: float

    def __call__(self, read_bytes: float, flops: float) -> float:
        """Seconds for one launch that reads `read_bytes` and does `flops`."""
        return self.fixed_s + self.variable_s(read_bytes, flops)

    def variable_s(self, read_bytes: float, flops: float) -> float:
        """The same without the fixed start."""
        reading = read_bytes * self.s_per_byte
        computing = flops * self.s_per_flop
        if reading <= 0.0 or computing <= 0.0:
            return reading + computing
        larger, smaller = (reading, computing) if reading > computing else (computing, reading)
        return larger * math.pow(1.0 + math.pow(smaller / larger, self.knee), 1.0 / self.knee)


def distinct_experts(experts: int, per_token: int, tokens: float) -> float:
    """Expected number of different experts that `tokens` tokens visit when every expert is equally likely."""
    return experts * (1.0 - math.pow(1.0 - per_token / experts, tokens))


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants of one operation on one measured system."""

    fixed_us: float
    bandwidth: float  # fraction of the memory bandwidth; GB/s when absolute
    compute: float  # fraction of the peak; units of 1e9 a second when absolute
    knee: float
    peak: str = "bf16"  # which peak `compute` is a fraction of; "" when absolute

    def curve(self, gpu: Gpu) -> Curve:
        """The curve on `gpu`: absolute constants as they are, fractions of its own peaks otherwise.

        At the peaks nothing starts, and a kernel takes the slower of reading and computing; where there is no peak, it
        keeps the measured rates.
        """
        fixed_s, knee = (0.0, math.inf) if gpu.at_peaks else (self.fixed_us * 1e-6, self.knee)
        if not self.peak:
            return Curve(fixed_s, 1e-9 / self.bandwidth, 1e-9 / self.compute, knee)
        bandwidth, compute = (1, 1) if gpu.at_peaks else (self.bandwidth, self.compute)
        flops_s = gpu.peak_flops_s(self.peak)
        return Curve(fixed_s, 1 / (bandwidth * gpu.bandwidth_bytes_s), 1 / (compute * flops_s), knee)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a curve comes from."""

    operation: str
    system: str
    measured: bool  # on this very GPU


@cache
def fits() -> dict[str, dict[str, Fit]]:
    """All constants: operation -> measured system -> Fit. The file says of each how near it comes as well."""
    text = resources.files("partitune.costs").joinpath("fitted_constants.json").read_text("utf-8")
    return TypeAdapter(dict[str, dict[str, Fit]]).validate_python(json.loads(text)["operations"])


def curve(operation: str, gpu: Gpu) -> tuple[Curve, Origin]:
    """The curve of `operation` on `gpu` from the nearest measured system, and where it comes from."""
    systems = fits()[operation]
    chain = _NEAREST.get(gpu.like or gpu.name, ()) + gpu.generation.value.measured_like + _ANY
    nearest = next((system for system in chain if system in systems), next(iter(systems)))
    own = SYSTEMS.get(gpu.name) == nearest
    fit = systems[nearest] if own else _carried_over(systems[nearest], gpu, nearest)
    return fit.curve(gpu), Origin(operation, nearest, own)


def _carried_over(fit: Fit, gpu: Gpu, system: str) -> Fit:
    """A fit of `system` for a GPU that was not measured.

    What keeps a kernel below its peak is feeding the units, so where a GPU has fewer FLOPs for each byte its kernels
    come closer to its peak, in proportion. H20 has a sixth of H100's: its attention over prompts reaches 0.95 of peak
    where H100's reaches 0.68 (LMSYS 2026-01-15: Qwen3-235B, 128K tokens on four H20 in 55.5 s, which leaves no less).
    """
    if not fit.peak:
        return fit
    measured = GPUS[_GPU_OF_SYSTEM[system]]
    fewer = (gpu.bf16_flops_s / gpu.bandwidth_bytes_s) / (measured.bf16_flops_s / measured.bandwidth_bytes_s)
    return replace(fit, compute=1 - (1 - fit.compute) * min(1.0, fewer))
