"""Names on vLLM's metrics page. Source: vLLM 0.32.0 `v1/metrics/loggers.py`, `v1/spec_decode/metrics.py`."""

from __future__ import annotations

from partitune.engines.readout import MetricsPage

VLLM_METRICS = MetricsPage(
    prefix="vllm:",
    counters={
        "prompt_tokens": "vllm:prompt_tokens_total",
        "generation_tokens": "vllm:generation_tokens_total",
        "prefix_queries": "vllm:prefix_cache_queries_total",
        "prefix_hits": "vllm:prefix_cache_hits_total",
        "preemptions": "vllm:num_preemptions_total",
        "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
        "accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
        "running": "vllm:num_requests_running",
    },
    info="vllm:cache_config_info",
    info_labels={"kv_blocks": "num_gpu_blocks", "kv_tokens": "kv_cache_size_tokens", "block_size": "block_size"},
)
