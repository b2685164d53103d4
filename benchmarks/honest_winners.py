"""How often the final claims what is not there, and how often it finds what is.

Run: python -m benchmarks.honest_winners

Decision: the whole procedure is judged, not the test statistic alone. Every study measures 40 deployments once each, in
noise, and the best of them go to the final, exactly the situation in which a single figure deceives.
"""

from __future__ import annotations

import math

import numpy as np

from partitune.analysis.comparison import NO_DIFFERENCE, gain
from partitune.analysis.final import Final, FinalRun, most_runs
from partitune.analysis.significance import confidences, paired_gain, pairs_needed
from partitune.candidate import Objective, Outcome

THROUGHPUT = Objective("output_throughput_tok_s", "maximize")
ZONE = 0.01
STUDIES = 1000
#: Finals of equal deployments: the share called different is small.
FINALS = 5000
TRIALS = 40


def verdict(
    random: np.random.Generator, truth: np.ndarray, noise: float, finalists: int, pairs: int
) -> tuple[str, str]:
    """What the final says of one study, and what the best single run would have said."""

    def measured(trial: int) -> float:
        return float(truth[trial] * np.exp(random.normal(0, noise)))

    trials = [measured(trial) for trial in range(len(truth))]
    best = sorted(range(1, len(truth)), key=lambda trial: -trials[trial])[:finalists]
    naive = "better" if gain(THROUGHPUT, trials[0], trials[best[0]]) > ZONE else NO_DIFFERENCE
    one = Final(THROUGHPUT, 0, {trial: trials[trial] for trial in best}, pairs)
    done: dict[FinalRun, float | Outcome] = {}
    while due := one.standing(done)[1]:
        done |= {run: measured(run.trial) for run in due}
    runs = one.measured_pairs(done)
    default, winner = (
        [value for run in side if isinstance(value := done[run], float)] for side in zip(*runs, strict=True)
    )
    found = paired_gain(THROUGHPUT, default, winner)
    return (found.verdict(ZONE) if found else NO_DIFFERENCE), naive


def share(truth: np.ndarray, noise: float, finalists: int, pairs: int, wanted: str) -> tuple[float, float]:
    """Share of studies whose final, and whose best single run, say `wanted`."""
    random = np.random.default_rng(20261130)
    said = [verdict(random, truth, noise, finalists, pairs) for _ in range(STUDIES)]
    return (
        sum(final.startswith(wanted) for final, _ in said) / STUDIES,
        sum(naive.startswith(wanted) for _, naive in said) / STUDIES,
    )


def called_different(objectives: int, shared: float, pairs: int, noise: float) -> float:
    """Share of finals of equal deployments in which any of so many objectives is called better or worse.

    `shared` is the correlation of the objectives: figures of one run rise and fall together.
    """
    random = np.random.default_rng(20261201)
    different = 0
    for _ in range(FINALS):
        common, own = random.normal(0, noise, (2, pairs, 1)), random.normal(0, noise, (2, pairs, objectives))
        default, other = np.exp(math.sqrt(shared) * common + math.sqrt(1 - shared) * own)
        paired = (
            paired_gain(THROUGHPUT, default[:, index].tolist(), other[:, index].tolist(), confidence)
            for index, confidence in enumerate(confidences(objectives))
        )
        different += any(pair is not None and pair.verdict(ZONE) != NO_DIFFERENCE for pair in paired)
    return different / FINALS


def main() -> None:
    """Print the table."""
    print(f"{STUDIES} studies each of {TRIALS} trials; simulated noise, fixed seed")
    equal = np.full(TRIALS, 100.0)
    for noise in (0.02, 0.10):
        final, naive = share(equal, noise, 4, 5, NO_DIFFERENCE)
        print(
            f"all equal, {100 * noise:.0f} % noise: called equal in {100 * final:.1f} % of the finals, "
            f"in {100 * naive:.1f} % by single runs"
        )
    for shared in (0.0, 0.5, 0.95):
        shares = ", ".join(
            f"{100 * called_different(count, shared, 5, 0.05):.1f} % with {count}" for count in (1, 2, 4, 6)
        )
        print(f"equal, objectives correlated by {shared:g}: called different in {shares} objectives")
    for count in (1, 2, 4, 6):
        first = confidences(count)[0]
        print(f"pairs that find 5 % in 2 % noise by the first of {count} objectives: {pairs_needed(0.02, 0.05, first)}")
    pairs = pairs_needed(0.02, 0.05)
    alone, _ = share(np.array([100.0, 105.0]), 0.02, 1, pairs, "better")
    print(f"one trial better by 5 %, 2 % noise: found in {100 * alone:.1f} % with the {pairs} pairs the rule asks for")
    one_better = np.append(equal, 105.0)
    for finalists in (4, 8):
        final, _ = share(one_better, 0.02, finalists, pairs, "better")
        print(
            f"the same among {TRIALS} equal ones: found in {100 * final:.1f} % with {finalists} finalists "
            f"({most_runs(finalists, pairs)} starts)"
        )


if __name__ == "__main__":
    main()
