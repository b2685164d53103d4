"""From a deployment of vLLM to the settings of its simulated scheduler.

Decision: defaults and KV groups come from `engines.vllm`; this module only says which flag is which setting.
"""

from __future__ import annotations

from collections import Counter

from partitune.engines.deployment import Deployment
from partitune.engines.memory import KvPlan
from partitune.engines.vllm.cuda_graphs import capture_sizes
from partitune.engines.vllm.defaults import effective_knobs
from partitune.engines.vllm.kv_pages import cache_model
from partitune.engines.vllm.kv_planning import Cache, group_layers
from partitune.engines.vllm.model_runner import regime
from partitune.engines.vllm.scheduler.inputs import SchedulerSettings, SchedulingPolicy


def vllm_settings(deployment: Deployment, plan: KvPlan) -> SchedulerSettings:
    """The scheduler of this start.

    Raises:
        SpecError: the engine refuses the combination.
    """
    flags = effective_knobs(deployment)
    chosen = regime(deployment)
    model = cache_model(deployment)
    caches = [group.caches[0] for group in group_layers(model)]
    kinds = Counter(cache.kind for cache in caches)
    return SchedulerSettings(
        regime=chosen.regime,
        stages=deployment.stages,
        queue_slots=chosen.slots,
        broadcasts_chunks=chosen.broadcasts_chunks,
        max_num_batched_tokens=int(flags["max_num_batched_tokens"]),
        max_num_seqs=int(flags["max_num_seqs"]),
        max_model_len=model.max_model_len,
        long_prefill_token_threshold=int(flags["long_prefill_token_threshold"]),
        enable_chunked_prefill=bool(flags["enable_chunked_prefill"]),
        reserve_full_isl=bool(flags["scheduler_reserve_full_isl"]),
        watermark=float(flags["watermark"]),
        num_blocks=plan.num_blocks,
        block_size=plan.block_size,
        full_groups=kinds[Cache.TOKENS],
        state_groups=kinds[Cache.STATE] * model.state_blocks,
        windows=tuple(cache.window for cache in caches if cache.kind is Cache.WINDOW and cache.window),
        align_chunks=flags["mamba_cache_mode"] == "align",
        enable_prefix_caching=bool(flags["enable_prefix_caching"]),
        scheduling_policy=SchedulingPolicy(str(flags["scheduling_policy"])),
        # vLLM 0.33 v1/engine/core.py: only the core of a data-parallel engine looks at it.
        prefill_schedule_interval=int(flags["prefill_schedule_interval"]) if deployment.layout.dp > 1 else 1,
        capture_sizes=capture_sizes(flags, deployment.gpu),
    )
