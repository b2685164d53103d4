"""Which waiting requests join the running ones in a step.

Decision: apart from the scheduler, because everything that makes a newcomer differ from a running request meets here:
what it finds in the prefix cache, the blocks of its whole prompt, the watermark, stale tokens after a preemption.

Source: vLLM 0.33.0 `v1/core/sched/scheduler.py` (schedule, the loop over WAITING) and `v1/core/kv_cache_manager.py`
(get_computed_blocks, allocate_slots, record_prefix_cache_stats).
"""

from __future__ import annotations

from collections.abc import Sequence

from partitune.engines.vllm.scheduler.cohort import Cohort, Live
from partitune.engines.vllm.scheduler.queues import Limits, Queues


def admit(queues: Queues, limits: Limits, due: Sequence[Cohort]) -> list[tuple[Live, int]]:
    """Move requests from waiting to running while tokens, seats and blocks last, beside the cohorts that decode.

    Returns:
        Each with the prompt tokens it reads in this step, which are taken off `limits`.
    """
    settings, waiting, pool = queues.settings, queues.waiting, queues.pool
    chunks: list[tuple[Live, int]] = []
    skipped: list[Live] = []
    while waiting and limits.tokens > 0 and len(queues.running) < settings.seats:
        live = waiting[0]
        if live.last_step > queues.delivered_step:  # preempted, with tokens still in flight
            live.deferred = True
            skipped.append(waiting.popleft())
            continue
        for _, owner in live.texts[:-1] if pool.caches else ():
            if owner in queues.continued:
                _write(queues, queues.continued[owner], due)
        hit = pool.find(live)
        pool.lacking = 0
        live.computed, live.junction = hit.tokens, hit.junction
        new = live.to_compute - hit.tokens
        if limits.no_prompts and new > 1:
            break
        if 0 < limits.threshold < new:
            new = limits.threshold
        if not settings.enable_chunked_prefill and new > limits.tokens:
            break
        new = queues.next_chunk(live, limits)
        if new == 0 or not pool.admit(live, hit, new, pool.watermark if queues.running else 0):
            if hit.tokens and (settings.align_chunks or not settings.reserve_full_isl):
                queues.quiet_steps = 0  # it needs less as soon as less of its prompt is found
            break
        queues.running.append(waiting.popleft())
        queues.reading.append(live)
        live.reading = True
        live.deferred = False
        if live.continued:
            queues.continued[live.texts[-1][1]] = live
        limits.reads |= hit.tokens < live.to_compute - 1
        if pool.caches and not live.preempted:
            queues.prefix_queries += live.to_compute
            queues.prefix_hits += hit.tokens
        chunks.append((live, new))
        limits.tokens -= new
    waiting.extendleft(reversed(skipped))
    return chunks


def _write(queues: Queues, writer: Live, due: Sequence[Cohort]) -> None:
    """Let others find what a running request has written by now, in this very step all whose tokens are back."""
    in_step = writer.cohort is not None and writer.cohort in due
    queues.pool.write(writer, writer.prompt + writer.delivered if in_step else writer.cached_tokens)
