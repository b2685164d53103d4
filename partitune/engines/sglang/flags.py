"""The scheduling, memory and parallel flags of SGLang 0.5.23, with default and range.

Decision: SGLang has more than five hundred flags and most concern neither scheduling nor memory. Those that do have
their type and range here, alike ones by name; all others stand in `coverage`, and any name passes unless it looks like
a misspelling of one there.

Source: SGLang 0.5.23 `srt/arg_groups/fields/parallel.py`, `srt/arg_groups/fields/schedule.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.engines.flags import Flag, FlagType, flag_table
from partitune.engines.sglang.kv_layouts import KV_CACHE_TYPES
from partitune.engines.sglang.weights import QUANTIZATION_CHOICES

_ON, _INTEGER, _NUMBER, _TEXT = FlagType.ON, FlagType.INTEGER, FlagType.NUMBER, FlagType.TEXT
_POLICIES = ("lpm", "random", "fcfs", "dfs-weight", "lof", "priority", "routing-key", "hrrn", "shortest-prefill-first")

ALL2ALL_BACKENDS = (
    "none", "deepep", "mooncake", "nixl", "mori", "flashinfer", "megamoe", "deepep_v2", "pplx", "flashinfer_megamoe",
)  # fmt: skip

#: What a person who comes from vLLM writes -> what it is called here.
NAMES_OF_VLLM: Mapping[str, str] = {
    "async_scheduling": "disable_overlap_schedule, which a pipeline forces",
    "block_size": "page_size",
    "enable_chunked_prefill": "chunked_prefill_size, -1 for off",
    "gpu_memory_utilization": "mem_fraction_static",
    "kv_cache_memory_bytes": "max_total_tokens",
    "max_model_len": "context_length",
    "max_num_batched_tokens": "chunked_prefill_size",
    "max_num_seqs": "max_running_requests",
    "num_gpu_blocks_override": "max_total_tokens",
    "scheduling_policy": "schedule_policy",
}

#: Numbers that are 1 where nobody says otherwise.
_ONES = """
pp_size tp_size dp_size attn_dp_size attn_cp_size dcp_size dwdp_size ep_size nnodes num_continuous_decode_steps
scheduler_recv_interval
"""
#: Numbers that the engine derives or leaves open.
_LIMITS = """
pp_max_micro_batch_size cuda_graph_max_bs_decode max_running_requests max_queued_requests max_total_tokens
prefill_max_requests page_size context_length max_mamba_cache_size
"""
_SWITCHED_ON = """
enable_prefill_cp disable_custom_all_reduce disable_cuda_graph disable_decode_cuda_graph disable_cuda_graph_padding
enable_dynamic_chunking disable_overlap_schedule enable_mixed_chunk enable_pdmux enable_multi_layer_eagle
language_model_only language_only enable_eplb
"""

SGLANG_FLAGS: Mapping[str, Flag] = flag_table(
    (Flag(name, _INTEGER, 1, low=1) for name in _ONES.split()),
    (Flag(name, _INTEGER, low=1) for name in _LIMITS.split()),
    (Flag(name, _ON, default=False) for name in _SWITCHED_ON.split()),
    (
        Flag("elastic_ep_backend", _TEXT),
        Flag("cp_strategy", _TEXT, choices=("zigzag", "interleave")),
        Flag("moe_a2a_backend", _TEXT, "none", choices=ALL2ALL_BACKENDS),
        Flag("node_rank", _INTEGER, 0, low=0),
        Flag("dist_init_addr", _TEXT),
        Flag("pp_async_batch_depth", _INTEGER, 0, low=0),
        Flag("mem_fraction_static", _NUMBER, low=0, high=1, above_low=True),
        Flag("chunked_prefill_size", _INTEGER, low=-1),
        Flag("prefill_decode_interval", _INTEGER, low=0),
        Flag("prefill_decode_interval_min_bs", _INTEGER, 0, low=0),
        Flag("max_prefill_tokens", _INTEGER, 16384, low=1),
        Flag("schedule_policy", _TEXT, "fcfs", choices=_POLICIES),
        Flag("schedule_conservativeness", _NUMBER, 1.0, low=0),
        Flag("retraction_policy", _TEXT, "length", choices=("length", "priority")),
        Flag("min_free_slots_delay", _INTEGER, low=0),
        Flag("speculative_algorithm", _TEXT),
        Flag("disaggregation_mode", _TEXT, "null", choices=("null", "prefill", "decode")),
        Flag("kv_cache_dtype", _TEXT, "auto", choices=KV_CACHE_TYPES),
        Flag("mamba_ssm_dtype", _TEXT, choices=("float32", "bfloat16", "float16")),
        Flag("quantization", _TEXT, choices=QUANTIZATION_CHOICES),
        Flag("cpu_offload_gb", _INTEGER, 0, low=0),
        Flag("ep_num_redundant_experts", _INTEGER, 0, low=0),
        Flag("mamba_full_memory_ratio", _NUMBER, 0.9, low=0, above_low=True),
        Flag("cuda_graph_bs_decode", FlagType.SIZES),
    ),
)
