"""What free KV blocks may still hold: a block that others can find too, and a stretch that only one request can.

Decision: below the requests, which hold both, and below the cache, which orders and forgets them.
"""

from __future__ import annotations

from collections.abc import Sequence


class Cached:
    """One block of a shared prefix in every full-attention group, or the states at one position."""

    __slots__ = ("copies", "size", "stale", "step", "users")

    def __init__(self, copies: list[Cached], size: int, users: int, step: int) -> None:
        self.copies = copies  # all of the same content, oldest first; the first one is found
        self.size = size  # KV blocks
        self.users = users
        self.stale = 0  # times it is in the queue but was taken out again
        self.step = step  # that wrote it
        copies.append(self)


class Stretch:
    """Positions of one request, given back in one go; the last one is forgotten first."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: range) -> None:
        self.blocks: Sequence[int] = blocks
