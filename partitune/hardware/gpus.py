"""One GPU model as everything else sees it: a row of the table, or what a search space says of its own.

Decision: a GPU that no table knows is as good as one that is known: what is said of it stands, what is not said comes
from the card it is `like`, and every figure carries the doubt that its kernels were measured elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.errors import SpecError
from partitune.hardware.generations import Generation
from partitune.hardware.gpu_names import known_name, not_a_gpu
from partitune.hardware.gpu_table import ROWS, Row

GIB = 1 << 30
_MIB = 1 << 20
_SEEN = 0.98  # of what nvidia-smi prints; see gpu_table
_SEEN_AMD = 0.998
_AMD = frozenset({Generation.CDNA2, Generation.CDNA3, Generation.CDNA4, Generation.RDNA})


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
    like: str = ""  # the GPU whose kernels stand for it, where the search space names one
    doubt: str = ""  # what makes figures of it uncertain, as a sentence without its full stop

    def peak_flops_s(self, width: str) -> float:
        """Dense FLOP/s of `bf16`, `fp8` or `fp4` operands."""
        return {"bf16": self.bf16_flops_s, "fp8": self.fp8_flops_s, "fp4": self.fp4_flops_s}[width]


def _of_table(row: Row) -> Gpu:
    if isinstance(row.memory, int):
        share = _SEEN_AMD if row.generation in _AMD else _SEEN
        memory, how = int(row.memory * _MIB * share), f"{share:.1%} of what the vendor's tool prints"
    else:
        memory, how = int(row.memory * GIB), "torch out-of-memory reports"
    return Gpu(
        name=row.name,
        memory_bytes=memory,
        bandwidth_bytes_s=row.gb_s * 1e9,
        bf16_flops_s=row.bf16 * 1e12,
        fp8_flops_s=row.fp8 * 1e12,
        fp4_flops_s=row.fp4 * 1e12,
        source=f"{row.source}; memory: {how}",
        generation=row.generation,
        doubt=row.generation.value.doubt,
    )


#: Every known GPU by its name.
GPUS: dict[str, Gpu] = {row.name: _of_table(row) for row in ROWS}


def gpu(name: str) -> Gpu:
    """The GPU called `name`, as the table, nvidia-smi or rocm-smi spell it.

    Raises:
        SpecError: no such GPU, or several; the message names those that may be meant.
    """
    known = known_name(name)
    if known is None:
        raise not_a_gpu(name)
    return GPUS[known]


def own_gpu(
    name: str,
    *,
    like: str | None = None,
    memory_gib: float | None = None,
    bandwidth_gb_s: float | None = None,
    bf16_tflops: float | None = None,
    fp8_tflops: float | None = None,
    fp4_tflops: float | None = None,
) -> Gpu:
    """A GPU that a search space describes.

    Args:
        name: what to call it; no name of the table, whose figures it would hide.
        like: a GPU of the table whose kernels, links and missing figures stand for it. FP8 and FP4 peaks that are
            missing follow bf16 as they do there; without `like`, as on a chip that has no unit for them.
        memory_gib: what a process on it sees.
        bandwidth_gb_s: of its memory.
        bf16_tflops: dense, with 32-bit accumulation; so are the other two.
        fp8_tflops: of fp8 operands.
        fp4_tflops: of fp4 operands.

    Raises:
        SpecError: a name of the table, an unknown `like`, or a figure missing without one.
    """
    if (known := known_name(name)) is not None:
        raise SpecError(f"name: {name!r} is the table's {known}; allowed: another name, or gpu: {known} alone")
    base = None
    if like is not None:
        try:
            base = gpu(like)
        except SpecError as error:
            raise SpecError(f"like: {str(error).removeprefix('gpu: ')}") from None
    needed = {"memory_gib": memory_gib, "bandwidth_gb_s": bandwidth_gb_s, "bf16_tflops": bf16_tflops}
    missing = [key for key, value in needed.items() if value is None]
    if base is None and missing:
        raise SpecError(f"{name}: {', '.join(missing)} missing; allowed: with it, or with like: a known GPU, as H100")

    def given(value: float | None, unit: float, otherwise: float) -> float:
        return otherwise if value is None else value * unit

    bf16 = given(bf16_tflops, 1e12, base.bf16_flops_s if base else 0.0)
    to_fp8, to_fp4 = (base.fp8_flops_s / base.bf16_flops_s, base.fp4_flops_s / base.fp8_flops_s) if base else (1.0, 1.0)
    fp8 = given(fp8_tflops, 1e12, bf16 * to_fp8)
    kernels = base.name if base else "H200"
    doubt = f"{name} is described in the search space: kernel times are scaled to it from those of {kernels}"
    if base and base.doubt:
        doubt += f", of which {base.doubt}"
    return Gpu(
        name=name,
        memory_bytes=int(given(memory_gib, GIB, base.memory_bytes if base else 0.0)),
        bandwidth_bytes_s=given(bandwidth_gb_s, 1e9, base.bandwidth_bytes_s if base else 0.0),
        bf16_flops_s=bf16,
        fp8_flops_s=fp8,
        fp4_flops_s=given(fp4_tflops, 1e12, fp8 * to_fp4),
        source="the search space",
        generation=base.generation if base else Generation.OTHER,
        like=base.name if base else "",
        doubt=doubt,
    )
