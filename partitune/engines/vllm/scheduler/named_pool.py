"""Free KV blocks that have names: which content they still hold, and in which order it is forgotten.

Decision: a block gets a name when somebody could find its content; the others are alike and counted. Free blocks
without content are handed out first, then those with some in the order in which they were given back. What a request
leaves that nobody will ask for any more only takes its place in that order.

Source: vLLM 0.33.0 `v1/core/block_pool.py` (get_new_blocks, free_blocks, cache_full_blocks, get_cached_block).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from partitune.engines.vllm.scheduler.cohort import Block, Live
from partitune.engines.vllm.scheduler.kinds import Kind
from partitune.engines.vllm.scheduler.kv_pool import KvPool
from partitune.engines.vllm.scheduler.settings import SchedulerSettings

UNNAMED: tuple[Block, ...] = ()  # held blocks whose content nobody can find
OWN = (Block((-1, -1, -1)),)  # held blocks whose content only this request can find, once it was preempted


@dataclass(slots=True, eq=False)
class Remains:
    """Free blocks of a text that nobody will ask for any more."""

    count: int


class NamedPool(KvPool):
    """A pool whose blocks are found by what they hold."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.caches = settings.caches_prefixes
        self._blank = self.free
        self._queue: OrderedDict[Block | Remains, None] = OrderedDict()  # free blocks whose content is kept
        self._known: dict[tuple[int, int, int], list[Block]] = {}  # (group, owner, position) -> copies
        self._new_states: set[tuple[int, int, int]] = set()  # named in this very step

    def begin_step(self) -> None:
        """States named in the step before can be found from now on."""
        if self._new_states:
            self._new_states.clear()

    def _copies(self, kind: Kind, owner: int, position: int) -> tuple[Block, ...]:
        """The oldest copy in each group of the block at `position` of a text; none where one group has none."""
        blocks = []
        for group in kind.groups:
            if not (copies := self._known.get((group, owner, position))):
                return ()
            blocks.append(copies[0])
        return tuple(blocks)

    def _named(self, live: Live, kind: Kind, position: int) -> tuple[Block, ...]:
        """Blocks that can be found from now on, states from the next step on."""
        owner = live.owner(position)
        blocks = tuple([Block((group, owner, position), 1) for group in kind.groups])
        for block in blocks:
            self._known.setdefault(block.key, []).append(block)
        if kind.state:
            self._new_states.add(blocks[0].key)
        return blocks

    def _take(self, count: int) -> None:
        """Hand out so many free blocks: first those without content, then the oldest, whose content is forgotten."""
        self.free -= count
        self._blank -= count
        while self._blank < 0:
            oldest = next(iter(self._queue))
            if isinstance(oldest, Remains):
                gone = min(oldest.count, -self._blank)
                oldest.count -= gone
                self._blank += gone
                if not oldest.count:
                    del self._queue[oldest]
                continue
            del self._queue[oldest]
            copies = self._known[oldest.key]
            copies.remove(oldest)
            if not copies:
                del self._known[oldest.key]
            self._blank += 1

    def _give(self, kind: Kind, row: Sequence[tuple[Block, ...] | None]) -> None:
        """Take a part of a row back, its last block first, group after group."""
        unnamed, own = kind.count * row.count(UNNAMED), row.count(OWN)
        self._blank += unnamed
        self.free += unnamed + kind.count * own
        named = [entry for entry in reversed(row) if entry and entry is not OWN]
        if own and not named:
            self._queue[Remains(kind.count * own)] = None
        for number in range(kind.count if named else 0):
            if own:
                self._queue[Remains(own)] = None
            for entry in named:
                block = entry[number]
                block.users -= 1
                if not block.users:
                    self._queue[block] = None
                    self.free += 1
