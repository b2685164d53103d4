"""The prefixes of prompts whose blocks are named by ids, as in the public traces.

Decision: an id stands for a block and all before it, so that two prompts have as many tokens in common as ids at their
beginnings. A prefix is made only where a prompt parts from another: blocks that always come together are one prefix,
and those that come in one prompt only are none. In sorted order what a prompt has in common with any other is the least
of what neighbours between the two have in common, which finds all of them in one sweep from each side.

Source: the README of Mooncake's `FAST25-release`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from partitune.simulation.request import SharedPrefix


def prefixes(rows: Sequence[Sequence[int]], prompts: Sequence[int], block_tokens: int) -> list[list[SharedPrefix]]:
    """The prefixes of every prompt, for those that are simulated together.

    Args:
        rows: ids of the blocks of every prompt, from its beginning; of a last block also where it is not full.
        prompts: tokens of each.
        block_tokens: tokens of a full block.
    """
    return [
        [SharedPrefix(f"block {ids[start]}", min(end * block_tokens, prompt)) for start, end in pairwise((0, *borders))]
        for ids, prompt, borders in zip(rows, prompts, _borders(rows), strict=True)
    ]


def _borders(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """How many ids each row has in common with others at its beginning: every number above 0 that occurs, ascending."""
    order = sorted(range(len(rows)), key=lambda index: list(rows[index]))
    common = [_common(rows[one], rows[next_one]) for one, next_one in pairwise(order)]
    found: list[set[int]] = [set() for _ in rows]
    for sweep, between in ((order, common), (order[::-1], common[::-1])):
        shared: list[int] = []  # what the row has in common with those passed, ascending
        for index, length in zip(sweep[1:], between, strict=True):
            while shared and shared[-1] > length:
                shared.pop()
            if length and shared[-1:] != [length]:
                shared.append(length)
            found[index].update(shared)
    return [sorted(borders) for borders in found]


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Ids at the beginning of both."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))
