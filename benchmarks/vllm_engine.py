"""vLLM's scheduler and requests, made from a record. Import only when a `Wheel` is there.

Decision: the configuration holds what a record says, what the engine works out of it (`config/vllm.py`: queue slots,
tokens in flight), and for the rest the wheel's own defaults. KV groups are as the planner leaves them: each has the
record's block size, sizes in bytes play no part.
"""

# The engine is not installed where the checks run.
# mypy: disable-error-code="import-not-found"
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from vllm.v1.core.kv_cache_utils import get_request_block_hasher, resolve_kv_cache_block_sizes
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

from benchmarks.vllm_wheel import Wheel, digest

STOP = -7  # the token that ends a request
_ALIGNMENT = 1  # of states exported inside a chunk


def _scheduler_config(wheel: Wheel, record: dict[str, Any], ext: dict[str, Any]) -> SimpleNamespace:
    return wheel.configuration(
        "config/scheduler.py",
        "SchedulerConfig",
        policy=record["scheduling_policy"],
        max_num_seqs=record["max_num_seqs"],
        max_num_active_seqs=ext.get("max_num_active_seqs"),
        max_num_scheduled_tokens=ext.get("max_num_scheduled_tokens"),
        max_num_batched_tokens=record["max_num_batched_tokens"],
        long_prefill_token_threshold=record["long_prefill_token_threshold"],
        long_prefill_token_threshold_adaptive=ext.get("adaptive", False),
        watermark=record["watermark"],
        scheduler_reserve_full_isl=ext.get("reserve_full_isl", True),
        enable_chunked_prefill=ext.get("enable_chunked_prefill", True),
        prefill_schedule_interval=record["prefill_schedule_interval"],
        async_scheduling=record["async_scheduling"],
    )


def _configuration(wheel: Wheel, record: dict[str, Any]) -> SimpleNamespace:
    ext = record.get("ext", {})
    return SimpleNamespace(
        scheduler_config=_scheduler_config(wheel, record, ext),
        cache_config=wheel.configuration(
            "config/cache.py",
            "CacheConfig",
            num_gpu_blocks=record["num_blocks"],
            enable_prefix_caching=record["enable_prefix_caching"],
            block_size=record["block_size"],
            mamba_cache_mode="align" if ext.get("align_chunks") else "none",
            **({"prefix_cache_retention_interval": ext["retention"]} if "retention" in ext else {}),
        ),
        parallel_config=wheel.configuration(
            "config/parallel.py",
            "ParallelConfig",
            pipeline_parallel_size=record["pp"],
            data_parallel_size=ext.get("data_parallel_size", 1),
            data_parallel_index=0,
        ),
        model_config=wheel.configuration(
            "config/model.py",
            "ModelConfig",
            uses_mrope=False,
            is_encoder_decoder=False,
            max_model_len=record["max_model_len"],
            runner_type="generate",
            is_diffusion=False,
            is_multimodal_model=False,
            supports_multimodal_inputs=False,
            return_sampling_mask=False,
        ),
        observability_config=wheel.configuration(
            "config/observability.py", "ObservabilityConfig", enable_logging_iteration_details=False
        ),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False),
        lora_config=None,
        kv_events_config=None,
        kv_transfer_config=None,
        ec_transfer_config=None,
        speculative_config=None,
        is_mm_encoder_only=False,
        max_concurrent_batches=record["queue_slots"],
        max_in_flight_tokens=record["queue_slots"] * record["max_num_batched_tokens"],
        num_speculative_tokens=0,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        num_hash_lookahead_tokens=0,
        use_v2_model_runner=record["regime"] in ("R3", "R4"),
    )


def _groups(record: dict[str, Any]) -> list[Any]:
    """KV groups: full attention first, then windows, then states."""
    ext, block = record.get("ext", {}), record["block_size"]
    attention = {"block_size": block, "num_kv_heads": 1, "head_size": 1, "dtype": 4}
    specs = [FullAttentionSpec(**attention) for _ in range(ext.get("full_groups", 1))]
    specs += [SlidingWindowSpec(**attention, sliding_window=window) for window in ext.get("windows", ())]
    inside = ext.get("internal_checkpoints", False)
    specs += [
        MambaSpec(
            block_size=block if ext.get("align_chunks") else record["max_model_len"],
            shapes=((1,),),
            dtypes=(4,),
            mamba_cache_mode="align" if ext.get("align_chunks") else "none",
            num_prefill_checkpoint_blocks=int(inside),
            prefill_checkpoint_alignment=_ALIGNMENT if inside else None,
        )
        for _ in range(ext.get("mamba_groups", 0))
    ]
    return [KVCacheGroupSpec([f"layer.{number}"], spec) for number, spec in enumerate(specs)]


def scheduler_for(wheel: Wheel, record: dict[str, Any]) -> Any:
    """The engine's scheduler."""
    config = _configuration(wheel, record)
    caches = KVCacheConfig(num_blocks=record["num_blocks"], kv_cache_tensors=[], kv_cache_groups=_groups(record))
    caches.prefix_cache_retention_interval = config.cache_config.prefix_cache_retention_interval
    scheduler_block, hash_block = resolve_kv_cache_block_sizes(caches, config)
    return (AsyncScheduler if record["async_scheduling"] else Scheduler)(
        vllm_config=config,
        kv_cache_config=caches,
        structured_output_manager=SimpleNamespace(accept_tokens=lambda *_: True),
        block_size=scheduler_block,
        hash_block_size=hash_block,
        log_stats=True,
    )


def engine_request(record: dict[str, Any], request: dict[str, Any], number: int, text: Callable[[int], int]) -> Any:
    """The engine's request; `text` gives the token at a position."""
    early = request["stops_early"]
    most = record["max_model_len"] - request["prompt_tokens"] if early else request["output_tokens"]
    sampling = SimpleNamespace(
        max_tokens=most,
        min_tokens=0,
        eos_token_id=STOP if early else None,
        stop_token_ids=None,
        extra_args=None,
        structured_outputs=None,
        repetition_detection=None,
        routed_experts_prompt_start=0,
        skip_reading_prefix_cache=False,
        num_logprobs=None,
        logprobs=None,
        prompt_logprobs=None,
    )
    caching = record["enable_prefix_caching"]
    return Request(
        request_id=request["id"],
        prompt_token_ids=[text(position) for position in range(request["prompt_tokens"])],
        sampling_params=sampling,
        pooling_params=None,
        arrival_time=number,
        priority=request["priority"],
        block_hasher=get_request_block_hasher(record["block_size"], digest) if caching else None,
    )
