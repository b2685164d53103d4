"""Which waiting requests join the running ones in a step.

Decision: apart from the scheduler, because everything that makes a newcomer differ from a running request meets here:
what it finds in the prefix cache, the blocks of its whole prompt, the watermark, stale tokens after a preemption.

Source: vLLM 0.33.0 `v1/core/sched/scheduler.py` (schedule, the loop over WAITING) and `v1/core/kv_cache_manager.py`
(get_computed_blocks, allocate_slots, record_prefix_cache_stats).
"""

from __future__ import annotations

from partitune.engines.vllm.scheduler.cohort import Live
from partitune.engines.vllm.scheduler.kv_pool import Hit
from partitune.engines.vllm.scheduler.queues import Limits, Queues


def admit(queues: Queues, limits: Limits) -> list[tuple[Live, int]]:
    """Move requests from waiting to running while tokens, `max_num_seqs` and blocks last.

    Returns:
        Each with the prompt tokens it reads in this step, which are taken off `limits`.
    """
    settings, waiting, pool = queues.settings, queues.waiting, queues.pool
    chunks: list[tuple[Live, int]] = []
    skipped: list[Live] = []
    while waiting and limits.tokens > 0 and len(queues.running) < settings.max_num_seqs:
        live = waiting[0]
        if live.last_step > queues.delivered_step:  # preempted, with tokens still in flight
            live.deferred = True
            skipped.append(waiting.popleft())
            continue
        hit = pool.find(live)
        live.computed, live.junction = hit.tokens, hit.junction
        new = live.to_compute - hit.tokens
        if limits.no_prompts and new > 1:
            break
        if 0 < limits.threshold < new:
            new = limits.threshold
        if not settings.enable_chunked_prefill and new > limits.tokens:
            break
        new = queues.next_chunk(live, limits)
        if new == 0 or not _blocks_for(queues, live, hit, new):
            if hit.tokens and (settings.align_chunks or not settings.reserve_full_isl):
                queues.quiet_steps = 0  # it needs less as soon as less of its prompt is found
            break
        queues.running.append(waiting.popleft())
        queues.reading.append(live)
        live.reading = True
        live.deferred = False
        if pool.caches and not live.preempted:
            queues.prefix_queries += live.to_compute
            queues.prefix_hits += hit.tokens
        chunks.append((live, new))
        limits.tokens -= new
    waiting.extendleft(reversed(skipped))
    return chunks


def _blocks_for(queues: Queues, live: Live, hit: Hit, new: int) -> bool:
    """Give `live` the blocks of its first chunk; False when they, or those of its whole prompt, are not free."""
    settings, pool = queues.settings, queues.pool
    if hit.states is not None and settings.align_chunks and hit.states.step == queues.step:
        return False  # states written in this very step
    free = pool.free - hit.free_blocks - (pool.watermark if queues.running else 0)
    if settings.reserve_full_isl and pool.admission_blocks(live.to_compute) - hit.blocks > free:
        return False
    blocks = pool.blocks(hit.tokens + new, new)
    if blocks - hit.blocks > free:
        return False
    if hit.tokens:
        pool.adopt(live, hit)
    pool.hold(live, blocks)
    pool.write(live, new, queues.step)
    return True
