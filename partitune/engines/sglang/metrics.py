"""Names on SGLang's metrics page. Source: SGLang 0.5.23 `srt/observability/metrics_collector.py`.

Its stages and tensor-parallel ranks repeat one another's figures.
"""

from __future__ import annotations

from partitune.engines.readout import MetricsPage

SGLANG_METRICS = MetricsPage(
    prefix="sglang:",
    counters={
        "prompt_tokens": "sglang:prompt_tokens_total",
        "generation_tokens": "sglang:generation_tokens_total",
        "prefix_queries": "sglang:prompt_tokens_total",
        "prefix_hits": "sglang:cached_tokens_total",
        "preemptions": "sglang:num_retracted_requests_total",
        "running": "sglang:num_running_reqs",
        "kv_blocks": "sglang:num_pages",
        "kv_tokens": "sglang:max_total_num_tokens",
        "block_size": "sglang:page_size",
    },
    repeating=("pp_rank", "tp_rank"),
)
