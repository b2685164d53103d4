"""SGLang's dynamic chunking: later chunks of a long prompt shrink so that each takes as long as the first.

Decision: the engine fits a parabola to times of stage 0 at start-up; here the parabola is the input, and `profiled`
fits it to simulated times of stage 0 in the same way, so that a partition changes the law as it does in the engine.

Source: SGLang 0.5.23 `srt/managers/scheduler_components/dynamic_chunk_sizer.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from partitune.costs.cost_model import StageCosts, prefill

_ALIGN = 64  # smallest grid of a dynamic chunk
_MARGIN = 100  # tokens kept free of the context
_SAMPLES = 128
_FEWEST = 8
_FLAT = 1e-9  # share of the time below which curvature is rounding, not attention


@dataclass(frozen=True, slots=True)
class ChunkLaw:
    """Time of a prompt of l tokens on stage 0: a l^2 + b l + c; c does not matter."""

    a: float  # > 0
    b: float  # >= 0
    smooth: float = 0.75  # SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR: 1 follows the law, 0 stays at the first chunk

    def next_chunk(self, history: int, base: int, page_size: int, max_model_len: int, most: int) -> int | None:
        """Tokens of the chunk after `history`; the first has `base`, none has over `most`. None: `base` again."""
        target = self.a * base * base + self.b * base
        slope = 2 * self.a * history + self.b
        ideal = (-slope + math.sqrt(slope * slope + 4 * self.a * target)) / (2 * self.a)
        if ideal <= 0:
            return None
        grid = max(page_size, _ALIGN)
        size = max(int(base + self.smooth * (ideal - base)), base // 4) // grid * grid
        size = min(max(size, grid), max_model_len - history - _MARGIN, most) // grid * grid
        return size if size >= grid else None

    @classmethod
    def profiled(cls, costs: StageCosts, base: int, longest: int, smooth: float = 0.75) -> ChunkLaw | None:
        """The law the engine would fit to stage 0's times.

        Args:
            costs: stage times.
            base: chunked_prefill_size.
            longest: no sample beyond this (context and KV pool).
            smooth: the smoothing factor.

        Returns:
            None where the engine turns dynamic chunking off (no positive curvature, or too few samples).
        """
        most = min(int(base * 1.25), longest)
        step = max(most // _SAMPLES, 1)
        lengths = [most - index * step for index in range(_SAMPLES) if most - index * step > 0][1:]
        if len(lengths) < _FEWEST:
            return None
        seconds = [costs.compute_s(prefill(length))[0] for length in lengths]
        a, b, _ = np.polyfit(np.array(lengths, dtype=np.float64), np.array(seconds), 2)
        return cls(float(a), max(float(b), 0.0), smooth) if a * most * most > _FLAT * max(seconds) else None
