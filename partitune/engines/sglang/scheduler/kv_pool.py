"""SGLang's KV pool: tokens held by requests, and prompts that stay behind in the radix cache.

Decision: pages are counted, not named. No two prompts share a prefix, so the radix tree is one chain of nodes per
request, and only the order in which leaves are evicted matters: it decides whether a retracted request still finds its
prompt. Recency is a counter, as in the engine.

Source: SGLang 0.5.23 `srt/mem_cache/unified_radix_cache.py` (checkpoint_into_tree, evict_for_alloc),
`srt/mem_cache/unified_cache/unified_tree_core.py` (insert, match, split), `srt/mem_cache/common.py`
(release_kv_cache), `srt/mem_cache/allocator/`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count

from partitune.engines.sglang.scheduler.settings import SglangSettings
from partitune.errors import OutOfMemory

_PARENT_OLDER = 1e-5  # a match makes every node a little older than its child


@dataclass(slots=True, eq=False)
class Chain:
    """One request's path in the radix tree."""

    nodes: list[list[float]] = field(default_factory=list)  # [tokens, last access], from the root down
    locked: bool = False

    @property
    def tokens(self) -> int:
        """How many tokens the path holds, evicted ones no longer among them."""
        return int(sum(node[0] for node in self.nodes))


class KvTokens:
    """The pool of one engine; every stage's is in step with it."""

    def __init__(self, settings: SglangSettings) -> None:
        self.page = settings.page_size
        self.total = settings.num_tokens // self.page * self.page
        self.free = self.total  # tokens of free pages (`available_size`)
        self.evictable = 0  # tokens of unlocked nodes
        self.keeps = settings.radix_cache
        self._ticks = count(1)
        self._leaves: list[tuple[float, int, Chain]] = []  # heap; stale entries are skipped
        self._pushes = count(1)

    def paged(self, tokens: int) -> int:
        """Tokens of the pages that hold `tokens`."""
        return -(-tokens // self.page) * self.page

    def floor(self, tokens: int) -> int:
        """Tokens of the whole pages among `tokens`."""
        return tokens // self.page * self.page

    # eviction
    def make_room(self, tokens: int) -> bool:
        """Evict the oldest leaves until `tokens` are free; True when they are."""
        while self.free < tokens and self._leaves:
            accessed, _, chain = heapq.heappop(self._leaves)
            if chain.locked or not chain.nodes or chain.nodes[-1][1] != accessed:
                continue
            gone = int(chain.nodes.pop()[0])
            self.free += gone
            self.evictable -= gone
            self._offer(chain)
        return self.free >= tokens

    def _offer(self, chain: Chain) -> None:
        if not chain.locked and chain.nodes:
            heapq.heappush(self._leaves, (chain.nodes[-1][1], next(self._pushes), chain))

    # the tree
    def touch(self, chain: Chain) -> int:
        """Look a path up; tokens found."""
        now: float = next(self._ticks)
        for node in reversed(chain.nodes):
            node[1] = now
            now -= _PARENT_OLDER
        self._offer(chain)
        return chain.tokens

    def lock(self, chain: Chain) -> None:
        """Keep a path from eviction."""
        if not chain.locked:
            chain.locked = True
            self.evictable -= chain.tokens

    def unlock(self, chain: Chain) -> None:
        """Leave a path to eviction, if it was locked."""
        if chain.locked:
            chain.locked = False
            self.evictable += chain.tokens
            self._offer(chain)

    def insert(self, chain: Chain, tokens: int, prompt: int) -> None:
        """Extend a locked path to `tokens` (whole pages), with a node border at the end of the prompt."""
        for node in chain.nodes:
            node[1] = next(self._ticks)
        held = chain.tokens
        if tokens > held:
            chain.nodes.append([tokens - held, next(self._ticks)])
        border = self.floor(prompt)
        if 0 < border < tokens:
            self._split(chain, border)

    def _split(self, chain: Chain, border: int) -> None:
        """Insert the prompt alone: touches its nodes and divides the one that reaches beyond it."""
        end = 0
        for index, node in enumerate(chain.nodes):
            if end >= border:
                return
            node[1] = next(self._ticks)
            inside = border - end
            if node[0] > inside:
                chain.nodes.insert(index, [inside, next(self._ticks)])
                node[0] -= inside
                node[1] = next(self._ticks)
                return
            end += int(node[0])

    # allocation
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
