"""What the simulator makes of every flag of vLLM.

Decision: a flag of which nobody measured or read what it costs stands under the reason that is true of it, never under
"no effect". What only changes how a server is reached, loads, logs or checks itself has none once it serves.

Source: the help of each flag in vLLM 0.33.0 `engine/arg_utils.py`, `config/*.py`, `entrypoints/launchers/cli_args.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.engines.coverage import DRAFTING, Covered, Effect, covered

_MODELLED, _NOT, _NONE = Effect.MODELLED, Effect.NOT_MODELLED, Effect.NONE

VLLM_COVERAGE: Mapping[str, Covered] = covered((
    (_MODELLED, "", """
        scheduler_reserve_full_isl watermark gpu_memory_utilization kv_cache_dtype mamba_cache_mode max_model_len
        performance_mode max_num_batched_tokens max_num_seqs block_size kv_cache_memory_bytes num_gpu_blocks_override
        max_cudagraph_capture_size cudagraph_capture_sizes long_prefill_token_threshold enforce_eager
        language_model_only enable_chunked_prefill enable_prefix_caching async_scheduling prefill_schedule_interval
        pipeline_parallel_size tensor_parallel_size data_parallel_size decode_context_parallel_size
        prefill_context_parallel_size enable_expert_parallel all2all_backend disable_custom_all_reduce quantization
        kv_cache_dtype_skip_layers cpu_offload_gb offload_backend offload_group_size eplb_config limit_mm_per_prompt
        mamba_cache_dtype mamba_ssm_cache_dtype disable_hybrid_kv_cache_manager VLLM_KV_CACHE_LAYOUT
        max_num_scheduled_tokens max_num_active_seqs long_prefill_token_threshold_adaptive
        prefix_cache_retention_interval
    """),
    (_NOT, DRAFTING, "speculative_config spec_method spec_model spec_tokens"),
    (_NOT, "the simulated scheduler does not heed it yet", """
        scheduler_cls prefix_match_unit max_num_queued_reqs max_num_queued_tokens swa_bounded_replay
        kv_sharing_fast_prefill enable_mamba_shared_prefix_checkpoint
    """),
    (_NOT, "windows stay as the model has them", "disable_sliding_window"),
    (_NOT, "there are no times of the kernel that it asks for: those of `auto` stand in", "moe_backend"),
    (_NOT, "KV is planned for it, but times are those of the kernels in the tables",
     "gdn_prefill_backend kda_prefill_backend"),
    (_NOT, "kernels are those of the tables, whatever back end is asked for", """
        linear_backend attention_backend attention_config mamba_backend mamba_ssu_algorithm
        sparse_indexer_topk_backend kda_decode_backend kernel_config monokernel
        ir_op_priority disable_cascade_attn enable_flashinfer_autotune use_fp64_gumbel
        enable_flash_late_interaction
    """),
    (_NOT, "compiled graphs are those of the default level", "compilation_config optimization_level model_impl"),
    (_NOT, "weights and kernels are those of the checkpoint as it is stored", """
        quantization_config dtype hf_overrides model_class_overrides
    """),
    (_NOT, "states keep the blocks and the rounding of the defaults", """
        mamba_block_size enable_mamba_cache_stochastic_rounding
        mamba_cache_philox_rounds use_replayssm replayssm_buffer_len
    """),
    (_NOT, "weights that are fetched in groups, or by name, stay on the GPU here and pay no transfer", """
        cpu_offload_params offload_params offload_num_in_group offload_prefetch_step
    """),
    (_NOT, "KV beyond the GPU's memory is not simulated", "kv_offloading_size kv_offloading_backend"),
    (_NOT, "the other side of a KV transfer, and the transfer, are not simulated", """
        kv_transfer_config kv_events_config ec_transfer_config ec_manager_config
    """),
    (_NOT, "copies of experts take their bytes, and how evenly tokens then spread stays `parallel.expert_imbalance`",
     "enable_eplb"),
    (_NOT, "experts are spread evenly but for `parallel.expert_imbalance`", """
        expert_placement_strategy enable_elastic_ep elastic_ep_max_dp_size
        enable_ep_weight_filter
    """),
    (_NOT, "micro-batches that overlap with communication are not simulated", """
        enable_dbo ubatch_size dbo_decode_token_threshold dbo_prefill_token_threshold
    """),
    (_NOT, "how ranks talk to one another is that of the defaults", """
        enable_hc_sp dcp_comm_backend dcp_kv_cache_interleave_size cp_kv_cache_interleave_size dcp_q_replicate
        enable_nccl_comm_suspend disable_nccl_for_dp_synchronization dp_sync_interval enable_batch_sharded_sampling
        enable_shm_tensor_arena distributed_executor_backend
    """),
    (_NOT, "all-reduces are vLLM's own or NCCL's, as `parallel.all_reduce_backend` says", """
        VLLM_ALLREDUCE_USE_SYMM_MEM VLLM_ALLREDUCE_USE_FLASHINFER VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC
        VLLM_FLASHINFER_ALLREDUCE_BACKEND VLLM_USE_NCCL_SYMM_MEM VLLM_ROCM_QUICK_REDUCE_QUANTIZATION
        VLLM_ROCM_USE_AITER_CUSTOM_AR
    """),
    (_NOT, "adapters take memory and time that are not counted", """
        enable_lora max_loras max_lora_rank max_cpu_loras lora_dtype lora_target_modules fully_sharded_loras
        specialize_active_lora enable_mixed_moe_lora_format enable_moe_shared_loras enable_tower_connector_lora
        default_mm_loras lora_modules max_lora_cls_labels
    """),
    (_NOT, "loads are text, and what a tower computes, caches or drops is not simulated", """
        mm_encoder_only mm_encoder_tp_mode mm_encoder_attn_backend mm_encoder_attn_dtype
        mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin
        mm_processor_kwargs mm_processor_device mm_processor_cache_gb mm_processor_cache_type
        mm_shm_cache_max_object_size_mb mm_tensor_ipc mm_ipc_gpu_memory_gb mm_device_do_normalize skip_mm_profiling
        media_io_kwargs video_pruning_rate video_pruning_method disable_chunked_mm_input enable_mm_embeds
        interleave_mm_strings mm_hasher_algorithm
    """),
    (_NOT, "requests ask for nothing beside greedy tokens", """
        structured_outputs_config logits_processors watermark_config reasoning_config diffusion_config
        return_sampling_mask enable_return_routed_experts aux_output_config enable_prompt_embeds pooler_config
        convert runner engram_config max_logprobs logprobs_mode
    """),
    (_NOT, "the host's time is that of one API server under the defaults", """
        api_server_count renderer_num_workers stream_interval numa_bind numa_bind_nodes numa_bind_cpus
        enable_trace_replay
    """),
    (_NOT, "measuring costs time that is not counted", """
        profiler_config enable_layerwise_nvtx_tracing collect_detailed_traces enable_mfu_metrics kv_cache_metrics
        kv_cache_metrics_sample cudagraph_metrics enable_logging_iteration_details ray_workers_use_nsight
        per_request_spec_decode_metrics enable_per_request_metrics
    """),
    (_NOT, "sleeping engines are not simulated", """
        enable_sleep_mode sleep_mode_backend sleep_mode_offload_cudagraph sleep_preserve_parameter_names
        enable_cumem_allocator
    """),
    (_NOT, "code of the user's own is not known here", """
        worker_cls worker_extension_cls additional_config io_processor_plugin middleware
    """),
    (_NONE, "loads name no priorities, so both policies serve by arrival", "scheduling_policy"),
    (_NONE, "how a hash is made", "prefix_caching_hash_algo"),
    (_NONE, "where processes stand and how they find one another; partitune's launcher writes it", """
        master_addr master_port nnodes node_rank headless data_parallel_rank data_parallel_start_rank
        data_parallel_size_local data_parallel_address data_parallel_rpc_port data_parallel_backend
        data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb
        data_parallel_supervisor_port dp_supervisor_probe_failure_threshold dp_supervisor_probe_interval_s
        dp_supervisor_probe_timeout_s distributed_timeout_seconds cpu_distributed_timeout_seconds device_ids
        enable_fault_tolerance fault_tolerance_config enable_scale_out max_parallel_loading_workers
    """),
    (_NONE, "only while weights are loaded", """
        load_format download_dir safetensors_load_strategy safetensors_prefetch_num_threads
        safetensors_prefetch_block_size model_loader_extra_config ignore_patterns pt_load_map_location
        use_tqdm_on_load weight_transfer_config revision code_revision hf_token config_format hf_config_path
        trust_remote_code allow_deprecated_quantization
    """),
    (_NONE, "which text a request is, not how many tokens it has", """
        model tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init seed generation_config
        override_generation_config chat_template chat_template_content_format default_chat_template_kwargs
        trust_request_chat_template trust_request_mm_kwargs response_role reasoning_parser reasoning_parser_plugin
        enable_auto_tool_choice exclude_tools_when_tool_choice_none tool_call_parser tool_parser_plugin
        tool_strict_level tool_server cohere_format cohere_is_reasoning_model anthropic_disabled_thinking_effort
        served_model_name allowed_local_media_path allowed_media_domains fingerprint_mode fingerprint_value
        return_tokens_as_token_ids tokens_only reasoning_effort_map
    """),
    (_NONE, "how the server is reached and secured", """
        host port uds grpc grpc_port root_path api_key allow_credentials allowed_origins allowed_methods
        allowed_headers ssl_keyfile ssl_certfile ssl_ca_certs ssl_cert_reqs ssl_ciphers enable_ssl_refresh
        h11_max_incomplete_event_size h11_max_header_count sse_keep_alive_interval shutdown_timeout config
        enable_offline_docs disable_fastapi_docs enable_tokenizer_info_endpoint enable_request_id_headers
        enable_force_include_usage enable_prompt_tokens_details enable_server_load_tracking
    """),
    (_NONE, "what is logged", """
        logging_config log_level log_config_file uvicorn_log_level disable_uvicorn_access_log
        disable_access_log_for_endpoints enable_log_requests enable_log_outputs enable_log_deltas max_log_len
        log_error_stack disable_log_stats aggregate_engine_logging show_hidden_metrics_for_version
        otlp_traces_endpoint custom_histogram_buckets jit_monitor_mode jit_monitor_verbose fail_on_environ_validation
        watchdog_config
    """),
    (_NONE, "the variable of the partition and the runner's key stand in its place",
     "VLLM_PP_LAYER_PARTITION VLLM_USE_V2_MODEL_RUNNER"),
))  # fmt: skip
