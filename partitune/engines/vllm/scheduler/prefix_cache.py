"""What free KV blocks still hold, and which of it a prompt can take over.

Decision: content is tracked where somebody could ask for it: block by block for prefixes that requests share, as one
stretch for the rest of a request, which only it can find again after a preemption. Free blocks form one queue that
begins with those that hold nothing; behind them cached content in the order in which it was given back, a request's
last block first. Whoever needs blocks takes them from the front, which is what forgets the oldest content.

Source: vLLM 0.33.0 `v1/core/block_pool.py` (free_blocks, get_new_blocks, touch), `v1/core/kv_cache_manager.py`
(get_computed_blocks, allocate_slots) and `single_type_kv_cache_manager.py`. Exact for models of full attention.
Simplified for hybrids: the blocks of one position are forgotten in all full-attention groups together, and states and
windows are kept at the two positions that the engine's default retention keeps (the prompt's last block border, and
where a longer prefix than the states' was found), counted as free from the moment they are written.
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
        self._keeps_states = settings.keeps_states
        self._state_size = settings.state_groups // 2  # "align" mode works on two states, one is kept
        self._reach = [-(-(window - 1) // self._block) for window in settings.windows]  # blocks a window sees at most
        self._queue: deque[Cached | Stretch] = deque()
        self._groups: dict[str, list[list[Cached]]] = {}  # group -> position -> copies
        self._states: dict[tuple[str, int], list[Cached]] = {}  # (group or request, positions before) -> copies

    def hold(self, live: Live, blocks: int) -> None:
        """Let `live` hold so many blocks in all; what new ones held is forgotten."""
        self._take(blocks - live.held)
        super().hold(live, blocks)

    def _take(self, count: int) -> None:
        """Hand out `count` free blocks; negative: take blocks back that hold nothing."""
        self._blank -= count
        while self._blank < 0:
            oldest = self._queue[0]
            if isinstance(oldest, Stretch):
                gone = min(len(oldest.blocks), -(self._blank // self._full))
                oldest.blocks = oldest.blocks[: len(oldest.blocks) - gone]
                self._blank += gone * self._full
                if not oldest.blocks:
                    self._queue.popleft()
                continue
            self._queue.popleft()
            if oldest.stale:
                oldest.stale -= 1
            else:
                oldest.copies.remove(oldest)
                self._blank += oldest.size

    def find(self, live: Live) -> Hit:
        """What a waiting request could take over now, block by block of its prefix and then of its own."""
        most = (live.to_compute - 1) // self._block
        shared = [copies[0] for copies in takewhile(bool, self._positions(live)[:most])]
        count = len(shared)
        if count == live.shared_blocks and live.stretches:
            mine = {position for stretch in live.stretches for position in stretch.blocks}
            while count < most and count in mine:
                count += 1
        hit = Hit()
        if self._keeps_states:
            longest = count
            while count and not self._states.get((self._owner(live, count), count)):
                count -= 1
            if count < longest:
                hit.junction = longest * self._block
            if count:
                hit.states = self._states[self._owner(live, count), count][0]
        hit.shared = shared[:count]
        hit.own = range(len(hit.shared), count)
        hit.tokens = count * self._block
        hit.blocks = count * self._full
        used = sum(cached.users > 0 for cached in hit.shared)
        hit.free_blocks = (count - used) * self._full
        return hit

    def adopt(self, live: Live, hit: Hit) -> None:
        """Let `live` hold what it found, which nobody can take from it any more."""
        super().adopt(live, hit)
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
        if hit.states is not None:
            hit.states.stale += 1
            self._queue.append(hit.states)

    def write(self, live: Live, new: int, step: int) -> None:
        """Let others find the full blocks of the next `new` tokens of `live`, which got their blocks in `step`."""
        positions = self._positions(live)
        end = live.computed + new
        for position in range(len(live.shared), min(end // self._block, live.shared_blocks)):
            live.shared.append(Cached(positions[position], self._full, 1, step))
        if self._keeps_states:
            self._keep_states(live, end, step)

    def _keep_states(self, live: Live, end: int, step: int) -> None:
        start, last = live.computed, (live.prompt - 1) // self._block
        kept = {last, live.junction // self._block}
        narrowest = min(self._reach, default=0)
        if not self._state_size and last <= narrowest:
            kept.update(range(1, last))  # the whole prompt lies in every window
        for count in sorted(kept):
            copies = self._states.setdefault((self._owner(live, count), count), [])
            if copies and start == count * self._block and count == last:
                copies[0].step = step  # the engine names it again with the chunk that goes on from it
            size = self._state_size + (len(self._reach) if count <= narrowest else sum(self._reach))
            if start < count * self._block <= end and not copies and self.free >= size:
                self._take(size)
                self._queue.append(Cached(copies, size, 0, step))

    def release(self, live: Live, cached_tokens: int, *, comes_back: bool) -> None:
        """Take everything back from `live`, of which the first `cached_tokens` tokens can be found."""
        full = cached_tokens // self._block
        own = range(live.shared_blocks, max(full, live.shared_blocks))
        freed = live.held - self._full * len(live.shared)
        self._take(self._full * len(own) - freed)
        if own:
            stretch = Stretch(own)
            self._queue.append(stretch)
            if comes_back:
                live.stretches.append(stretch)
        for cached in reversed(live.shared):
            cached.users -= 1
            if not cached.users:
                self._queue.append(cached)
                freed += self._full
        live.shared = []
        live.held = 0
        self.free += freed

    def _positions(self, live: Live) -> list[list[Cached]]:
        prefix = live.request.prefix
        if not prefix:
            return []
        positions = self._groups.setdefault(prefix[0].group, [])
        positions.extend([] for _ in range(live.shared_blocks - len(positions)))
        return positions[: live.shared_blocks]

    def _owner(self, live: Live, count: int) -> str:
        """Whose content `count` blocks from the start are."""
        prefix = live.request.prefix
        if prefix and count <= live.shared_blocks:
            return f"group {prefix[0].group}"
        return f"request {live.request.id}"
