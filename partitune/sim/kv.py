"""KV blocks: how many a request holds, and whether a few more are left.

Decision: blocks are counted, not named. Without prefix caching it never matters which block a request holds, so the
pool is one integer and a request's share follows from its tokens.

Source: vLLM 0.33.0 `v1/core/kv_cache_manager.py` (allocate_slots) and `kv_cache_interface.py`
(max_admission_blocks_per_request). One simplification: a sliding-window group holds the blocks of its window and of the
tokens in flight rounded up once, where the engine follows each window's exact position (one block less at times).
"""

from __future__ import annotations

from partitune.sim.inputs import SchedulerSettings


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
