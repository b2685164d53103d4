"""From a deployment of SGLang to the settings of its simulated scheduler.

Decision: defaults come from `engines.sglang`, sizes that the engine derives at start-up from its KV pool are derived
here in the same way, and what the simulator does not know is refused by name instead of being simulated as something
else.

Source: SGLang 0.5.23 `srt/mem_cache/kv_cache_configurator.py` (resolve_max_num_reqs), `srt/managers/scheduler.py`
(init_chunked_prefill, maybe_init_dynamic_chunk_sizer).
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.candidate import Knob
from partitune.costs.cost_model import StageCosts
from partitune.engines.deployment import Deployment
from partitune.engines.flags import whole_number
from partitune.engines.memory import KvPlan
from partitune.engines.sglang.defaults import FEWEST_ROWS, effective_knobs
from partitune.engines.sglang.scheduler.chunks import ChunkLaw
from partitune.engines.sglang.scheduler.inputs import SglangSettings
from partitune.errors import SpecError
from partitune.simulation.overheads import Overheads

#: For runs that should look like a server. A slot without work only passes messages on, as SGLang's loop never sleeps,
#: and a slot with work is assumed to cost a quarter of a millisecond: whole servers need no more (docs/validation.md).
#: The rest is assumed as for vLLM: sampler kernels, one small NCCL message across nodes, a pinned copy.
SGLANG_OVERHEADS = Overheads(
    engine_step_s=250e-6, empty_step_s=100e-6, sample_s=100e-6, broadcast_s=50e-6, d2h_s=100e-6
)
_MOST_ROWS, _ROWS_PER_CONTEXT = 4096, 512
_TRUE = ("1", "true", "yes", "y")


def sglang_settings(
    deployment: Deployment, plan: KvPlan, costs: StageCosts, *, ignore_eos: bool = True
) -> SglangSettings:
    """The scheduler of this start.

    Args:
        deployment: stages, knobs and environment.
        plan: the KV pool.
        costs: stage times; only dynamic chunking looks at them (stage 0's, as the engine profiles itself).
        ignore_eos: what the requests ask for.

    Raises:
        SpecError: a scheduling policy that is not simulated, or a value the engine refuses.
    """
    knobs = {**deployment.knobs, **effective_knobs(deployment)}
    if knobs["schedule_policy"] != "fcfs":
        raise SpecError(f"schedule_policy {knobs['schedule_policy']} is not simulated; fcfs is")
    length = whole_number(knobs, "context_length", None) or deployment.architecture.max_position
    tokens = min(plan.tokens, whole_number(knobs, "max_total_tokens", None) or plan.tokens)
    estimate = max(min(int(tokens / length * _ROWS_PER_CONTEXT), _MOST_ROWS), FEWEST_ROWS)
    rows = min(whole_number(knobs, "max_running_requests", None) or estimate, tokens // 2)
    chunk = whole_number(knobs, "chunked_prefill_size", None)
    chunk = chunk if chunk and chunk > 0 else None
    law = None
    if knobs["enable_dynamic_chunking"] and chunk is not None and deployment.stages > 1:
        smooth = float(knobs.get("SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR", 0.75))
        law = ChunkLaw.profiled(costs, chunk, length, smooth)
    return SglangSettings(
        stages=deployment.stages,
        max_running_requests=max(rows, 1),
        num_tokens=max(tokens, 1),
        page_size=whole_number(knobs, "page_size", None) or 1,
        max_model_len=length,
        chunked_prefill_size=chunk,
        max_prefill_tokens=whole_number(knobs, "max_prefill_tokens", None) or 16384,
        prefill_max_requests=whole_number(knobs, "prefill_max_requests", None),
        pp_max_micro_batch_size=whole_number(knobs, "pp_max_micro_batch_size", None),
        pp_async_batch_depth=whole_number(knobs, "pp_async_batch_depth", 0),
        enable_mixed_chunk=bool(knobs["enable_mixed_chunk"]),
        dynamic_chunks=law,
        prefill_decode_interval=whole_number(knobs, "prefill_decode_interval", 0),
        prefill_decode_interval_min_bs=whole_number(knobs, "prefill_decode_interval_min_bs", 0),
        schedule_conservativeness=float(knobs["schedule_conservativeness"]),
        radix_cache=not knobs.get("disable_radix_cache", False),
        ignore_eos=ignore_eos,
        comm_overlap=_on(knobs, "SGLANG_PP_COMM_OVERLAP"),
        skip_pure_chunked_output=_on(knobs, "SGLANG_PP_SKIP_PURE_CHUNKED_OUTPUT_COMM"),
    )


def _on(knobs: Mapping[str, Knob], name: str) -> bool:
    return str(knobs.get(name, "")).lower() in _TRUE
