"""Is one deployment better than another, or is it noise? Paired ratios, their interval, and the runs they take.

Decision: only pairs count. Runs of two deployments under the same load, one right after the other, share what drifts
(Kalibera and Jones, ISMM 2013), so the logarithms of their ratios are averaged, and Student's t gives the interval:
with the three to ten pairs that a cluster can afford, a bootstrap of so few values is far too sure of itself. What is
claimed needs both: an interval that excludes equality, and a gain above the indifference zone.

Every objective is one more chance to be fooled, so the objectives of a study share one error (weighted Bonferroni:
Dmitrienko and others, Multiple Testing Problems in Pharmaceutical Statistics, 2009): half of it is the first one's,
which names the winner, the rest is divided among the others. However many there are, equal deployments are called
different no more often than with one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from partitune.analysis.comparison import NO_DIFFERENCE, WORSE
from partitune.analysis.figures import percent
from partitune.candidate import Objective

#: Share of intervals that hold the true ratio; a little over 0.95, so that of equal deployments 95 % are called equal.
CONFIDENCE = 0.96
#: Share of true gains that a planned number of runs must find.
POWER = 0.8
#: Most pairs that are ever asked for.
MOST_PAIRS = 1000


@dataclass(frozen=True, slots=True)
class PairedGain:
    """The gain of one deployment over another in one metric, as shares of the other's value; > 0 is better."""

    gain: float
    low: float
    high: float
    pairs: int
    noise: float  # standard deviation of one pair's log ratio
    confidence: float  # share of such intervals that hold the true ratio

    def verdict(self, zone: float) -> str:
        """The fixed words: better with its interval, no difference, or worse."""
        if self.low > 0 and self.gain > zone:
            return f"better by {percent(self.gain)} ({100 * self.low:.1f} to {percent(self.high)})"
        return WORSE if self.high < 0 and self.gain < -zone else NO_DIFFERENCE


def confidences(objectives: int) -> tuple[float, ...]:
    """Of the interval of each of so many objectives, the first one first: all hold together as often as one alone."""
    error = 1 - CONFIDENCE
    return (CONFIDENCE,) if objectives == 1 else (1 - error / 2, *[1 - error / 2 / (objectives - 1)] * (objectives - 1))


def paired_gain(
    objective: Objective, default: Sequence[float], other: Sequence[float], confidence: float = CONFIDENCE
) -> PairedGain | None:
    """Gain of `other` over `default`, run i of one paired with run i of the other; None where nothing can be said.

    That is with fewer than two pairs, or a value that is not above 0.

    Raises:
        ValueError: the runs are not paired.
    """
    from scipy import stats  # a third of a second to import, and only repeated runs need it

    values = [(objective.cost(a), objective.cost(b)) for a, b in zip(default, other, strict=True)]
    if len(values) < 2 or not all(min(abs(a), abs(b)) > 0 and a * b > 0 for a, b in values):
        return None
    # The cost of a metric to be maximised is its negative: more of it is a gain.
    ratios = [math.log(b / a) if a < 0 else math.log(a / b) for a, b in values]
    count = len(ratios)
    mean = fmean(ratios)
    noise = math.sqrt(math.fsum((ratio - mean) ** 2 for ratio in ratios) / (count - 1))
    reach = float(stats.t.ppf((1 + confidence) / 2, count - 1)) * noise / math.sqrt(count)
    return PairedGain(math.expm1(mean), math.expm1(mean - reach), math.expm1(mean + reach), count, noise, confidence)


def pairs_needed(noise: float, gain: float, confidence: float = CONFIDENCE, power: float = POWER) -> int:
    """Pairs after which a true `gain` is found with probability `power`, when single runs scatter by `noise`.

    Both are shares (0.02 is 2 %). The usual n = 2 ((z_a + z_b) noise / gain)² (the variance of a ratio of two runs is
    twice that of one) is too small for few pairs, as their scatter is only estimated: here the power of the t test
    itself is asked, through the noncentral t distribution.

    Raises:
        ValueError: a gain of 0 or less cannot be found.
    """
    from scipy import stats

    if gain <= 0:
        raise ValueError("gain must be above 0")
    shift = math.log1p(gain) / (math.sqrt(2) * noise) if noise > 0 else math.inf
    for pairs in range(2, MOST_PAIRS):
        needed = float(stats.t.ppf((1 + confidence) / 2, pairs - 1))
        if math.isinf(shift) or float(stats.nct.sf(needed, pairs - 1, shift * math.sqrt(pairs))) >= power:
            return pairs
    return MOST_PAIRS


def survivors(objective: Objective, runs: Sequence[Sequence[float]], keep: int) -> list[int]:
    """Indexes of the `keep` finalists that stay, best first by the mean over their runs; ties keep their order.

    A round of successive halving (Karnin, Koren and Somekh, ICML 2013); what was run before counts on. A finalist
    without runs goes.
    """
    means = {i: fmean(map(objective.cost, own)) for i, own in enumerate(runs) if own}
    return sorted(means, key=lambda i: (means[i], i))[:keep]
