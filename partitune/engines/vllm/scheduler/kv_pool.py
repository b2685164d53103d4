"""KV blocks of a model whose layers keep every token: how many a request holds, and whether a few more are left.

Decision: blocks are counted, not named. It never matters which block a request holds, so the pool is one integer and a
request's share follows from its tokens. What free blocks still hold is another matter, and a pool that knows it is
another class (prefix_cache.py); so is one whose layers let go of tokens (group_pool.py). In this one nothing is ever
found, and a fixed state takes one block of a request from beginning to end.

Source: vLLM 0.33.0 `v1/core/kv_cache_manager.py` (allocate_slots).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from partitune.engines.vllm.scheduler.cohort import Block, Cached, Cohort, Live
from partitune.engines.vllm.scheduler.settings import SchedulerSettings


@dataclass(slots=True)
class Hit:
    """What a prompt finds in free blocks, and in those of requests with the same prefix."""

    tokens: int = 0
    blocks: int = 0  # KV blocks it need not allocate
    free_blocks: int = 0  # those of them that count as free until it takes them
    shared: list[Cached] = field(default_factory=list)
    own: range = field(default=range(0))
    rows: list[list[tuple[Block, ...] | None]] = field(default_factory=list)  # a row a kind, where groups differ
    junction: int = 0  # tokens that would have been found but for windows and states


_NOTHING = Hit()


class KvPool:
    """The free blocks of the whole engine, whose content is lost."""

    caches = False  # whether content can be found again
    ample = False  # whether blocks never run out, so that nobody needs to ask for them
    trims: tuple[int, ...] = ()  # windows (tokens) behind which a running request gives blocks back
    trimming = 0  # blocks that it gives back at most as its windows leave one behind

    def __init__(self, settings: SchedulerSettings) -> None:
        self.lacking = 0  # blocks that the last newcomer lacked, where it was they that it lacked
        self.free = settings.num_blocks - 1  # the null block is never handed out
        self.watermark = int(settings.watermark * settings.num_blocks)
        self._block = settings.block_size
        self._full = settings.full_groups
        self.growing = settings.full_groups  # blocks that a request takes at most as it enters a new one
        self._fixed = 0 if settings.align_chunks else settings.state_groups
        self._reserves = settings.reserve_full_isl
        self._slots = settings.slots

    def most(self, tokens: int) -> int:
        """Blocks that one request of `tokens` tokens holds at most, alone in the engine."""
        return self._full * -(-tokens // self._block) + self._fixed

    def bound(self, tokens: int) -> int:
        """Blocks that a request of `tokens` tokens can never exceed; some regimes schedule past its last token."""
        return self.most(tokens + self._slots + 1)

    def begin_step(self) -> None:
        """A step is about to be filled."""

    def find(self, live: Live) -> Hit:  # noqa: ARG002  (for a pool that caches)
        """What a waiting request could take over now; its last token is always computed."""
        return _NOTHING

    def admit(self, live: Live, hit: Hit, new: int, spare: int) -> bool:
        """Give a waiting request what it found and the blocks of its first `new` tokens.

        Returns:
            False, and nothing is given, when these or those of its whole prompt would leave fewer than `spare` free.
        """
        free = self.free - hit.free_blocks - spare
        end = hit.tokens + new
        if self._reserves and self.most(live.to_compute) - hit.blocks > free:
            return False
        if self.most(end) - hit.blocks > free:
            return False
        self._adopt(live, hit)
        self._hold(live, end)
        self.write(live, end)
        return True

    def _adopt(self, live: Live, hit: Hit) -> None:
        self.free -= hit.free_blocks
        live.held = hit.blocks

    def write(self, live: Live, tokens: int) -> None:
        """What the first `tokens` tokens of `live` fill can be found from now on."""

    def missing(self, live: Live, tokens: int) -> int:
        """Blocks that `live` lacks to have `tokens` tokens; fewer where it gives some back first."""
        return max(0, self.most(tokens) - live.held)

    def grow(self, live: Live, tokens: int) -> bool:
        """Let a running request have `tokens` tokens in all; False, and it gets nothing, when blocks run out."""
        if self.missing(live, tokens) > self.free:
            return False
        self._hold(live, tokens)
        if live.reading:
            self.write(live, tokens)
        return True

    def _hold(self, live: Live, tokens: int) -> None:
        blocks = self.most(tokens)
        self.free += live.held - blocks
        live.held = blocks

    def release(self, live: Live, cached_tokens: int, *, comes_back: bool) -> None:  # noqa: ARG002
        """Take all blocks of `live`; its first `cached_tokens` tokens were cached, and it may want them again."""
        self.free += live.held
        live.held = 0

    def catch_up(self, turns: Sequence[tuple[Cohort, int]], running: Sequence[Live]) -> None:  # noqa: ARG002
        """Give everyone the blocks of rounds that were skipped: cohorts in turn, and how often each was scheduled."""
        for cohort, _ in turns:
            for live in cohort.members:
                self._hold(live, live.context)
