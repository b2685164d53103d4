"""The values SGLang gives the flags nobody set, and the decode batches for which it then captures a CUDA graph.

Decision: SGLang's own list of batches and not vLLM's, as the memory of a stage counts its sizes and the engine reserves
memory by the largest. Graphs of prompts are not counted: a pipeline has none by default, and they share the
activations' memory.

Source: SGLang 0.5.23 `srt/arg_groups/memory_hook.py` (handle_gpu_memory_settings),
`srt/arg_groups/fields/schedule.py`, `srt/arg_groups/cuda_graph_hook.py` (parse_cuda_graph_config,
generate_decode_cuda_graph_batch_sizes), `srt/model_executor/runner/base_cuda_graph_runner.py`
(get_batch_sizes_to_capture). Not read: a `cuda_graph_config` in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment, command_flags
from partitune.engines.flags import whole_number, whole_numbers
from partitune.engines.sglang.parallel_rules import attention_replicas, engine_ranks
from partitune.hardware.gpus import GIB

_MIB = 1 << 20
#: GiB of the GPU below which -> largest batch on fewer than four ranks, and on more.
_LARGEST = ((20, 8, 8), (35, 48, 160), (60, 32, 160), (160, 256, 512))
_LARGEST_ABOVE = 512
_OFF = ("disable_cuda_graph", "disable_decode_cuda_graph")
#: Requests that run at once when no flag says so: the least that the engine derives from its KV pool, unless that is
#: tiny (`mem_cache/kv_cache_configurator.py` resolve_max_num_reqs).
FEWEST_ROWS = 2048


def default_flags(deployment: Deployment) -> dict[str, FlagValue]:
    """Chunk size by GPU memory, static memory by chunk and parallel size, and the fixed defaults."""
    memory_mib = deployment.gpu.memory_bytes / _MIB
    chunk = whole_number(deployment.flags, "chunked_prefill_size", _chunk_default(memory_mib))
    world = engine_ranks(deployment.layout, deployment.architecture)
    working = chunk if chunk > 0 else whole_number(deployment.flags, "max_prefill_tokens", 16384)
    reserved = 512 + 1.5 * max(working, 2048) + world * deployment.stages / 8 * 1024
    reserved += 2 * largest_batch(deployment)
    if memory_mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    return {
        "chunked_prefill_size": chunk,
        "max_prefill_tokens": 16384,
        "mem_fraction_static": round((memory_mib - reserved) / memory_mib, 3),
        "pp_async_batch_depth": 0,
        "enable_mixed_chunk": False,
        "enable_dynamic_chunking": False,
        "schedule_policy": "fcfs",
        "schedule_conservativeness": 1.0,
        "page_size": 1,
        "kv_cache_dtype": "auto",
    }


def effective_flags(deployment: Deployment) -> dict[str, FlagValue]:
    """Defaults overlaid with the deployment's flags, as one scheduler sees them.

    Attention data ranks share chunk and requests, and reserve less for requests that run
    (`arg_groups/parallel_hook.py` handle_data_parallelism, resolve_max_num_reqs).
    """
    flags = {**default_flags(deployment), **command_flags(deployment.flags)}
    ranks = attention_replicas(deployment.layout, deployment.architecture)
    if ranks == 1:
        return flags
    for name in ("chunked_prefill_size", "max_running_requests"):
        if (total := whole_number(flags, name, 0)) > 0:
            flags[name] = max(1, total // ranks)
    return {**flags, "schedule_conservativeness": 0.3 * float(flags["schedule_conservativeness"])}


def largest_batch(deployment: Deployment) -> int:
    """The largest decode batch that is to be captured; 0: none."""
    flags = deployment.flags
    backend = flags.get("cuda_graph_backend_decode")
    off = any(flags.get(name) for name in _OFF) if backend is None else backend == "disabled"
    if off or flags.get("disaggregation_mode") == "prefill":
        return 0
    if given := whole_numbers(flags, "cuda_graph_bs_decode"):
        return max(given)
    memory, few = deployment.gpu.memory_bytes, engine_ranks(deployment.layout, deployment.architecture) < 4
    default = next((low if few else high for below, low, high in _LARGEST if memory < below * GIB), _LARGEST_ABOVE)
    return whole_number(flags, "cuda_graph_max_bs_decode", default)


def capture_sizes(deployment: Deployment, running: int) -> tuple[int, ...]:
    """Sizes in ascending order, where at most `running` requests of a scheduler run at once.

    Raises:
        SpecError: `cuda_graph_bs_decode` is not a list of whole numbers.
    """
    largest, flags, layout = largest_batch(deployment), deployment.flags, deployment.layout
    sizes = set(whole_numbers(flags, "cuda_graph_bs_decode"))
    if not sizes and flags.get("disable_cuda_graph_padding"):
        sizes.update(range(1, largest + 1))
    elif not sizes and flags.get("speculative_algorithm") is None:
        sizes.update((1, 2, 4, 8, 12), range(16, 257, 8), range(272, 512, 16), range(512, largest + 1, 32), (largest,))
    elif not sizes:
        sizes.update(range(1, 9), range(10, 33, 2), range(40, 65, 4), range(72, 257, 8))
        sizes.update(range(272, largest + 1, 16), (largest,))
    # Ranks that gather tokens need the same number each, and context ranks share a batch.
    gathers = attention_replicas(layout, deployment.architecture) > 1 or layout.all2all_backend not in (None, "none")
    grain = layout.tp if gathers else 1
    grain *= layout.pcp if grain % layout.pcp else 1
    most = -(-running // grain) * grain
    if largest > most:
        sizes.add(most)
    return tuple(sorted(size for size in sizes if 0 < size <= min(largest, most) and size % grain == 0))


def is_on(flags: Mapping[str, FlagValue], name: str) -> bool:
    """True where a variable of SGLang's is set to what it takes for yes (`srt/environ.py` EnvBool)."""
    return str(flags.get(name, "")).lower() in ("1", "true", "yes", "y")


def _chunk_default(memory_mib: float) -> int:
    return next((chunk for below, chunk in ((20, 2048), (60, 4096), (160, 8192)) if memory_mib < below * 1024), 16384)
