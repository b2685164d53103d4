"""Which pool of KV blocks a run needs.

Decision: the simplest that is exact. Where blocks can never run out and no text can be found again, they are not even
counted; that is most of what a search simulates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from partitune.engines.vllm.scheduler.cohort import Cohort, Live
from partitune.engines.vllm.scheduler.group_pool import GroupPool
from partitune.engines.vllm.scheduler.kv_pool import Hit, KvPool
from partitune.engines.vllm.scheduler.prefix_cache import PrefixCache
from partitune.engines.vllm.scheduler.settings import SchedulerSettings
from partitune.simulation.request import Request


class AmplePool(KvPool):
    """A pool that is never short: whoever asks is given blocks, and nobody counts them."""

    ample = True

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.caches = settings.caches_prefixes
        self.growing = 0

    def admit(self, live: Live, hit: Hit, new: int, spare: int) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def missing(self, live: Live, tokens: int) -> int:  # noqa: ARG002
        """Nothing."""
        return 0

    def grow(self, live: Live, tokens: int) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def catch_up(self, turns: Sequence[tuple[Cohort, int]], running: Sequence[Live]) -> None:
        """Nothing was counted."""


def pool_of(settings: SchedulerSettings) -> KvPool:
    """The pool for a model whose groups of layers are as the settings say, whatever the load."""
    caches = settings.caches_prefixes
    if settings.windows or (settings.align_chunks and settings.state_groups) or (caches and settings.full_groups > 1):
        return GroupPool(settings)
    return PrefixCache(settings) if caches else KvPool(settings)


def kv_pool(settings: SchedulerSettings, requests: Sequence[Request], concurrency: int | None) -> KvPool:
    """The pool for a load of which at most `concurrency` requests are outstanding (None: any number)."""
    pool = pool_of(settings)
    if pool.caches and any(request.prefix or request.continues is not None for request in requests):
        return pool
    seats = min(settings.seats, concurrency or len(requests), len(requests))
    needed = pool.watermark
    for tokens, count in sorted(Counter(each.prompt_tokens + each.output_tokens for each in requests).items())[::-1]:
        needed += min(seats, count) * pool.bound(tokens)
        seats -= min(seats, count)
    return AmplePool(settings) if needed <= pool.free else pool
