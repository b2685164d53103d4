"""Few launched of many simulated: what is launched first, and how trust in the simulator is lost."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from partitune.analysis.fidelity import fidelity
from partitune.analysis.trial import Screened
from partitune.candidate import Candidate, Measurement, Submission
from partitune.errors import OutOfMemory
from partitune.execution.driver import Driver, run
from partitune.search.proposers.proposer import FirstsProposer, Proposer
from partitune.search.proposers.screened import OPENING as OPENING_ORIGINS
from partitune.search.proposers.screened import ScreenedProposer, layers_moved
from partitune.spec.domains import WholeRange
from tests.contracts.proposer import ProposerContract, walk
from tests.scripted import ScriptedDriver, measurement
from tests.search.test_proposer_optuna import THROUGHPUT, FlatSpace, after_firsts, first

OPENING = (first("default", 4), first("exact", 5), first("seed", 6))


@dataclass(frozen=True)
class Tuned(Driver):
    """Throughput is the number of sequences, or falls with it; above 90 it does not fit."""

    rising: bool = True

    def measure(self, candidate: Candidate) -> Measurement:
        seqs = int(candidate.flags.get("seqs", 50))
        if seqs > 90:
            raise OutOfMemory("stage 0 is short of 1 GiB", excess=1.0)
        return measurement(float(100 + seqs if self.rising else 200 - seqs))


def screened(space: FlatSpace, simulator: Driver, count: int) -> tuple[FirstsProposer, ScreenedProposer]:
    """What a study launches from, and of it what follows the opening."""
    simulated = walk(after_firsts(space), count, simulator)
    stored = [Screened("tiny", submission.label, result) for submission, result in simulated]
    then = ScreenedProposer(after_firsts(space), stored, THROUGHPUT[0], simulator, lambda *_: None)
    return FirstsProposer((one for one, _ in simulated if one.origin in OPENING_ORIGINS), then), then


def launches(proposer: Proposer, cluster: Driver, count: int) -> list[Submission]:
    asked = [submission for submission, _ in walk(proposer, count, cluster)]
    assert len(asked) == count
    return asked


class TestScreenedProposer(ProposerContract):
    size = 3 + 4 * 5

    def make(self) -> Proposer:
        return screened(FlatSpace({"x": (1, 2, 3, 4), "y": ("a", "b", "c", "d", "e")}, OPENING), ScriptedDriver(), 12)[
            0
        ]


def test_the_opening_is_launched_whatever_the_simulator_says_then_its_best() -> None:
    space = FlatSpace({"seqs": WholeRange(low=1, high=100)}, OPENING)
    asked = launches(screened(space, Tuned(), 103)[0], Tuned(), 8)
    assert [proposal.origin for proposal in asked[:3]] == ["default", "exact", "seed"]
    assert [proposal.promoted for proposal in asked] == [False] * 3 + [True] * 5
    assert [proposal.candidate.flags["seqs"] for proposal in asked[3:]] == [90, 89, 88, 87, 86]


@dataclass(frozen=True)
class Scattered(Driver):
    """Two of three settings a share or two above what the simulator says; the engine's default does not fit."""

    share: float

    def measure(self, candidate: Candidate) -> Measurement:
        if candidate.partition == (4,) and not candidate.flags:
            raise OutOfMemory("stage 0 is short of 1 GiB", excess=1.0)
        seqs = int(candidate.flags.get("seqs", 90))
        return measurement((100.0 + seqs) * (1 + self.share * (seqs % 3)))


def test_where_the_default_does_not_fit_the_simulator_keeps_its_say() -> None:
    """Nothing beats the exact plan here: held against it as if it were the default, nothing would promise a gain."""
    opening = (first("default", 4), first("exact", 5))
    space = FlatSpace({"seqs": WholeRange(low=1, high=90)}, opening)
    proposer, then = screened(space, Scattered(0.0), 92)
    asked = launches(proposer, Scattered(0.001), 22)
    assert then.fidelity.tau == pytest.approx(1.0)
    assert (then.fidelity.error or 0) > 0
    assert [proposal.promoted for proposal in asked] == [False] * 2 + [True] * 20


def test_a_simulator_that_orders_the_wrong_way_loses_its_say() -> None:
    space = FlatSpace({"seqs": WholeRange(low=1, high=100)}, OPENING)
    proposer, then = screened(space, Tuned(), 103)
    asked = launches(proposer, Tuned(rising=False), 20)
    # Five promoted ones are measured before the order shows; from then on the measured figures lead.
    assert not any(proposal.promoted for proposal in asked[8:])
    assert then.fidelity.tau is not None
    assert then.fidelity.tau < 0


def test_two_candidates_the_simulator_cannot_tell_apart_are_not_launched_one_after_the_other() -> None:
    def one(partition: tuple[int, ...], throughput: float, origin: str = "sampler") -> Screened:
        return Screened("tiny", f"{origin}:front-0", run(Fixed(throughput), Candidate(partition, {})))

    found = [one((4, 4), 100, "default"), one((3, 5), 120), one((2, 6), 119.9), one((6, 2), 119), one((5, 3), 104)]
    then = ScreenedProposer(after_firsts(FlatSpace({})), found, THROUGHPUT[0], Fixed(1.0), lambda *_: None)
    proposer = FirstsProposer([found[0].submission], then)
    partitions = [proposal.candidate.partition for proposal in iter(proposer.ask, None)]
    assert partitions == [(4, 4), (3, 5), (6, 2), (5, 3), (2, 6)]


@dataclass(frozen=True)
class Fixed(Driver):
    """Every candidate at one figure."""

    throughput: float

    def measure(self, candidate: Candidate) -> Measurement:
        return measurement(self.throughput)


def test_layers_moved_counts_each_layer_once() -> None:
    assert layers_moved((11, 11, 12), (10, 12, 12)) == 1
    assert layers_moved((4, 4), (1, 7)) == 3


def test_a_common_factor_is_bias_and_no_error() -> None:
    found = fidelity([(100.0, 80.0), (110.0, 88.0), (120.0, 96.0), (130.0, 104.0), (140.0, 112.0)])
    assert (found.tau, found.bias, found.error) == pytest.approx((1.0, 0.8, 0.0))
    assert found.trust(0.05) == 1.0


def test_an_error_above_the_promised_gain_takes_trust_away() -> None:
    # log ratios 0, ±0.1, ±0.2 in order: the median distance from the median is 0.1.
    found = fidelity([(100, 100), (200, 221.034), (300, 271.451), (400, 488.561), (500, 409.365)])
    assert abs((found.error or 0) - 0.10517) < 1e-4
    assert found.tau == pytest.approx(0.8)
    assert found.trust(0.2) == 1.0
    assert abs(found.trust(0.05) - 0.05 / 0.10517) < 1e-3
    assert found.trust(0.0) == 0.0


def test_with_few_pairs_nothing_speaks_against_the_simulator() -> None:
    found = fidelity([(1.0, 9.0), (2.0, 8.0), (3.0, 7.0), (4.0, 6.0), (0.0, 1.0)])
    assert (found.pairs, found.tau, found.trust(0.1)) == (4, None, 1.0)
    assert fidelity([]).text.endswith("nothing measured yet")
