"""SGLang's radix tree: which beginnings of texts are in the KV pool, and which of them is given up first.

Decision: a node is a stretch of a text, given by the text and where the stretch ends; what two texts have in common is
asked of their spans (simulation/content.py), so nothing is ever compared token by token. Recency is a counter, as in
the engine, and moves as there: every look-up of a text touches its whole path and may split a node.

Source: SGLang 0.5.23 `srt/mem_cache/unified_cache/unified_tree_core.py` (_match_prefix_helper, _insert_walk_step,
_split_node, _add_new_node, _is_device_leaf) and `unified_cache/components/full.py` (locks, eviction).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from partitune.simulation.content import Span

Text = Sequence[Span]
_PARENT_OLDER = 1e-5  # a match makes every node a little older than its child


@dataclass(slots=True, eq=False)
class Node:
    """Tokens [parent.end, end) of a text."""

    text: Text
    end: int
    parent: Node | None  # None: the root, or evicted
    children: dict[int, Node] = field(default_factory=dict)  # by the owner of the last token of their first page
    accessed: float = 0.0
    locks: int = 0

    @property
    def tokens(self) -> int:
        """How many tokens it holds."""
        return self.end - (self.parent.end if self.parent else 0)


def alike(one: Text, other: Text) -> int:
    """With how many equal tokens two texts begin."""
    shared = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine.owner != theirs.owner:
            break
        shared = min(mine.end, theirs.end)
        if mine.end != theirs.end:
            break
    return shared


class RadixTree:
    """All cached beginnings; lengths are whole pages, and nothing is evicted that is locked or has children."""

    def __init__(self, page: int) -> None:
        self.root = Node((), 0, None)
        self.evictable = 0  # tokens of nodes without a lock
        self._page = page
        self._ticks = count(1)
        self._leaves: list[tuple[float, int, Node]] = []  # heap; stale entries are skipped
        self._pushes = count(1)

    def match(self, text: Text, length: int) -> Node:
        """Where the longest cached beginning of the first `length` tokens ends."""
        node = self.root
        while node.end < length and (child := self._child(node, text)) is not None:
            shared = self._shared(child, text, length)
            if shared < child.end:
                node = self._split(node, child, shared)
                break
            node = child
        now: float = next(self._ticks)
        step: Node | None = node
        while step is not None:
            step.accessed = now
            now -= _PARENT_OLDER
            step = step.parent
        self._offer(node)
        return node

    def insert(self, text: Text, length: int) -> tuple[Node, int]:
        """Cache the first `length` tokens; where they end, and how many of them were there before."""
        node = self.root
        while node.end < length and (child := self._child(node, text)) is not None:
            self._touch(child)
            shared = self._shared(child, text, length)
            node = self._split(node, child, shared) if shared < child.end else child
        found = node.end
        if found < length:
            leaf = Node(text, length, node)
            node.children[self._key(node, text)] = leaf
            self.evictable += leaf.tokens
            self._touch(leaf)
            node = leaf
        return node, found

    def lock(self, node: Node) -> None:
        """Keep the path to `node` from eviction; a path may be locked more than once."""
        while node.parent is not None:
            if not node.locks:
                self.evictable -= node.tokens
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Undo one lock."""
        while node.parent is not None:
            node.locks -= 1
            if not node.locks:
                self.evictable += node.tokens
                self._offer(node)
            node = node.parent

    def unlocked(self, node: Node) -> int:
        """Tokens on the path to `node` that could be evicted as long as nobody locks it."""
        tokens = 0
        while node.parent is not None:
            tokens += 0 if node.locks else node.tokens
            node = node.parent
        return tokens

    def evict(self) -> int:
        """Give up the leaf that was looked up longest ago; its tokens, 0 when there is none."""
        while self._leaves:
            accessed, _, node = heapq.heappop(self._leaves)
            parent = node.parent
            if parent is not None and self._is_evictable(node) and node.accessed == accessed:
                tokens = node.tokens
                del parent.children[self._key(parent, node.text)]
                node.parent = None
                self.evictable -= tokens
                self._offer(parent)
                return tokens
        return 0

    def _key(self, parent: Node, text: Text) -> int:
        last = parent.end + self._page - 1
        for owner, end in text:
            if last < end:
                return owner
        return -1  # beyond the text

    def _child(self, node: Node, text: Text) -> Node | None:
        return node.children.get(self._key(node, text))

    def _shared(self, node: Node, text: Text, length: int) -> int:
        shared = length if node.text is text else min(alike(node.text, text), length)
        return min(shared // self._page * self._page, node.end)

    def _split(self, parent: Node, node: Node, end: int) -> Node:
        """Cut a node at `end`: the beginning is a new node and the older one of the two."""
        upper = Node(node.text, end, parent, accessed=next(self._ticks), locks=node.locks)
        parent.children[self._key(parent, node.text)] = upper
        upper.children[self._key(upper, node.text)] = node
        node.parent = upper
        self._touch(node)
        return upper

    def _touch(self, node: Node) -> None:
        node.accessed = next(self._ticks)
        self._offer(node)

    def _is_evictable(self, node: Node) -> bool:
        return node.parent is not None and not node.locks and not node.children

    def _offer(self, node: Node) -> None:
        if self._is_evictable(node):
            heapq.heappush(self._leaves, (node.accessed, next(self._pushes), node))
