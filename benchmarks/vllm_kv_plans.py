"""vLLM's own KV planning of the partitions in a recording. Import only when a `Wheel` is there.

Decision: layers are given as the specs a worker hands over (kind, block size, bytes of a page), named by their number
so that stages own what they own; grouping, blocks and capacity are the engine's. Until 0.32.0 planning groups by
itself, since 0.33.0 the groups are made first (`get_global_kv_cache_groups`).

Source: vLLM `v1/core/kv_cache_utils.py` (0.30.0 to 0.32.0), `v1/core/kv_cache_planning.py` (0.33.0).
"""

# The engine is not installed where the checks run.
# mypy: disable-error-code="import-not-found"
from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from vllm.v1 import kv_cache_interface as interface
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_layout import KVCacheLayout

from benchmarks.vllm_wheel import Wheel

_OWN_MODULE = "vllm.v1.core.kv_cache_planning"  # since 0.33.0
planning = import_module(_OWN_MODULE) if find_spec(_OWN_MODULE) else kv_cache_utils

#: What a plan is compared by.
FIGURES = ("num_blocks", "max_group_layers_per_stage", "num_groups", "capacity")


def _spec(record: dict[str, Any], letter: str) -> Any:
    kind = {"f": "full", "l": "linear", "w": "window"}[letter]
    page, block = record["page_bytes"][kind], record["block_size"][kind]
    if letter == "l":
        checkpoints = record.get("prefill_checkpoint_blocks", 0)
        return interface.MambaSpec(
            block_size=block,
            shapes=((page,),),
            dtypes=(1,),
            mamba_cache_mode=record.get("mamba_cache_mode", "none"),
            num_prefill_checkpoint_blocks=checkpoints,
            prefill_checkpoint_alignment=1 if checkpoints else None,
        )
    shape = {"block_size": block, "num_kv_heads": 1, "head_size": page // (2 * block), "dtype": 1}
    if letter == "w":
        return interface.SlidingWindowSpec(**shape, sliding_window=record["sliding_window"])
    return interface.FullAttentionSpec(**shape)


def _configuration(wheel: Wheel, record: dict[str, Any]) -> SimpleNamespace:
    layout = KVCacheLayout[record.get("kv_cache_layout", "LBNHC")]
    return SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=record["max_model_len"],
            original_max_model_len=record["max_model_len"],
            supports_kv_cache_grouping=False,
            get_total_num_hidden_layers=lambda: len(record["layer_kinds"]),
        ),
        cache_config=wheel.configuration(
            "config/cache.py",
            "CacheConfig",
            mamba_cache_mode=record.get("mamba_cache_mode", "none"),
            num_gpu_blocks_override=None,
            get_resolved_kv_cache_layout=lambda: layout,
        ),
        scheduler_config=wheel.configuration(
            "config/scheduler.py",
            "SchedulerConfig",
            disable_hybrid_kv_cache_manager=False,
            max_num_batched_tokens=record["max_num_batched_tokens"],
        ),
        parallel_config=wheel.configuration(
            "config/parallel.py", "ParallelConfig", pipeline_parallel_size=len(record["partition"])
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        device_config=SimpleNamespace(device_type="cuda"),
        speculative_config=None,
        kv_transfer_config=None,
        num_prefill_lookahead_tokens=0,
        max_in_flight_tokens=record["in_flight_batches"] * record["max_num_batched_tokens"],
    )


def planned(wheel: Wheel, record: dict[str, Any]) -> dict[str, Any]:
    """`FIGURES` as the engine makes them of a record's layers, partition and memory."""
    config = _configuration(wheel, record)
    specs = [_spec(record, letter) for letter in record["layer_kinds"]]
    ends = list(accumulate(record["partition"]))
    stages = [
        {f"layer.{number}": specs[number] for number in range(end - layers, end)}
        for layers, end in zip(record["partition"], ends, strict=True)
    ]
    memory = record["available_bytes_per_stage"]
    if hasattr(planning, "get_global_kv_cache_groups"):
        groups = planning.get_global_kv_cache_groups(config, stages)
        caches = planning.get_kv_cache_configs(config, stages, memory, groups)
    else:
        caches = planning.get_kv_cache_configs(config, stages, memory)
    capacity = kv_cache_utils.get_kv_cache_capacity(config, kv_cache_utils.generate_scheduler_kv_cache_config(caches))
    return {
        "num_blocks": caches[0].num_blocks,
        "max_group_layers_per_stage": [
            max(len(group.layer_names) for group in cache.kv_cache_groups) for cache in caches
        ],
        "num_groups": len(caches[0].kv_cache_groups),
        "capacity": [float(figure) for figure in capacity],
    }
