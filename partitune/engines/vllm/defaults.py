"""The values vLLM gives the flags nobody set, and the batch sizes for which it then captures a CUDA graph.

Decision: the engine derives its token budget from the GPU's memory, then caps one default by
another; the sizes of its graphs follow from both. A comparison with "the default" is only honest with the same
derivation.

Source: vLLM 0.32.0 `engine/arg_utils.py` (get_batch_defaults, _set_default_max_num_seqs_and_batched_tokens_args),
`config/cache.py`, `config/scheduler.py`, `config/vllm.py` (_set_cudagraph_sizes); 0.33.0 is the same. Not read: a
`compilation_config` in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment, command_flags
from partitune.engines.flags import whole_number, whole_numbers
from partitune.hardware.gpus import GIB, Gpu
from partitune.models.architecture import STATE_KINDS

#: Largest size captured by default; data-centre Blackwell (compute capability 10) captures more.
_LARGEST, _LARGEST_BLACKWELL = 512, 1024
_SLOW_WITH_LARGE_BATCHES = ("a100", "gb10")


def default_flags(deployment: Deployment) -> dict[str, FlagValue]:
    """Defaults of the scheduling and memory flags, as the engine resolves them beside the flags that are given.

    `async_scheduling` is left to the regime; `mamba_cache_mode` follows prefix caching where a model has fixed states.
    """
    architecture, given = deployment.architecture, deployment.flags
    max_position = architecture.max_position
    tokens, seqs = _batch_defaults(deployment.gpu)
    if given.get("performance_mode") == "throughput":
        tokens, seqs = 2 * tokens, 2 * seqs
    longest = whole_number(given, "max_model_len", max_position)
    longest = max_position if longest < 1 else longest  # -1 asks the engine for the longest that fits
    chunked = given.get("enable_chunked_prefill", True)
    if not chunked:
        tokens = max(tokens, longest)
    tokens = min(tokens, whole_number(given, "max_num_seqs", seqs) * longest)
    seqs = min(seqs, whole_number(given, "max_num_batched_tokens", tokens))
    keeps_states = any(layer.attention.kind in STATE_KINDS for layer in architecture.layers)
    prefix_caching = given.get("enable_prefix_caching", True)
    return {
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
        "max_model_len": max_position,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "long_prefill_token_threshold": 0,
        "scheduling_policy": "fcfs",
        "gpu_memory_utilization": 0.92,
        "kv_cache_dtype": "auto",
        "watermark": 0.0,
        "scheduler_reserve_full_isl": True,
        "prefill_schedule_interval": 1,
        "mamba_cache_mode": "align" if prefix_caching and keeps_states else "none",
    }


def effective_flags(deployment: Deployment) -> dict[str, FlagValue]:
    """Every flag that decides something here: the defaults overlaid with the deployment's own, without variables.

    An exchange that balances experts step by step switches CUDA graphs off, whatever was said (0.33 `config/vllm.py`).
    """
    flags = {**default_flags(deployment), **command_flags(deployment.flags)}
    return flags if deployment.layout.balancing_slots is None else {**flags, "enforce_eager": True}


def capture_sizes(flags: Mapping[str, FlagValue], gpu: Gpu) -> tuple[int, ...]:
    """Batch sizes with a CUDA graph in ascending order, none in eager mode; a decode batch between two is padded.

    Args:
        flags: effective flags; `max_num_seqs` and `max_num_batched_tokens` must be among them.
        gpu: what the engine starts on.

    Raises:
        SpecError: `cudagraph_capture_sizes` is not a list of whole numbers.
    """
    seqs, tokens = int(flags["max_num_seqs"]), int(flags["max_num_batched_tokens"])
    if flags.get("enforce_eager"):
        return ()
    if given := whole_numbers(flags, "cudagraph_capture_sizes"):
        return tuple(sorted({size for size in given if size <= tokens}))
    limit = flags.get("max_cudagraph_capture_size")
    default = _LARGEST_BLACKWELL if gpu.generation.value.data_centre_blackwell else _LARGEST
    largest = min(2 * seqs, default) if limit is None else int(limit)
    sizes = {seqs} if limit is None and seqs <= largest else set()
    largest = min(tokens, largest)
    fine = range(1, min(largest, 32) + 1) if flags.get("performance_mode") == "interactivity" else (1, 2, 4)
    sizes.update(size for size in fine if size <= largest)
    sizes.update(range(8, min(largest + 1, 256), 8))
    sizes.update(range(256, largest + 1, 16))
    if tokens <= largest:
        sizes.add(tokens)
    return tuple(sorted(size for size in sizes if size <= tokens))


def _batch_defaults(gpu: Gpu) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs of the API server (the offline class has others)."""
    if gpu.memory_bytes >= 160 * GIB:
        return 16384, 1024
    if gpu.memory_bytes >= 70 * GIB and not any(slow in gpu.name.lower() for slow in _SLOW_WITH_LARGE_BATCHES):
        return 8192, 1024
    return 2048, 256
