"""The values SGLang gives the flags nobody set.

Source: SGLang 0.5.23 `srt/arg_groups/memory_hook.py`, `srt/arg_groups/fields/schedule.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment, command_flags
from partitune.engines.flags import whole_number
from partitune.engines.sglang.cuda_graphs import largest_batch
from partitune.engines.sglang.parallel_rules import attention_replicas, engine_ranks

_MIB = 1 << 20
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


def is_on(flags: Mapping[str, FlagValue], name: str) -> bool:
    """True where a variable of SGLang's is set to what it takes for yes (`srt/environ.py` EnvBool)."""
    return str(flags.get(name, "")).lower() in ("1", "true", "yes", "y")


def _chunk_default(memory_mib: float) -> int:
    return next((chunk for below, chunk in ((20, 2048), (60, 4096), (160, 8192)) if memory_mib < below * 1024), 16384)
