"""One formula for every kernel: a fixed start, then the slower of reading and computing, joined smoothly.

Decision: all operations share `fixed + ((bytes / B)^k + (flops / F)^k)^(1/k)`. It has no cliffs, rises with both
arguments, and four constants an operation can be fitted by anyone with a table (benchmarks/fit_costs.py). The knee k
says how well reading hides behind computing: 1 adds them, large takes the larger, below 1 is worse than the sum
(expert tiles that are read and padded).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


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


def at_most(value: float, limit: float) -> float:
    """The smaller of the two without a kink (power mean of exponent -4); both must be positive or value 0."""
    if value <= 0.0:
        return 0.0
    ratio = value / limit
    return value / math.sqrt(math.sqrt(1.0 + ratio**4))
