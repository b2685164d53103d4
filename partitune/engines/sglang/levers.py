"""Which flags change how SGLang puts a load into slots, and what is worth trying in their place.

Decision: only flags that the simulated scheduler heeds, and only values that this load can tell apart. Whoever advises
tries them; nothing here says that one helps.

Source: SGLang 0.5.23 `srt/managers/scheduler.py` (init_model_worker), `srt/managers/scheduler_pp_mixin.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.flags import whole_number
from partitune.engines.scheduling import near_powers
from partitune.engines.sglang.defaults import FEWEST_ROWS, effective_flags

_MOST_DEPTH = 2


def levers(deployment: Deployment, requests: int, prompt_tokens: int) -> Mapping[str, Sequence[FlagValue]]:
    """Flag -> values other than the start's own, best guess first."""
    flags, stages = effective_flags(deployment), deployment.stages
    running = whole_number(flags, "max_running_requests", FEWEST_ROWS)
    chunk, depth = int(flags["chunked_prefill_size"]), int(flags["pp_async_batch_depth"])
    cap = whole_number(flags, "pp_max_micro_batch_size", max(running // stages, 1))
    share = -(-requests * prompt_tokens // stages)
    wanted: dict[str, list[FlagValue]] = {
        "chunked_prefill_size": [*near_powers(share, 64, 65536, chunk)],
        "max_running_requests": [2 * running, requests] if running < requests else [],
    }
    if stages > 1:
        per_slot = (-(-requests // (stages + more)) for more in range(_MOST_DEPTH + 1))
        sizes = (*per_slot, *near_powers(-(-requests // stages), 1, requests, cap))
        wanted["pp_max_micro_batch_size"] = [size for size in dict.fromkeys(sizes) if size != cap]
        wanted["pp_async_batch_depth"] = [more for more in range(_MOST_DEPTH + 1) if more != depth]
    return {name: values for name, values in wanted.items() if values}
