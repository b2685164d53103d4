"""The radix tree against a set of cached pages of tokens, which is what it stands for."""

from __future__ import annotations

import random

import pytest

from partitune.engines.sglang.scheduler.radix_tree import Node, RadixTree, Text, alike
from partitune.simulation.content import Span


def tokens(text: Text) -> list[tuple[int, int]]:
    """A text token by token: owner and place."""
    owners: list[int] = []
    for owner, end in text:
        owners.extend([owner] * (end - len(owners)))
    return list(zip(owners, range(len(owners)), strict=True))


def texts(drawn: random.Random) -> list[Text]:
    """Texts that share their beginnings: each goes on from a place of another."""
    found: list[Text] = [(Span(0, 40),)]
    owners: dict[tuple[int, int, int], int] = {}
    for number in range(12):
        before = found[drawn.randrange(len(found))][: drawn.randint(0, 2)]
        last = before[-1] if before else Span(-1, 0)
        cut = drawn.randint(1, 5)
        owner = owners.setdefault((*last, drawn.randint(0, 2)), len(owners) + 1)
        found.append((*before, Span(owner, last.end + 6 * cut), Span(100 + number, last.end + 6 * cut + 30)))
    return found


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_found_was_put_there_and_not_evicted(page: int, seed: int) -> None:
    drawn = random.Random(seed)
    tree, pool = RadixTree(page), texts(drawn)
    for _ in range(80):
        text = drawn.choice(pool)
        length = drawn.randint(1, text[-1].end) // page * page
        held = [tokens(node.text)[: node.end] for node in below(tree.root)]
        whole = tokens(text)[:length]
        expected = max((common(whole, each) for each in held), default=0) // page * page
        node = tree.match(text, length)
        assert node.end == expected
        assert tokens(node.text)[: node.end] == whole[:expected]
        if drawn.random() < 0.6:
            end, found = tree.insert(text, length)
            assert (end.end, found) == (length, expected)
        elif drawn.random() < 0.5:
            tree.lock(node)
            while tree.evict():
                pass
            assert tree.evictable == 0
            assert sum(each.tokens for each in below(tree.root)) == node.end
            tree.unlock(node)
        assert tree.evictable == sum(each.tokens for each in below(tree.root))


def common(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def below(node: Node) -> list[Node]:
    return [each for child in node.children.values() for each in (child, *below(child))]


def test_texts_are_alike_up_to_where_an_owner_changes() -> None:
    drawn = random.Random(7)
    pool = texts(drawn)
    assert all(alike(one, other) == common(tokens(one), tokens(other)) for one in pool for other in pool)


def test_the_leaf_goes_first_that_was_looked_up_longest_ago() -> None:
    """A split makes the end of a node newer than its beginning; a parent goes after its children."""
    tree = RadixTree(1)
    old, young = (Span(0, 10), Span(1, 30)), (Span(0, 10), Span(2, 20))
    tree.insert(old, 30)
    tree.insert(young, 20)
    tree.match(old, 30)
    assert [tree.evict() for _ in range(4)] == [10, 20, 10, 0]
