"""KV blocks: how many a request holds, and whether a few more are left.

Decision: blocks are counted, not named. It never matters which block a request holds, so the pool is one integer and a
request's share follows from its tokens. What free blocks still hold is another matter, and a pool that knows it is
another class (prefix_cache.py); in this one nothing is ever found.

Source: vLLM 0.33.0 `v1/core/kv_cache_manager.py` (allocate_slots) and `kv_cache_interface.py`
(max_admission_blocks_per_request). One simplification: a sliding-window group holds the blocks of its window and of the
tokens in flight rounded up once, where the engine follows each window's exact position (one block less at times).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from partitune.engines.vllm.scheduler.cohort import Cached, Live
from partitune.engines.vllm.scheduler.settings import SchedulerSettings


@dataclass(slots=True)
class Hit:
    """What a prompt finds in free blocks, and in those of requests with the same prefix."""

    tokens: int = 0
    blocks: int = 0  # KV blocks it need not allocate
    free_blocks: int = 0  # those of them that count as free until it takes them
    shared: list[Cached] = field(default_factory=list)
    own: range = field(default=range(0))
    states: Cached | None = None
    junction: int = 0  # tokens that would have been found but for the states


_NOTHING = Hit()


class KvPool:
    """The free blocks of the whole engine, whose content is lost."""

    caches = False  # whether content can be found again

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

    def find(self, live: Live) -> Hit:  # noqa: ARG002  (for a pool that caches)
        """What a waiting request could take over now; its last token is always computed."""
        return _NOTHING

    def adopt(self, live: Live, hit: Hit) -> None:
        """Give `live` the blocks it found; it holds none yet."""
        self.free -= hit.free_blocks
        live.held = hit.blocks

    def hold(self, live: Live, blocks: int) -> None:
        """Let `live` hold so many blocks in all, more or fewer than now; they must be free."""
        self.free += live.held - blocks
        live.held = blocks

    def write(self, live: Live, new: int, step: int) -> None:
        """In `step` the next `new` tokens of `live` got their blocks: what they fill can be found from now on."""

    def release(self, live: Live, cached_tokens: int, *, comes_back: bool) -> None:  # noqa: ARG002
        """Take all blocks of `live`; its first `cached_tokens` tokens were cached, and it may want them again."""
        self.free += live.held
        live.held = 0
