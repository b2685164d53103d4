"""What the simulator makes of every flag of SGLang, and of its variables that the simulator heeds.

Decision: all fields of the engine stand here, also those that `flags` has no type for: any name passes to SGLang, so a
name that is left out would be taken and do nothing. A flag that only chooses what is logged, loaded or how the server
is reached has no effect once it serves; everything else that is not modelled says why.

Source: SGLang 0.5.23 `srt/arg_groups/fields/*.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.engines.coverage import DRAFTING, Covered, Effect, covered

_MODELLED, _NOT, _NONE = Effect.MODELLED, Effect.NOT_MODELLED, Effect.NONE

SGLANG_COVERAGE: Mapping[str, Covered] = covered((
    (_MODELLED, "", """
        kv_cache_dtype mamba_full_memory_ratio quantization cpu_offload_gb ep_num_redundant_experts
        language_model_only enable_multimodal mamba_ssm_dtype
        pp_max_micro_batch_size pp_async_batch_depth max_running_requests max_total_tokens page_size context_length
        swa_full_tokens_ratio disable_hybrid_swa_memory schedule_policy
        max_mamba_cache_size mem_fraction_static chunked_prefill_size max_prefill_tokens prefill_max_requests
        enable_dynamic_chunking enable_mixed_chunk prefill_decode_interval prefill_decode_interval_min_bs
        disable_radix_cache disable_cuda_graph disable_decode_cuda_graph
        disable_cuda_graph_padding cuda_graph_max_bs_decode cuda_graph_bs_decode cuda_graph_backend_decode
        tp_size pp_size dp_size dcp_size ep_size moe_a2a_backend disable_custom_all_reduce
        SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR SGLANG_PP_COMM_OVERLAP SGLANG_PP_SKIP_PURE_CHUNKED_OUTPUT_COMM
    """),
    (_NOT, DRAFTING, """
        speculative_algorithm uno_lora_path speculative_draft_model_path speculative_boundary_reduction
        speculative_draft_model_revision speculative_draft_load_format speculative_num_steps speculative_eagle_topk
        speculative_num_draft_tokens speculative_dflash_block_size speculative_domino_candidate_pool_size
        speculative_dspark_block_size speculative_dspark_sps_table_path speculative_dspark_confidence_sts_path
        speculative_dspark_align_verify_tokens_to_graph_tier speculative_accept_threshold_single
        speculative_accept_threshold_acc speculative_use_rejection_sampling speculative_use_block_verification
        speculative_token_map speculative_attention_mode speculative_draft_attention_backend
        speculative_dsa_topk_backend speculative_draft_kv_cache_dtype speculative_draft_window_size
        speculative_draft_sink_size speculative_moe_runner_backend speculative_moe_a2a_backend
        speculative_enable_w4a4_mxfp4_megamoe speculative_draft_model_quantization enable_multi_layer_eagle
        speculative_adaptive speculative_adaptive_config spec_trace_dir speculative_ngram_min_bfs_breadth
        speculative_ngram_max_bfs_breadth speculative_ngram_match_type speculative_ngram_max_trie_depth
        speculative_ngram_capacity speculative_ngram_external_corpus_path speculative_ngram_external_sam_budget
        speculative_ngram_external_corpus_max_tokens decoupled_spec_bind_endpoint decoupled_spec_connect_endpoints
        decoupled_spec_rank decoupled_spec_role SGLANG_ENABLE_PP_SPEC
    """),
    (_NOT, "the simulated scheduler does not heed it", """
        enable_priority_scheduling disable_priority_preemption default_priority_value
        abort_on_priority_when_disabled schedule_low_priority_values_first priority_scheduling_preemption_threshold
        retraction_policy num_continuous_decode_steps scheduler_recv_interval max_queued_requests
        min_free_slots_delay enable_prefill_delayer prefill_delayer_max_delay_passes
        prefill_delayer_token_usage_low_watermark prefill_delayer_forward_passes_buckets
        prefill_delayer_wait_seconds_buckets prefill_delayer_queue_min_ratio prefill_delayer_max_delay_ms
        disable_overlap_schedule disable_chunked_prefix_cache dllm_algorithm dllm_algorithm_config dllm_fdfo
        enable_encoder_swa_bounded_replay enable_decoder_swa_bounded_replay
    """),
    (_NOT, "the simulated prefix tree is that of full attention, and gives up what was used longest ago", """
        radix_eviction_policy radix_eviction_policy_config enable_session_radix_cache radix_cache_backend
        swa_prefix_tails mamba_radix_cache_strategy uses_mamba_radix_cache mamba_track_interval
        mamba_max_states_per_path enable_streaming_session
    """),
    (_NOT, "every layer's pool is sized as one of full attention in the type of the cache", """
        qsa_indexer_dtype quantization_param_path
        c128_page_size prefill_only_disable_kv_cache enable_page_major_kv_layout enable_unified_memory
        prefill_kv_cache_dequant_dtype enable_kv_cache_sharding enable_dsa_cache_layer_split
        enable_deepseek_v4_fp4_indexer
    """),
    (_NOT, "states have the size of the config", """
        enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds
        enable_int8_mamba_checkpoint int8_mamba_ckpt_size enable_linear_replayssm linear_replayssm_cache_len
        enable_linear_replayssm_spec
    """),
    (_NOT, "KV beyond the GPU's memory is not simulated", """
        enable_hierarchical_cache hicache_host_memory_mode hicache_ratio hicache_size hicache_host_memory_fraction
        hicache_write_policy hicache_io_backend hicache_mem_layout hicache_storage_backend
        hicache_storage_prefetch_policy hicache_storage_backend_extra_config
        hicache_storage_prefetch_retry_poll_interval hicache_storage_prefetch_retry_max_attempts
        enable_unified_cache_external_linker unified_cache_external_linker_backend
        unified_cache_external_linker_config enable_linker_mla_dedup enable_hisparse hisparse_config enable_lmcache
        lmcache_config_file enable_flexkv flexkv_config_file
    """),
    (_NOT, "the other side of a KV transfer, and the transfer, are not simulated", """
        disaggregation_mode disaggregation_decode_allocation_policy disaggregation_transfer_backend
        disaggregation_enable_kv_checksum disaggregation_bootstrap_port disaggregation_ib_device
        disaggregation_decode_enable_radix_cache disaggregation_decode_enable_offload_kvcache
        disaggregation_decode_retraction_backup num_reserved_decode_tokens disaggregation_decode_extra_slots
        disaggregation_decode_polling_interval enable_pd_role_switch optimistic_prefill_attempts
        disaggregation_decode_host_receive_threshold kv_events_config enable_pdmux pdmux_config_path sm_group_num
    """),
    (_NOT, "there are no times of the kernel that it asks for: those of `auto` stand in", "moe_runner_backend"),
    (_NOT, "kernels are those of the tables, whatever back end is asked for", """
        attention_backend decode_attention_backend prefill_attention_backend enable_lean_attention
        enable_nvidia_megakernel enable_amd_monokernel sampling_backend grammar_backend fp8_gemm_runner_backend
        fp4_gemm_runner_backend bf16_gemm_backend dsa_prefill_backend dsv4_prefill_backend dsa_triton_union
        dsa_decode_backend dsv4_attn_backend dsa_paged_mqa_logits_backend dsa_topk_backend
        disable_flashinfer_autotune flashinfer_autotune_skip_ops triton_attention_reduce_in_fp32
        triton_attention_num_kv_splits triton_attention_split_tile_size flashinfer_mla_disable_ragged
        enable_fused_qk_norm_rope enable_dsa_fused_indexer mamba_backend linear_attn_backend
        linear_attn_decode_backend linear_attn_prefill_backend linear_attn_verify_backend
        flashinfer_mxfp4_moe_precision enable_w4a4_mxfp4_megamoe enable_tf32_matmul enable_fp32_lm_head
        enable_deterministic_inference rl_on_policy_target enable_scattered_sconv model_impl
        disable_shared_experts_fusion enforce_shared_experts_fusion enable_megamoe_for_layernorm_sp
        disable_flashinfer_cutlass_moe_fp4_allgather
    """),
    (_NOT, "graphs of prompts, and compiled ones, are not simulated", """
        cuda_graph_config cuda_graph_backend_prefill cuda_graph_max_bs_prefill cuda_graph_max_seq_len_prefill
        cuda_graph_bs_prefill cuda_graph_prefill_max_context disable_prefill_cuda_graph enable_torch_compile
        torch_compile_max_bs enable_cudagraph_gc
    """),
    (_NOT, "all-reduces are SGLang's own or NCCL's, as `parallel.all_reduce_backend` says", """
        enable_nccl_nvls enable_symm_mem enable_mscclpp enable_torch_symm_mem boundary_reduction
        enable_quant_communications enable_flashinfer_allreduce_fusion enforce_disable_flashinfer_allreduce_fusion
        flashinfer_allreduce_fusion_backend enable_aiter_allreduce_fusion disable_aiter_allreduce_fusion_in_prefill
        disable_aiter_allreduce_fusion_in_decode enable_fused_moe_sum_all_reduce enable_p2p_check
    """),
    (_NOT, "experts are spread evenly but for `parallel.expert_imbalance`", """
        ep_dispatch_algorithm init_expert_location enable_eplb eplb_algorithm
        eplb_rebalance_num_iterations eplb_rebalance_layers_per_chunk eplb_min_rebalancing_utilization_threshold
        enable_waterfill elastic_ep_backend enable_elastic_expert_backup ep_join_mode elastic_ep_scale_timeout
        ep_join_rank_offset elastic_ep_initial_size max_ep_size
    """),
    (_NOT, "how tokens reach their experts is that of the defaults", """
        deepep_v2_mode deepep_mode fuseep_mode deepep_dispatcher_output_dtype flashinfer_a2a_dispatch_type
        deepep_config mooncake_ib_device
    """),
    (_NOT, "how ranks share layers is that of the sizes under `parallel`", """
        attn_dp_size attn_cp_size moe_dp_size dwdp_size dcp_comm_backend dcp_replicate_q_proj enable_prefill_cp
        cp_strategy enable_cp_tp_group_sharing enable_cp_decode_attn_tp enable_dp_attention
        enable_dp_attention_local_control_broadcast enable_dp_lm_head enable_tp_lm_head_all_to_all
        enable_attn_tp_input_scattered enable_shared_experts_attn_tp shared_experts_tp_size
        enable_dense_mlp_attn_tp enable_layernorm_sp disable_attn_tp_gather moe_dense_tp_size load_balance_method
    """),
    (_NOT, "micro-batches that overlap with communication are not simulated", """
        enable_two_batch_overlap enable_single_batch_overlap tbo_token_distribution_threshold
    """),
    (_NOT, "weights stay on the GPU and pay no transfer", """
        offload_group_size offload_num_in_group offload_prefetch_step offload_mode
        ple_offload_embedding ple_offload_backend ple_offload_dir enable_paged_experts paged_experts_num_resident
        kt_weight_path kt_method kt_cpuinfer kt_threadpool_count kt_num_gpu_experts
        kt_max_deferred_experts_per_token enable_weights_cpu_backup enable_draft_weights_cpu_backup
        enable_memory_saver
    """),
    (_NOT, "weights and kernels are those of the checkpoint as it is stored", """
        modelopt_quant quantize_and_serve rl_quant_profile dtype json_model_override_args
    """),
    (_NOT, "adapters take memory and time that are not counted", """
        enable_lora enable_lora_overlap_loading max_lora_rank lora_target_modules lora_paths max_loaded_loras
        max_loras_per_batch lora_eviction_policy lora_backend max_lora_chunk_size experts_shared_outer_loras
        lora_use_virtual_experts lora_strict_loading lora_drain_wait_threshold
    """),
    (_NOT, "loads are text, and what a tower computes, caches or drops is not simulated", """
        language_only encoder_only encoder_transfer_backend encoder_urls
        encoder_bootstrap_port encoder_register_urls enable_adaptive_dispatch_to_encoder mm_attention_backend
        enable_broadcast_mm_inputs_process enable_prefix_mm_cache mm_enable_dp_encoder mm_process_config
        mm_processor_worker_num mm_io_worker_num media_url_max_file_size_mb mm_preprocess_cache_size_mb
        trust_mm_content_hashes limit_mm_data_per_request enable_mm_global_cache image_processor_backend
        mm_global_cache_backend disable_fast_image_processor mm_feature_transport
        enable_precise_embedding_interpolation asr_max_buffer_seconds asr_max_concurrent_sessions
    """),
    (_NOT, "requests ask for nothing beside greedy tokens", """
        enable_custom_logit_processor enable_watermark watermark_config watermark_key watermark_key_b
        watermark_context_window watermark_mixing_probability watermark_max_probability watermark_default_enabled
        watermark_enforce_all enable_return_hidden_states return_hidden_states_mode
        enable_return_aux_hidden_states aux_hidden_state_capture return_aux_hidden_state_layer_ids
        enable_return_routed_experts enable_return_indexer_topk sampling_mask_max_tokens is_embedding enable_mis
        preferred_sampling_params disable_outlines_disk_cache constrained_json_whitespace_pattern
        constrained_json_disable_any_whitespace constrained_json_max_whitespace_cnt
    """),
    (_NOT, "the host's time is that of one tokenizer and one server under the defaults", """
        tokenizer_worker_num detokenizer_worker_num stream_interval batch_notify_size enable_http_worker_reuseport
        enable_dynamic_batch_tokenizer dynamic_batch_tokenizer_batch_size dynamic_batch_tokenizer_batch_timeout
        enable_tokenizer_batch_encode disable_tokenizer_batch_decode sleep_on_idle numa_node gc_threshold
        incremental_streaming_output tokenizer_backend skip_tokenizer_init
    """),
    (_NOT, "measuring and dumping cost time that is not counted", """
        expert_distribution_recorder_mode expert_distribution_recorder_buffer_size expert_balancedness_report_mode
        enable_profile_cuda_graph debug_cuda_graph enable_torch_compile_debug_mode enable_layerwise_nvtx_marker
        enable_forward_pass_metrics forward_pass_metrics_worker_id forward_pass_metrics_ipc_name enable_mfu_metrics
        kv_canary kv_canary_real_data kv_canary_sweep_interval debug_tensor_dump_output_folder
        debug_tensor_dump_layers debug_tensor_dump_input_file forward_hooks msprobe_dump_config enable_trace
        trace_modules
    """),
    (_NOT, "only CUDA GPUs are simulated", "device mlx_enable_sampling"),
    (_NONE, "where processes stand and how they find one another; partitune's launcher writes it", """
        nnodes node_rank dist_init_addr dist_timeout nccl_port gated_launch_port base_gpu_id gpu_id_step use_ray
        pre_warm_nccl watchdog_timeout soft_watchdog_timeout custom_sigquit_handler
    """),
    (_NONE, "requests of a load run to their full length, and all of it is reserved for them",
     "schedule_conservativeness"),
    (_NONE, "only while weights are loaded", """
        load_format model_loader_extra_config trust_remote_code revision model_config_parser
        modelopt_checkpoint_restore_path modelopt_checkpoint_save_path modelopt_export_path
        startup_weight_load_mode custom_weight_loader weight_loader_disable_mmap
        weight_loader_prefetch_checkpoints weight_loader_prefetch_num_threads weight_loader_drop_cache_after_load
        remote_instance_weight_loader_seed_instance_ip remote_instance_weight_loader_seed_instance_service_port
        remote_instance_weight_loader_send_weights_group_ports remote_instance_weight_loader_backend
        remote_instance_weight_loader_start_seed_via_transfer_engine engine_info_bootstrap_port modelexpress_config
        download_dir model_checksum delete_ckpt_after_loading decrypted_config_file decrypted_draft_config_file
        checkpoint_engine_wait_weights_before_ready weight_cache_mode weight_cache_socket weight_cache_timeout
        weight_version skip_server_warmup warmups
    """),
    (_NONE, "which text a request is, not how many tokens it has", """
        model_path random_seed tokenizer_path tokenizer_mode served_model_name chat_template
        trust_request_chat_template hf_chat_template_name completion_template reasoning_parser
        default_chat_template_kwargs strip_thinking_cache enable_strict_thinking tool_call_parser tool_server
        sampling_defaults allow_auto_truncate allowed_media_domains
    """),
    (_NONE, "how the server is reached and secured", """
        enable_response_store host port fastapi_root_path smg_grpc_mode grpc_mode grpc_port
        grpc_response_timeout_secs grpc_worker_threads sidecar sidecar_args enable_http2
        http2_max_concurrent_streams http2_initial_connection_window_size ssl_keyfile ssl_certfile ssl_ca_certs
        ssl_keyfile_password enable_ssl_refresh api_key admin_api_key file_storage_path enable_cache_report
        return_input_ids return_output_ids stream_response_default_include_usage smg_http_sidecar_port
    """),
    (_NONE, "what is logged", """
        log_level log_level_http log_requests log_requests_level log_requests_format log_requests_target
        uvicorn_access_log_exclude_prefixes crash_dump_folder show_time_cost enable_metrics
        enable_metrics_for_all_schedulers load_snapshot_publish_interval tokenizer_metrics_custom_labels_header
        tokenizer_metrics_allowed_custom_labels extra_metric_labels bucket_time_to_first_token
        bucket_inter_token_latency bucket_e2e_request_latency prompt_tokens_buckets generation_tokens_buckets
        gc_warning_threshold_secs decode_log_interval enable_request_time_stats_logging load_publish_endpoint
        otlp_traces_endpoint otlp_service_name export_metrics_to_file export_metrics_to_file_dir stat_loggers
    """),
    (_NONE, "other spellings of sizes that partitune writes", """
        pipeline_parallel_size tensor_parallel_size data_parallel_size expert_parallel_size
        attention_data_parallel_size decode_context_parallel_size attention_context_parallel_size
    """),
    (_NONE, "the variable of the partition", "SGLANG_PP_LAYER_PARTITION"),
))  # fmt: skip
