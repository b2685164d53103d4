"""What a server of SGLang logs, and what its metrics page is made of.

Lines without a head belong to the process of the line before. Its stages and tensor-parallel ranks repeat one
another's figures.

Source: SGLang 0.5.23 `srt/utils/common.py` (configure_logger), `srt/managers/scheduler.py` (prefix),
`srt/distributed/bootstrap.py`, `srt/model_executor/{model_runner,pool_configurator}.py`, `srt/server_args.py`,
`srt/entrypoints/{engine,http_server}.py`, `srt/utils/{network,watchdog}.py`,
`srt/observability/metrics_collector.py`; uvicorn's own words.
"""

from __future__ import annotations

import re

from partitune.engines.readout import FailureKind, Head, LogWords, MetricsPage, Phase, Readout

_HEAD = re.compile(r"\[\d{4}-(?P<time>\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)?(?P<process>(?: [A-Z_]+\d+)*)\] ?")

_WORDS = LogWords(
    phases=(
        (Phase.READY, r"^INFO: +Application startup complete|The server is fired up and ready to roll"),
        (Phase.CAPTURE, r"^Load weight end\.|^max_total_num_tokens=\d"),
        (Phase.LOAD, r"^Load weight begin\."),
        (Phase.RENDEZVOUS, r"^Init parallel begin"),
    ),
    failures={
        FailureKind.DEAD: (
            r"Received sigquit from a child process",
            r"Initialization failed\. Please see the error messages above",
        ),
        FailureKind.KV_TOO_SMALL: (r"^RuntimeError: Not enough memory\. Please try to increase --mem-fraction-static",),
        FailureKind.MEMORY_TAKEN: (r"The memory capacity is unbalanced",),
        FailureKind.UNSUPPORTED: (r"Pipeline Parallel is not compatible",),
        # A soft one only says so, and goes on.
        FailureKind.STALL: (r"atchdog timeout \(self\.watchdog_timeout=[\d.]+(?:, self\.soft=False)?\)",),
        FailureKind.PORT: (r"^ValueError: \S*port\S* at \d+ is not available",),
    },
    facts=(("kv_tokens", "", r"^max_total_num_tokens=(\d{1,15})"),),
    weights=r"^Load weight end\..*mem usage=(\d[\d.]{0,20}) GB",
)

_METRICS = MetricsPage(
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


class SglangReadout(Readout):
    """What a server of SGLang says."""

    metrics = _METRICS
    logs = _WORDS

    def head(self, line: str) -> Head | None:
        """Time and ranks, at the beginning."""
        head = _HEAD.match(line)
        if head is None:
            return None
        return Head(head["process"].strip(), line[head.end() :], head["time"], is_heir=True)
