"""The flags of `vllm serve` of 0.33.0, and which releases have which.

Decision: flags that a search varies or a rule looks at have their default and range, alike ones in one list. The others
are listed by type only: they must be recognised and spelled, not understood. Which release has a flag is not typed in
but read by benchmarks/read_flags.py, and the names here are held against it.

Source: vLLM 0.33.0 `engine/arg_utils.py`, `config/*.py`, `entrypoints/common/cli_args.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from partitune.candidate import FlagValue
from partitune.engines.flags import Flag, FlagType, flag_table
from partitune.engines.release_table import PresenceTable

_SWITCH, _INTEGER, _NUMBER, _TEXT = FlagType.SWITCH, FlagType.INTEGER, FlagType.NUMBER, FlagType.TEXT

_KV_DTYPES = (
    "auto float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc fp8_ds_mla nvfp4_ds_mla turboquant_k8v4 turboquant_4bit_nc "
    "turboquant_k3v4_nc turboquant_3bit_nc ultraquant_4bit int4_per_token_head int8_per_token_head fp8_per_token_head "
    "nvfp4 nvfp4_4over6 octave_k3v4 octave_k3v3 octave_k3v3_compact"
)
#: Without the names that are aliases of others, or that are left over from back ends that were removed.
GATHERING = "allgather_reducescatter"
ALL2ALL_BACKENDS = (
    "deepep_high_throughput", "deepep_low_latency", "deepep_v2", "mori_high_throughput", "mori_low_latency", "moonep",
    "nixl_ep", GATHERING, "flashinfer_nvlink_two_sided", "flashinfer_nvlink_one_sided",
)  # fmt: skip
_STATE_DTYPES = ("auto", "float32", "float16", "bfloat16")

_OWN_RANGE = (
    Flag("scheduling_policy", _TEXT, "fcfs", choices=("fcfs", "priority")),
    Flag("scheduler_reserve_full_isl", _SWITCH, default=True),
    Flag("watermark", _NUMBER, 0.0, low=0, high=1, below_high=True),
    Flag("gpu_memory_utilization", _NUMBER, 0.92, low=0, high=1, above_low=True),
    Flag("kv_cache_dtype", _TEXT, "auto", choices=tuple(_KV_DTYPES.split())),
    Flag("prefix_caching_hash_algo", _TEXT, "sha256", choices=("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")),
    Flag("mamba_cache_dtype", _TEXT, "auto", choices=_STATE_DTYPES),
    Flag("mamba_ssm_cache_dtype", _TEXT, "auto", choices=_STATE_DTYPES),
    Flag("mamba_cache_mode", _TEXT, "none", choices=("align", "none")),
    Flag("kv_offloading_size", _NUMBER, low=0),
    Flag("kv_offloading_backend", _TEXT, "native", choices=("native", "lmcache")),
    Flag("cpu_offload_gb", _NUMBER, 0.0, low=0),
    Flag("all2all_backend", _TEXT, GATHERING, choices=ALL2ALL_BACKENDS),
    Flag("expert_placement_strategy", _TEXT, "linear", choices=("linear", "round_robin")),
    Flag("dbo_decode_token_threshold", _INTEGER, 32, low=0),
    Flag("dbo_prefill_token_threshold", _INTEGER, 512, low=0),
    Flag("master_addr", _TEXT, "127.0.0.1"),
    Flag("master_port", _INTEGER, 29501, low=1, high=65535),
    Flag("max_model_len", _INTEGER, low=-1),
    Flag("dtype", _TEXT, "auto", choices=("auto", "half", "float16", "bfloat16", "float", "float32")),
    Flag("seed", _INTEGER, 0),
    Flag("max_logprobs", _INTEGER, 20, low=-1),
    Flag("gdn_prefill_backend", _TEXT, choices=("flashinfer", "triton", "cutedsl", "aiter_flydsl", "sycl")),
    Flag("kda_prefill_backend", _TEXT, choices=("auto", "triton", "flashkda", "flashinfer", "fused")),
    Flag("sleep_mode_backend", _TEXT, "cumem"),
    Flag("performance_mode", _TEXT, "balanced", choices=("balanced", "interactivity", "throughput")),
    Flag("port", _INTEGER, 8000, low=0, high=65535),
)
#: Whole numbers from 1 on that the engine derives from hardware and model where they are unset.
_FROM_ONE = """
max_num_batched_tokens max_num_scheduled_tokens max_num_seqs max_num_active_seqs block_size kv_cache_memory_bytes
num_gpu_blocks_override prefix_match_unit mamba_block_size spec_tokens
"""
#: The same, 1 where they are unset.
_ONE = """
prefill_schedule_interval stream_interval pipeline_parallel_size tensor_parallel_size data_parallel_size
decode_context_parallel_size prefill_context_parallel_size nnodes
"""
#: From 0 on, without a default and with 0 as default.
_FROM_ZERO = "max_num_queued_reqs max_num_queued_tokens max_cudagraph_capture_size"
_ZERO = "long_prefill_token_threshold prefix_cache_retention_interval node_rank shutdown_timeout"
#: Switches that are off by default; for those below the engine decides, or it does not matter here.
_OFF = """
long_prefill_token_threshold_adaptive disable_chunked_mm_input enable_expert_parallel enable_eplb enable_elastic_ep
enable_dbo enable_hc_sp disable_custom_all_reduce enforce_eager enable_return_routed_experts monokernel
"""
_SWITCHES = """
trust_remote_code allow_deprecated_quantization return_sampling_mask use_fp64_gumbel enable_trace_replay
disable_sliding_window disable_cascade_attn skip_tokenizer_init enable_prompt_embeds enable_sleep_mode
sleep_mode_offload_cudagraph enable_cumem_allocator enable_nccl_comm_suspend use_tqdm_on_load
enable_mamba_cache_stochastic_rounding numa_bind dcp_q_replicate data_parallel_hybrid_lb data_parallel_external_lb
enable_batch_sharded_sampling enable_ep_weight_filter enable_shm_tensor_arena disable_nccl_for_dp_synchronization
ray_workers_use_nsight enable_fault_tolerance kv_sharing_fast_prefill swa_bounded_replay
enable_mamba_shared_prefix_checkpoint use_replayssm language_model_only enable_mm_embeds mm_encoder_only
interleave_mm_strings skip_mm_profiling mm_device_do_normalize enable_lora enable_tower_connector_lora
fully_sharded_loras specialize_active_lora enable_mixed_moe_lora_format enable_moe_shared_loras kv_cache_metrics
cudagraph_metrics enable_layerwise_nvtx_tracing enable_mfu_metrics enable_logging_iteration_details jit_monitor_verbose
enable_flashinfer_autotune fail_on_environ_validation enable_log_requests trust_request_chat_template
trust_request_mm_kwargs return_tokens_as_token_ids enable_auto_tool_choice exclude_tools_when_tool_choice_none
enable_prompt_tokens_details enable_per_request_metrics enable_server_load_tracking enable_force_include_usage
enable_tokenizer_info_endpoint enable_log_outputs enable_log_deltas cohere_is_reasoning_model log_error_stack
tokens_only enable_scale_out disable_uvicorn_access_log allow_credentials enable_ssl_refresh enable_request_id_headers
disable_fastapi_docs enable_offline_docs enable_flash_late_interaction enable_chunked_prefill enable_prefix_caching
disable_hybrid_kv_cache_manager async_scheduling
"""
_ONLY_ON = "disable_log_stats aggregate_engine_logging data_parallel_multi_port_external_lb headless grpc"
_INTEGERS = """
renderer_num_workers safetensors_prefetch_num_threads safetensors_prefetch_block_size mamba_cache_philox_rounds
distributed_timeout_seconds cpu_distributed_timeout_seconds dcp_kv_cache_interleave_size cp_kv_cache_interleave_size
data_parallel_rank data_parallel_start_rank data_parallel_size_local data_parallel_rpc_port ubatch_size
elastic_ep_max_dp_size dp_sync_interval max_parallel_loading_workers replayssm_buffer_len offload_group_size
offload_num_in_group offload_prefetch_step mm_shm_cache_max_object_size_mb max_loras max_lora_rank max_cpu_loras
max_lora_cls_labels optimization_level max_log_len sse_keep_alive_interval grpc_port data_parallel_supervisor_port
dp_supervisor_probe_failure_threshold ssl_cert_reqs h11_max_incomplete_event_size h11_max_header_count api_server_count
"""
_NUMBERS = """
mm_processor_cache_gb mm_encoder_fp8_scale_save_margin video_pruning_rate mm_ipc_gpu_memory_gb kv_cache_metrics_sample
dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s
"""
_TEXTS = """
model runner convert tokenizer tokenizer_mode hf_config_path allowed_local_media_path allowed_media_domains revision
code_revision tokenizer_revision quantization quantization_config logprobs_mode served_model_name config_format hf_token
hf_overrides model_class_overrides pooler_config generation_config override_generation_config
sleep_preserve_parameter_names model_impl logits_processors io_processor_plugin load_format download_dir
safetensors_load_strategy model_loader_extra_config ignore_patterns pt_load_map_location attention_backend mamba_backend
mamba_ssu_algorithm reasoning_parser reasoning_parser_plugin numa_bind_nodes numa_bind_cpus device_ids dcp_comm_backend
data_parallel_address data_parallel_backend eplb_config worker_cls worker_extension_cls fault_tolerance_config
kv_cache_dtype_skip_layers offload_backend cpu_offload_params offload_params limit_mm_per_prompt media_io_kwargs
mm_processor_kwargs mm_processor_cache_type mm_hasher_algorithm mm_encoder_tp_mode mm_encoder_attn_backend
mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path video_pruning_method mm_tensor_ipc
mm_processor_device lora_dtype lora_target_modules default_mm_loras logging_config log_level log_config_file
show_hidden_metrics_for_version otlp_traces_endpoint collect_detailed_traces per_request_spec_decode_metrics
custom_histogram_buckets jit_monitor_mode ir_op_priority moe_backend linear_backend
sparse_indexer_topk_backend speculative_config spec_method spec_model watermark_config diffusion_config
kv_transfer_config kv_events_config ec_transfer_config ec_manager_config compilation_config attention_config
engram_config reasoning_config kernel_config additional_config structured_outputs_config aux_output_config
profiler_config weight_transfer_config kda_decode_backend lora_modules
chat_template chat_template_content_format default_chat_template_kwargs response_role tool_call_parser
tool_parser_plugin tool_strict_level tool_server cohere_format anthropic_disabled_thinking_effort fingerprint_mode
fingerprint_value host uds uvicorn_log_level disable_access_log_for_endpoints allowed_origins allowed_methods
allowed_headers api_key ssl_keyfile ssl_certfile ssl_ca_certs ssl_ciphers root_path middleware config scheduler_cls
distributed_executor_backend watchdog_config reasoning_effort_map
"""


def _alike(
    names: str, value_type: FlagType, default: FlagValue | None = None, low: float = -math.inf
) -> Iterator[Flag]:
    return (Flag(name, value_type, default, low) for name in names.split())


#: Every long flag of `vllm serve`, by snake-case name.
VLLM_FLAGS: Mapping[str, Flag] = flag_table(
    _OWN_RANGE,
    _alike(_FROM_ONE, _INTEGER, low=1),
    _alike(_ONE, _INTEGER, 1, low=1),
    _alike(_FROM_ZERO, _INTEGER, low=0),
    _alike(_ZERO, _INTEGER, 0, low=0),
    _alike(_OFF, _SWITCH, default=False),
    _alike(_SWITCHES, _SWITCH),
    _alike(_ONLY_ON, FlagType.ON),
    _alike(_INTEGERS, _INTEGER),
    _alike(_NUMBERS, _NUMBER),
    _alike(_TEXTS, _TEXT),
    _alike("cudagraph_capture_sizes", FlagType.SIZES),
)


class FlagReleases(PresenceTable):
    """Which releases have a flag."""

    table, column = "flags.csv", "flag"


FLAG_RELEASES = FlagReleases("vllm", "vLLM", "vLLM engine/arg_utils.py")
#: Second names of flags.
OTHER_NAMES: Mapping[str, str] = {"device_memory_utilization": "gpu_memory_utilization"}
#: What to write instead of flags that older releases had; some left before the oldest that was read.
REMOVED_FLAGS: Mapping[str, str] = {
    "max_num_partial_prefills": "prompts are chunked to max_num_batched_tokens and long_prefill_token_threshold only",
    "max_long_partial_prefills": "prompts are chunked to max_num_batched_tokens and long_prefill_token_threshold only",
    "num_scheduler_steps": "multi-step scheduling is gone; async_scheduling took its place",
    "scheduler_delay_factor": "see prefill_schedule_interval",
    "use_v2_block_manager": "there is only one block manager",
    "preemption_mode": "preemption always recomputes",
    "swap_space": "see kv_offloading_size",
    "max_seq_len_to_capture": "see max_cudagraph_capture_size",
    "disable_async_output_proc": "see async_scheduling",
}
