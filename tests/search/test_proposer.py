"""A fixed list before another proposer: its order, and that nothing of it comes twice."""

from __future__ import annotations

from partitune.search.proposers.proposer import FirstsProposer, Proposer
from tests.contracts.proposer import ProposerContract, walk
from tests.search.test_proposer_optuna import FlatSpace, after_firsts, first, proposer


class TestFirstsProposer(ProposerContract):
    size = 2 + 3 + 4

    def make(self) -> Proposer:
        space = FlatSpace({"x": (1, 2, 3, 4)}, (first("exact", 4), first("seed", 5), first("seed", 6)))
        return FirstsProposer((first("default", 3), first("default", 2)), after_firsts(space))


def test_default_exact_and_seeds_come_first_and_once() -> None:
    space = FlatSpace(
        {"x": (1, 2)}, (first("default", 2), first("exact", 2), first("seed", 3), first("seed", 2), first("seed", 4))
    )
    asked = walk(after_firsts(space), 3)
    assert [(one.origin, one.candidate.partition) for one, _ in asked] == [
        ("default", (2,)),
        ("seed", (3,)),
        ("seed", (4,)),
    ]


def test_the_engines_default_comes_first_and_the_list_is_worked_out_as_it_is_asked_for() -> None:
    listed = iter([first("default", 2), first("exact", 3)])
    proposed = FirstsProposer(listed, proposer(FlatSpace({"x": (1, 2)}))).ask()
    assert proposed is not None
    assert proposed.origin == "default"
    assert next(listed).origin == "exact"
