"""Orders of unequal stages, against every permutation there is."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from partitune.planning.stage_order import count_orders, launchable_orders


@pytest.mark.parametrize(
    ("kinds", "per_node"),
    [*product(["AAAA", "AAAB", "AABB", "ABAB", "ABCA"], [1, 2, 4]), *product(["AABBCC", "ABCDEF"], [2, 3])],
)
def test_launchable_are_those_that_keep_every_machine_together(kinds: str, per_node: int) -> None:
    nodes = [stage // per_node for stage in range(len(kinds))]
    found = list(launchable_orders(kinds, nodes))
    expected = set()
    for order in permutations(range(len(kinds))):
        machines = [{nodes[stage] for stage in order[i : i + per_node]} for i in range(0, len(kinds), per_node)]
        if all(len(machine) == 1 for machine in machines):
            expected.add(tuple(kinds[stage] for stage in order))
    assert set(found) == expected
    assert len(found) == len(expected)


def test_two_machines_of_four_equal_gpus_have_two_orders_of_seventy() -> None:
    kinds = ["H100"] * 4 + ["A100-80GB"] * 4
    assert list(launchable_orders(kinds, [0] * 4 + [1] * 4)) == [tuple(kinds), tuple(kinds[4:] + kinds[:4])]
    assert count_orders(kinds) == 70
