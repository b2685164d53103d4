"""SGLang's KV pool: tokens held by requests, and what stays behind in the radix cache.

Decision: pages are counted, not named: which they are matters to nobody. A request owns the pages of its own that are
not in the tree; what it puts there and finds to be there already is freed at once.

Source: SGLang 0.5.23 `srt/mem_cache/unified_radix_cache.py` (checkpoint_into_tree, evict_for_alloc),
`srt/mem_cache/common.py` (match_kv_cache, release_kv_cache), `srt/mem_cache/allocator/`.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.engines.sglang.scheduler.radix_tree import Node, RadixTree, Text
from partitune.engines.sglang.scheduler.settings import SglangSettings
from partitune.errors import OutOfMemory


@dataclass(slots=True, eq=False)
class Path:
    """What one request has in the radix tree."""

    text: Text = ()
    node: Node | None = None  # where it ends; None: nothing was looked up yet
    locked: bool = False

    @property
    def tokens(self) -> int:
        """How many tokens of the request the tree holds for it."""
        return self.node.end if self.node else 0


class KvTokens:
    """The pool of one engine; every stage's is in step with it."""

    def __init__(self, settings: SglangSettings) -> None:
        self.page = settings.page_size
        self.total = settings.num_tokens // self.page * self.page
        self.free = self.total  # tokens of free pages (`available_size`)
        self.keeps = settings.radix_cache
        self.tree = RadixTree(self.page)

    @property
    def evictable(self) -> int:
        """Tokens of the tree that nobody has locked."""
        return self.tree.evictable

    def paged(self, tokens: int) -> int:
        """Tokens of the pages that hold `tokens`."""
        return -(-tokens // self.page) * self.page

    def floor(self, tokens: int) -> int:
        """Tokens of the whole pages among `tokens`."""
        return tokens // self.page * self.page

    # the tree
    def find(self, path: Path, tokens: int) -> int:
        """Look up the first `tokens` of an unlocked path; how many of them, whole pages, are in the cache."""
        looks = self.keeps and tokens >= self.page
        path.node = self.tree.match(path.text, self.floor(tokens)) if looks else None
        return path.tokens

    def unlocked(self, path: Path) -> int:
        """Tokens that can no longer be evicted once the path is locked."""
        return self.tree.unlocked(path.node) if path.node else 0

    def lock(self, path: Path) -> None:
        """Keep what was found from eviction."""
        if path.node is not None:
            path.locked = True
            self.tree.lock(path.node)

    def let_go(self, path: Path) -> None:
        """The request holds no KV any more: what the tree has of it is left to eviction."""
        if path.node is not None and path.locked:
            self.tree.unlock(path.node)
        path.node, path.locked = None, False

    def insert(self, path: Path, tokens: int, prompt: int) -> None:
        """Put `tokens` (whole pages) into the tree, with a border at the end of the prompt, and lock them."""
        node, found = self.tree.insert(path.text, tokens)
        self.free += max(0, found - path.tokens)  # others have put the same there in the meantime
        border = self.floor(prompt)
        if 0 < border < tokens:
            self.tree.insert(path.text, border)
        self.let_go(path)
        path.node = node
        self.lock(path)

    # allocation
    def make_room(self, tokens: int) -> bool:
        """Evict the oldest leaves until `tokens` are free; True when they are."""
        while self.free < tokens and (gone := self.tree.evict()):
            self.free += gone
        return self.free >= tokens

    def allocate(self, tokens: int, wanted_free: int, what: str) -> None:
        """Take `tokens` (whole pages) after evicting towards `wanted_free`.

        Raises:
            OutOfMemory: not enough pages; the engine's process ends there.
        """
        self.make_room(wanted_free)
        if tokens > self.free:
            raise OutOfMemory(
                f"{what} needs {tokens} KV tokens, {self.free} of {self.total} are free and none can be evicted: "
                "SGLang stops here with 'out of memory'; lower the chunk or the requests in flight, or give it more KV",
                excess=float(tokens - self.free),
            )
        self.free -= tokens
