"""How many prompt tokens a request reads in one step.

Decision: pure arithmetic on a request and the settings, asked from both ways a step is made and from admission.

Source: vLLM 0.33.0 `v1/core/sched/scheduler.py` (schedule, _mamba_block_aligned_split).
"""

from __future__ import annotations

from partitune.engines.vllm.scheduler.cohort import Live
from partitune.engines.vllm.scheduler.settings import SchedulerSettings


def next_chunk(settings: SchedulerSettings, live: Live, budget: int, threshold: int) -> int:
    """Tokens that `live` reads next within `budget`; `threshold` is the long-prefill one, 0 for none."""
    new = live.to_compute - live.computed
    if 0 < threshold < new:
        new = threshold
    return _aligned(settings, live, min(new, budget))


def _aligned(settings: SchedulerSettings, live: Live, new: int) -> int:
    """Clip a chunk of a hybrid model so that it ends where a state is kept."""
    start, tokens = live.computed, live.to_compute
    prompt_end = max(live.prompt, tokens - 1)
    if not settings.align_chunks or start >= prompt_end:
        return new
    block = settings.block_size
    end = start + new
    if end < prompt_end:
        limit = settings.max_num_batched_tokens
        if settings.long_prefill_token_threshold:
            limit = min(limit, settings.long_prefill_token_threshold)
        aligned = end // block * block
        if aligned > start or block <= limit:
            end = aligned
    stops = [(tokens - 1) // block * block, start + (live.junction - start) // block * block]
    if start % block:
        stops.append((start // block + 1) * block)
    return max(min([stop for stop in stops if start < stop < end], default=end) - start, 0)
