"""What vLLM's simulated scheduler looks at, and how it follows from a start.

Decision: these are plain frozen values that name every setting the engine's scheduler looks at, so that a run is a
pure function of its inputs and a cached result cannot depend on anything else. Prompts are lengths, not tokens: the
only content that matters is how many tokens at the front a request shares with others, so it names them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from partitune.engines.deployment import Deployment
from partitune.engines.memory import KvCache
from partitune.engines.versions import Version, parse_version
from partitune.engines.vllm.defaults import capture_sizes, effective_flags
from partitune.engines.vllm.kv_groups import Cache, group_layers
from partitune.engines.vllm.kv_pages import cache_model
from partitune.engines.vllm.pipelining import Regime, regime
from partitune.engines.vllm.state_exports import state_export
from partitune.errors import SpecError
from partitune.simulation.run import Overheads


class SchedulingPolicy(StrEnum):
    """Who is admitted first and who is preempted."""

    FCFS = "fcfs"  # first come first served; the newest admitted is preempted
    PRIORITY = "priority"  # by Request.priority, then by arrival; the last in that order is preempted


class PrefillCadence(StrEnum):
    """What `prefill_schedule_interval` counts: prompts are read only every so many."""

    TURNS = "turns"  # of the engine core's loop, which only cores of data-parallel engines with experts count
    STEPS = "steps"  # that were executed since the last one that read prompts; every other engine, since 0.33


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The engine's scheduler and KV cache, as vLLM 0.33.0 `config/scheduler.py` and `config/cache.py` spell them.

    A request holds `full_groups` blocks per `block_size` tokens, for every entry of `windows` the blocks that a sliding
    window of that many tokens still sees, and per state group one block, or with `align_chunks` those that its chunks
    work on. One block of `num_blocks` is the engine's null block and is never handed out.

    Raises:
        SpecError: a value no engine accepts, or a combination vLLM refuses at start-up.
    """

    regime: Regime
    stages: int
    max_num_batched_tokens: int
    max_num_seqs: int
    num_blocks: int
    block_size: int = 16
    max_model_len: int = 1 << 30
    queue_slots: int | None = None  # None: what the regime says
    broadcasts_chunks: bool = False  # async-v1 up to vLLM 0.19: a step that samples nothing ends in a broadcast too
    max_num_active_seqs: int | None = None  # requests that run at once; None: max_num_seqs
    max_num_scheduled_tokens: int | None = None  # of one step; None: max_num_batched_tokens
    long_prefill_token_threshold: int = 0  # 0: off
    spares_lone_prompts: bool = True  # of that threshold: a request that is alone has the whole budget
    long_prefill_token_threshold_adaptive: bool = False  # never below a fair share of the budget
    enable_chunked_prefill: bool = True
    reserve_full_isl: bool = True  # admit a request only when its whole prompt fits the free blocks
    watermark: float = 0.0  # share of the blocks kept free when admitting beside running requests
    full_groups: int = 1
    state_groups: int = 0
    windows: tuple[int, ...] = ()  # one window size (tokens) per sliding-window group
    full_groups_last: bool = False  # behind windows and states in the engine's order of groups, which frees in it
    align_chunks: bool = False  # hybrids with prefix caching: prompt chunks end on block borders ("align" mode)
    #: Tokens from a chunk's start at whose multiples kernels save a state on the way; None: at its end only.
    state_export_alignment: int | None = None
    #: Windows and states are kept for others once in so many tokens; 0: only where a prompt or a shared prefix ends;
    #: None: everywhere.
    prefix_cache_retention_interval: int | None = 0
    enable_prefix_caching: bool = False
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.FCFS
    passed_over_first: bool = (
        False  # who was passed over for stale tokens is admitted before whoever is preempted later
    )
    whole_prompt_border: bool = False  # a prompt of whole blocks may end in its last state, not one block before
    renames_states: bool = False  # a state that was found is named again, so that others find it a step later
    passes_over_preempted: bool = True  # a request that preempts itself for want of priority does not end the step
    prefill_schedule_interval: int = 1  # prompts only once in so many while others decode
    prefill_cadence: PrefillCadence = PrefillCadence.STEPS  # so many of what
    capture_sizes: tuple[int, ...] = ()  # decode batches that have a CUDA graph, ascending; smaller ones are padded

    def __post_init__(self) -> None:
        counts = "stages max_num_batched_tokens max_num_seqs block_size max_model_len slots prefill_schedule_interval"
        for key in counts.split():
            if getattr(self, key) < 1:
                raise SpecError(f"scheduler settings: {key} is {getattr(self, key)}; it must be 1 or more")
        if self.num_blocks < 2:
            raise SpecError(
                f"scheduler settings: num_blocks is {self.num_blocks}; it must be 2 or more (one is reserved)"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise SpecError(
                f"scheduler settings: max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs "
                f"{self.max_num_seqs}; the engine refuses that, raise the first or lower the second"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise SpecError(
                f"scheduler settings: without chunked prefill max_num_batched_tokens {self.max_num_batched_tokens} "
                f"must be at least max_model_len {self.max_model_len}"
            )
        retention = self.prefix_cache_retention_interval or 0
        if retention % self.block_size or (retention and not (self.windows or self.state_groups)):
            raise SpecError(
                f"scheduler settings: prefix_cache_retention_interval is {retention}; the engine takes 0, and of a "
                f"model with windows or states multiples of its blocks, here {self.block_size} tokens"
            )
        if list(self.capture_sizes) != sorted(set(self.capture_sizes)) or min(self.capture_sizes, default=1) < 1:
            sizes = ",".join(map(str, self.capture_sizes))
            raise SpecError(f"scheduler settings: capture_sizes {sizes}; they must ascend and be 1 or more")

    @property
    def slots(self) -> int:
        """Batches that may be in flight, empty ones too."""
        return self.regime.queue_slots(self.stages) if self.queue_slots is None else self.queue_slots

    @property
    def seats(self) -> int:
        """Requests that may run at once."""
        return min(self.max_num_seqs, self.max_num_active_seqs or self.max_num_seqs)

    @property
    def scheduled_tokens(self) -> int:
        """Tokens that a step may hold."""
        return min(self.max_num_batched_tokens, self.max_num_scheduled_tokens or self.max_num_batched_tokens)

    @property
    def caches_prefixes(self) -> bool:
        """True where content can be found again: states only in "align" mode, nobody keeps them otherwise."""
        return self.enable_prefix_caching and (self.align_chunks or not self.state_groups)

    def exports_state(self, start: int, end: int, border: int) -> bool:
        """Whether a chunk of the tokens from `start` to `end` saves the state at the block border `border` on the way.

        Source: vLLM 0.33.0 `v1/kv_cache_interface.py` (is_mamba_prefill_checkpoint_valid), hashes of a whole block.
        """
        if self.state_export_alignment is None:
            return False
        block = self.block_size
        return (
            start % block == 0
            and -(-end // block) - 2 > (start - 1) // block
            and start + block <= border < end
            and (border - start) % self.state_export_alignment == 0
        )

    def padding(self, prompt_tokens: int, decodes: int) -> int:
        """Rows added to a step of decodes only: up to the next captured size, none beyond the largest.

        Source: vLLM 0.33.0 `v1/worker/gpu/cudagraph_utils.py` (run_fullgraph) and `config/vllm.py`
        (_set_cudagraph_sizes). Steps with prompt tokens are not padded here: their graphs are piecewise.
        """
        if prompt_tokens:
            return 0
        return next((size - decodes for size in self.capture_sizes if size >= decodes), 0)


#: For runs that should look like a server. The 1 ms is the engine's own figure (`v1/engine/core.py`
#: `_process_engine_step`, `time.sleep(0.001)`). The engine's own time is what 72 whole servers need beside their stages
#: (`partitune validate`: Qwen3-32B on H100, vLLM 0.12.0, which schedules synchronously): half a millisecond a step and
#: 45 us a request; vllm PR 32618 means 50 us. The rest are assumptions: 100 us of sampler kernels, one small NCCL
#: message across nodes, and a pinned copy with its event and the message queue to the engine process.
VLLM_OVERHEADS = Overheads(
    engine_step_s=500e-6, empty_step_s=1e-3, sample_s=100e-6, broadcast_s=50e-6, d2h_s=100e-6, engine_request_s=45e-6
)


#: Releases from which a rule holds: prompts keep a cadence without data parallelism, and a preempted request is passed
#: over; one state rule for the last border; a lone prompt has the whole budget, and one queue of waiting requests;
#: windows and states are kept sparsely unless a flag says otherwise.
_COUNTS_STEPS, _ONE_BORDER, _ONE_QUEUE, _SPARSE = Version(0, 33), Version(0, 32), Version(0, 31), Version(0, 29)


def release_rules(version: Version, *, shares_core: bool) -> dict[str, Any]:
    """Settings that no flag sets: rules of a release.

    Args:
        version: of the engine.
        shares_core: data ranks take their turns together (of a model with experts).

    Source: `v1/core/sched/scheduler.py`, `v1/core/single_type_kv_cache_manager.py`, `config/cache.py` of vLLM 0.28 to
    0.33; held to recordings of 0.30 to 0.33.
    """
    since = version >= _COUNTS_STEPS
    return {
        "spares_lone_prompts": version >= _ONE_QUEUE,
        "passed_over_first": version < _ONE_QUEUE,
        "whole_prompt_border": version < _ONE_BORDER,
        "renames_states": _ONE_BORDER <= version < _COUNTS_STEPS,
        "passes_over_preempted": since,
        "prefill_cadence": PrefillCadence.STEPS if since and not shares_core else PrefillCadence.TURNS,
        "prefix_cache_retention_interval": 0 if version >= _SPARSE else None,
    }


def vllm_settings(deployment: Deployment, kv_cache: KvCache) -> SchedulerSettings:
    """The scheduler of a start whose KV cache is `kv_cache`: flags over defaults, the regime, the groups of the cache.

    Raises:
        SpecError: the engine refuses the combination.
    """
    flags = effective_flags(deployment)
    chosen = regime(deployment)
    model = cache_model(deployment)
    caches = [group.caches[0] for group in group_layers(model)]
    kinds = Counter(cache.kind for cache in caches)
    version = parse_version(deployment.version)
    shares_core = deployment.layout.dp > 1 and deployment.architecture.has_experts
    rules = release_rules(version, shares_core=shares_core)
    if rules["prefill_cadence"] is PrefillCadence.STEPS or shares_core:
        rules["prefill_schedule_interval"] = int(flags["prefill_schedule_interval"])
    for name in ("max_num_active_seqs", "max_num_scheduled_tokens", "prefix_cache_retention_interval"):
        if flags.get(name) is not None:
            rules[name] = int(flags[name])
    return SchedulerSettings(
        regime=chosen.regime,
        stages=deployment.stages,
        broadcasts_chunks=chosen.broadcasts_chunks,
        max_num_batched_tokens=int(flags["max_num_batched_tokens"]),
        max_num_seqs=int(flags["max_num_seqs"]),
        max_model_len=model.max_model_len,
        long_prefill_token_threshold=int(flags["long_prefill_token_threshold"]),
        long_prefill_token_threshold_adaptive=bool(flags.get("long_prefill_token_threshold_adaptive")),
        enable_chunked_prefill=bool(flags["enable_chunked_prefill"]),
        reserve_full_isl=bool(flags["scheduler_reserve_full_isl"]),
        watermark=float(flags["watermark"]),
        num_blocks=kv_cache.num_blocks,
        block_size=kv_cache.block_size,
        full_groups=kinds[Cache.TOKENS],
        state_groups=kinds[Cache.STATE],
        windows=tuple(cache.window for cache in caches if cache.kind is Cache.WINDOW and cache.window),
        full_groups_last=len(kinds) > 1 and caches[-1].kind is Cache.TOKENS,
        align_chunks=flags["mamba_cache_mode"] == "align" and kinds[Cache.STATE] > 0,
        state_export_alignment=state_export(deployment).alignment,
        enable_prefix_caching=bool(flags["enable_prefix_caching"]),
        scheduling_policy=SchedulingPolicy(str(flags["scheduling_policy"])),
        capture_sizes=capture_sizes(flags, deployment.gpu),
        **rules,
    )
