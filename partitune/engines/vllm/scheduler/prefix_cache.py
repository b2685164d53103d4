"""What free KV blocks still hold where every layer keeps every token, and which of it a prompt can take over.

Decision: content is tracked where somebody could ask for it: block by block for the beginnings that requests share, as
one stretch for the rest of a request, which only it can find again after a preemption. Free blocks form one queue that
begins with those that hold nothing; behind them cached content in the order in which it was given back, a request's
last block first. Whoever needs blocks takes them from the front, which is what forgets the oldest content.

Source: vLLM 0.33.0 `v1/core/block_pool.py` (free_blocks, get_new_blocks, touch), `v1/core/kv_cache_manager.py`
(get_computed_blocks, allocate_slots) and `single_type_kv_cache_manager.py` (FullAttentionManager).
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile

from partitune.engines.vllm.scheduler.cohort import Cached, Live, Stretch
from partitune.engines.vllm.scheduler.kv_pool import Hit, KvPool
from partitune.engines.vllm.scheduler.settings import SchedulerSettings


class PrefixCache(KvPool):
    """A pool that is a queue of free blocks and what they hold."""

    caches = True

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self._blank = self.free  # free blocks that hold nothing
        self._queue: deque[Cached | Stretch] = deque()
        self._copies: dict[tuple[int, int], list[Cached]] = {}  # (owner, position) -> copies

    def _hold(self, live: Live, tokens: int) -> None:
        """Let `live` hold the blocks of so many tokens; what new ones held is forgotten."""
        self._take(self.most(tokens) - live.held)
        super()._hold(live, tokens)

    def _take(self, count: int) -> None:
        """Hand out `count` free blocks; negative: take blocks back that hold nothing."""
        self._blank -= count
        while self._blank < 0:
            oldest = self._queue[0]
            if isinstance(oldest, Stretch):
                gone = min(len(oldest.blocks), -self._blank)
                oldest.blocks = oldest.blocks[: len(oldest.blocks) - gone]
                self._blank += gone
                if not oldest.blocks:
                    self._queue.popleft()
                continue
            self._queue.popleft()
            if oldest.stale:
                oldest.stale -= 1
            else:
                oldest.copies.remove(oldest)
                self._blank += 1

    def find(self, live: Live) -> Hit:
        """What a waiting request could take over now, block by block of its prefix and then of its own."""
        most = (live.to_compute - 1) // self._block
        shared = [copies[0] for copies in takewhile(bool, self._places(live)[:most])]
        count = len(shared)
        if count == live.shared_blocks and live.stretches:
            mine = {position for stretch in live.stretches for position in stretch.blocks}
            while count < most and count in mine:
                count += 1
        used = sum(cached.users > 0 for cached in shared)
        return Hit(
            tokens=count * self._block,
            blocks=count,
            free_blocks=count - used,
            shared=shared,
            own=range(len(shared), count),
        )

    def _adopt(self, live: Live, hit: Hit) -> None:
        """Let `live` hold what it found, which nobody can take from it any more."""
        super()._adopt(live, hit)
        for cached in hit.shared:
            if not cached.users:
                cached.stale += 1
            cached.users += 1
        live.shared = hit.shared
        wanted = set(hit.own)
        for stretch in live.stretches:
            if taken := wanted.intersection(stretch.blocks):
                stretch.blocks = [position for position in stretch.blocks if position not in taken]
                wanted -= taken

    def write(self, live: Live, tokens: int) -> None:
        """Let others find the full blocks of the first `tokens` tokens of `live`."""
        end = min(tokens // self._block, live.shared_blocks)
        if len(live.shared) < end:
            places = self._places(live)
            for position in range(len(live.shared), end):
                live.shared.append(Cached(places[position], 1))

    def release(self, live: Live, cached_tokens: int, *, comes_back: bool) -> None:
        """Take everything back from `live`, of which the first `cached_tokens` tokens can be found."""
        self.write(live, cached_tokens)
        own = range(live.shared_blocks, max(cached_tokens // self._block, live.shared_blocks))
        freed = live.held - len(live.shared)
        self._take(len(own) - freed)
        if own:
            stretch = Stretch(own)
            self._queue.append(stretch)
            if comes_back:
                live.stretches.append(stretch)
        for cached in reversed(live.shared):
            cached.users -= 1
            if not cached.users:
                self._queue.append(cached)
                freed += 1
        live.shared = []
        live.held = 0
        self.free += freed

    def _places(self, live: Live) -> list[list[Cached]]:
        """Copies at each position that others may ask for."""
        if live.places is None:
            positions = range(live.shared_blocks)
            live.places = [self._copies.setdefault((live.owner(each), each), []) for each in positions]
        return live.places
