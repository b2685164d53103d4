"""The sampler behind the Proposer contract: order, learning from what cannot run, ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest

from partitune.candidate import Candidate, FlagValue, Objective, Origin, Outcome, Result, Submission
from partitune.errors import InfeasibleSpace
from partitune.execution.driver import MEMORY_CONSTRAINT
from partitune.search.proposers import sampler as sampler_module
from partitune.search.proposers.optuna import OptunaProposer
from partitune.search.proposers.proposer import FirstsProposer, Proposer
from partitune.search.space import Space
from partitune.spec.domains import Domain, RealRange, WholeRange
from tests.contracts.proposer import ProposerContract, walk
from tests.scripted import measurement

THROUGHPUT = (Objective("output_throughput_tok_s", "maximize"),)


@dataclass
class FlatSpace:
    """Parameters that are their own candidate; points of `impossible` decode to nothing, `merged` to one."""

    parameters: Mapping[str, Domain]
    first: tuple[Submission, ...] = ()
    impossible: frozenset[FlagValue] = frozenset()
    merged: frozenset[FlagValue] = frozenset()
    decoded: list[Mapping[str, FlagValue]] = field(default_factory=list)

    def first_proposals(self) -> Iterator[Submission]:
        yield from self.first

    def decode(self, params: Mapping[str, FlagValue]) -> Submission:
        self.decoded.append(params)
        if not self.impossible.isdisjoint(params.values()):
            raise InfeasibleSpace("no partition fits")
        flags = {name: "same" if value in self.merged else value for name, value in params.items()}
        return Submission(Candidate((4,), flags), Origin.SAMPLER, "front-0")

    def encode(self, candidate: Candidate, plan: str) -> Mapping[str, FlagValue] | None:
        return None if "same" in candidate.flags.values() or not candidate.flags else candidate.flags


def proposer(space: FlatSpace, seed: int = 0, constraints: tuple[str, ...] = ()) -> OptunaProposer:
    return OptunaProposer(cast("Space", space), THROUGHPUT, constraints, seed)


def after_firsts(space: FlatSpace, seed: int = 0) -> FirstsProposer:
    return FirstsProposer(space.first_proposals(), proposer(space, seed))


def first(origin: str, layers: int) -> Submission:
    return Submission(Candidate((layers,)), Origin(origin), "default")


class TestOptunaProposer(ProposerContract):
    size = 3 + 4 * 5 - 5  # the first three, and a grid of which one column cannot exist

    def make(self) -> Proposer:
        numbers: tuple[FlagValue, ...] = (1, 2, 3, 4)
        return after_firsts(
            FlatSpace(
                {"flag": ("a", "b", "c", "d", "e"), "number": numbers},
                (first("default", 2), first("exact", 3), first("seed", 5)),
                impossible=frozenset([3]),
            )
        )


@pytest.mark.parametrize("seed", range(5))
def test_a_region_that_cannot_run_is_learnt(seed: int) -> None:
    """Optuna issue 332: where a failure above x = 60 teaches nothing, 90 of 100 trials land there."""
    sampler = proposer(FlatSpace({"x": RealRange(low=0.0, high=100.0)}), seed)
    tried = []
    for _ in range(100):
        asked = sampler.ask()
        assert asked is not None
        x = float(asked.candidate.flags["x"])
        tried.append(x)
        if x > 60:
            result = Result(asked.candidate, Outcome.INFEASIBLE, "too large", None, {MEMORY_CONSTRAINT: x - 60})
        else:
            result = Result(asked.candidate, Outcome.OK, "", measurement(x))
        sampler.tell(asked, result)
    assert sum(x > 60 for x in tried) < 45
    assert 58 < max(x for x in tried if x <= 60) <= 60


def test_a_limit_that_is_missed_is_learnt_though_it_was_measured() -> None:
    sampler = proposer(FlatSpace({"x": RealRange(low=0.0, high=100.0)}), 1, ("ttft_p99_ms",))
    bad = 0
    for _ in range(80):
        asked = sampler.ask()
        assert asked is not None
        x = float(asked.candidate.flags["x"])
        missed = (x - 60) / 60
        outcome = Outcome.INFEASIBLE if missed > 0 else Outcome.OK
        bad += missed > 0
        result = Result(asked.candidate, outcome, "late", measurement(x), {"ttft_p99_ms": missed})
        sampler.tell(asked, result)
    assert bad < 36


def test_points_without_a_partition_cost_no_trial() -> None:
    space = FlatSpace({"x": (1, 2, 3, 4, 5, 6)}, impossible=frozenset([2, 4, 6]))
    asked = walk(proposer(space), 10)
    assert {one.candidate.flags["x"] for one, _ in asked} == {1, 3, 5}
    assert proposer(FlatSpace({"x": (2, 4)}, impossible=frozenset([2, 4]))).ask() is None


def test_different_points_with_one_candidate_are_measured_once() -> None:
    space = FlatSpace({"x": (1, 2, 3, 4)}, merged=frozenset([2, 3, 4]))
    asked = walk(proposer(space), 10)
    assert sorted(str(one.candidate.flags["x"]) for one, _ in asked) == ["1", "same"]


def test_a_parameter_with_one_value_is_no_reason_to_go_on() -> None:
    assert proposer(FlatSpace({"x": (1,)})).ask() is None


def test_a_space_too_large_to_walk_does_not_end_when_the_sampler_repeats_itself() -> None:
    """Nearly all of its points are one candidate, so a sampler that likes it repeats it."""
    whole = WholeRange(low=0, high=99_999)
    space = FlatSpace({"x": whole, "flag": ("a", "b")}, merged=frozenset(range(30, 100_000)))
    sampler = proposer(space)
    digests = [one.candidate.digest for one, _ in walk(sampler, 2)]
    assert len(set(digests)) == 2  # flag a and flag b
    asked = len(space.decoded)
    sampler.ask()
    assert len(space.decoded) - asked > 100  # it looked further than the sampler's own repetitions
    real = proposer(FlatSpace({"x": RealRange(low=0.0, high=1.0)}))
    assert len(walk(real, 60)) == 60


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.INVALID, Outcome.LOST])
def test_what_broke_is_never_scored_nor_tried_again(outcome: Outcome) -> None:
    sampler = proposer(FlatSpace({"x": (1, 2, 3)}))
    seen = set()
    while (asked := sampler.ask()) is not None:
        assert asked.candidate.digest not in seen
        seen.add(asked.candidate.digest)
        sampler.tell(asked, Result(asked.candidate, outcome, "it broke"))
    assert len(seen) == 3
    assert [trial.values for trial in sampler._study.trials if trial.state.name == "COMPLETE"] == []


def test_a_stored_candidate_outside_the_space_is_known_and_teaches_nothing() -> None:
    sampler = proposer(FlatSpace({"x": (1, 2)}))
    told = first("default", 9)
    sampler.tell(told, Result(told.candidate, Outcome.OK, "", measurement(9.0)))
    assert {one.candidate.flags["x"] for one, _ in walk(sampler, 9)} == {1, 2}


def test_a_long_study_is_resumed_as_it_was_where_its_model_leaves_trials_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "LEARNT", 12)
    space: dict[str, Domain] = {"x": WholeRange(low=0, high=999), "flag": ("a", "b")}

    def make() -> tuple[FirstsProposer, OptunaProposer]:
        flat = FlatSpace(space, (first("default", 2),))
        sampler = proposer(flat, seed=3)
        return FirstsProposer(flat.first, sampler), sampler

    def taught(sampler: OptunaProposer) -> int:
        return sum(trial.state.name == "COMPLETE" for trial in sampler._study.get_trials(deepcopy=False))

    course = walk(make()[0], 50)
    for stored in (11, 12, 13, 25, 40):
        resumed, sampler = make()
        for proposal, result in course[:stored]:
            resumed.tell(proposal, result)
        assert resumed.ask() == course[stored][0]
        assert taught(sampler) == sum("x" in one.candidate.flags for one, _ in course[:stored])


def test_resuming_asks_nothing_again_and_a_finished_study_costs_nothing() -> None:
    whole = walk(proposer(FlatSpace({"x": WholeRange(low=0, high=999)})), 30)
    resumed = proposer(FlatSpace({"x": WholeRange(low=0, high=999)}))
    for proposal, result in whole:
        resumed.tell(proposal, result)
    assert resumed._study.trials == []


def test_a_knob_with_one_value_is_no_obstacle_to_learning() -> None:
    sampler = proposer(FlatSpace({"x": ("b", "c", "d"), "fixed": ("a",)}))
    told = Submission(Candidate((4,), {"x": "c", "fixed": "a"}), Origin.SAMPLER, "front-0")
    sampler.tell(told, Result(told.candidate, Outcome.OK, "", measurement(9.0)))
    sampler.ask()
    assert [trial.params for trial in sampler._study.trials if trial.state.name == "COMPLETE"] == [{"x": "c"}]
