"""KV blocks: how many a request holds, and whether a few more are left.

Decision: blocks are counted, not named. It never matters which block a request holds, so the pool is one integer and a
request's share follows from its tokens; what free blocks still hold is another matter (prefix_cache.py).

Source: vLLM 0.33.0 `v1/core/kv_cache_manager.py` (allocate_slots) and `kv_cache_interface.py`
(max_admission_blocks_per_request). One simplification: a sliding-window group holds the blocks of its window and of the
tokens in flight rounded up once, where the engine follows each window's exact position (one block less at times).
"""

from __future__ import annotations

from partitune.engines.vllm.scheduler.cohort import Live
from partitune.engines.vllm.scheduler.prefix_cache import Hit, PrefixCache
from partitune.engines.vllm.scheduler.settings import SchedulerSettings


class KvPool:
    """The free blocks of the whole engine."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.free = settings.num_blocks - 1  # the null block is never handed out
        self.watermark = int(settings.watermark * settings.num_blocks)
        self._block = settings.block_size
        self._full = settings.full_groups
        self._state = settings.state_groups
        self._windows = settings.windows
        self._most_in_flight = settings.slots * settings.max_num_batched_tokens
        # Without "align" mode nobody keeps the states of a fixed-state layer, so nothing could be found.
        caches = settings.enable_prefix_caching and (settings.align_chunks or not settings.state_groups)
        self.cache = PrefixCache(settings) if caches else None

    def blocks(self, tokens: int, in_flight: int = 1) -> int:
        """Blocks of one request with `tokens` tokens, of which the last `in_flight` are not yet computed."""
        blocks = -(-tokens // self._block)
        held = self._full * blocks + self._state
        for window in self._windows:
            held += min(blocks, -(-(window - 1 + in_flight) // self._block) + 1)
        return held

    def admission_blocks(self, tokens: int) -> int:
        """Blocks that must be free before a request of `tokens` tokens is admitted."""
        return self.blocks(tokens, self._most_in_flight)

    def adopt(self, live: Live, hit: Hit) -> None:
        """Give `live` the blocks it found in the prefix cache."""
        if self.cache is not None:
            self.cache.adopt(live, hit)
        self.free -= hit.free_blocks
        live.held = hit.blocks

    def hold(self, live: Live, blocks: int) -> None:
        """Give `live` so many blocks in all."""
        self.free += live.held - blocks
        if self.cache is not None:
            self.cache.take(blocks - live.held)
        live.held = blocks

    def release(self, live: Live, cached_tokens: int, *, comes_back: bool) -> None:
        """Take all blocks of `live`; its first `cached_tokens` tokens were cached."""
        if self.cache is None:
            self.free += live.held
        else:
            self.free += self.cache.release(live, cached_tokens, comes_back=comes_back)
        live.held = 0
