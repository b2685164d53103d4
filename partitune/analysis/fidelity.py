"""How far the simulator can be trusted on this cluster: its rank agreement and its error, from launched candidates.

Decision: what matters is whether it *orders* candidates as the cluster does, so Kendall's tau leads. A factor common to
all candidates (a GPU that runs 20 % slower than assumed) is no error here: it is reported apart, as bias. Published
simulators are 1 to 11 % off, more than most partitions differ by, so an error above what the simulator promises takes
trust away as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from partitune.analysis.figures import percent

#: Fewest launched candidates from which anything is concluded.
FEWEST_PAIRS = 5
#: Rank agreement from which on the simulator's order is followed.
ENOUGH_TAU = 0.6


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Simulated against measured figures of the same candidates, in the first objective."""

    pairs: int
    tau: float | None  # -1 to 1; None with too few pairs, or where all are equal
    bias: float | None  # measured / simulated, the median
    error: float | None  # median distance of a candidate from that, as a share

    def trust(self, promised: float | None) -> float:
        """0 to 1: how much of what is launched next follows the simulator.

        Args:
            promised: share by which it says the best candidate left beats the default; None where it has no figure of
                the default, so that the ranks alone speak.
        """
        if self.pairs < FEWEST_PAIRS or self.tau is None or self.error is None:
            return 1.0  # nothing speaks against it yet
        ranks = min(max(self.tau / ENOUGH_TAU, 0.0), 1.0)
        return ranks if promised is None or self.error <= promised else ranks * promised / self.error

    @property
    def text(self) -> str:
        """One line for a person."""
        if self.bias is None or self.error is None:
            return "simulator against cluster: nothing measured yet"
        rank = "too few or too alike to rank" if self.tau is None else f"Kendall tau {self.tau:.2f}"
        return (
            f"simulator against cluster: {self.pairs} candidates, {rank}, calibration error {percent(self.error)} "
            f"around a factor of {self.bias:.2f}"
        )


def fidelity(pairs: Sequence[tuple[float, float]]) -> Fidelity:
    """Compare (simulated, measured) values of one metric; pairs that are not above 0 say nothing and are left out."""
    sound = [(simulated, measured) for simulated, measured in pairs if simulated > 0 and measured > 0]
    if not sound:
        return Fidelity(0, None, None, None)
    ratios = [math.log(measured / simulated) for simulated, measured in sound]
    bias = median(ratios)
    error = math.expm1(median(abs(ratio - bias) for ratio in ratios))
    tau = math.nan
    if len(sound) >= FEWEST_PAIRS:
        from scipy import stats  # a third of a second to import

        tau = float(stats.kendalltau(*zip(*sound, strict=True)).statistic)
    return Fidelity(len(sound), None if math.isnan(tau) else tau, math.exp(bias), error)
