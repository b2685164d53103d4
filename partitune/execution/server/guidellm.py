"""guidellm, a load generator that belongs to no engine: its words, and where its result has what.

Its time per output token counts the first token; its inter-token latency is per request, which others call TPOT.

Source: guidellm 0.8.1 `cli/run.py`, `schemas/`, `benchmark/schemas/` (report.py, metrics.py), `schemas/base/`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from partitune.engines.launch import LoadGenerator, LoadRun, Target
from partitune.engines.readout import BenchFormat
from partitune.spec.workload import RandomWorkload, SingleLoad


class Guidellm(LoadGenerator):
    """`guidellm run`: random requests only, at a rate or so many at once."""

    name = title = "guidellm"
    program = ("guidellm",)
    trace = None
    draws_bursts = False
    counts_good_requests = False
    format = BenchFormat(
        keys={
            "completed": ("metrics.request_totals.successful",),
            "failed": ("metrics.request_totals.errored",),
            "sent": ("metrics.request_totals.total",),
            "input_tokens": ("metrics.prompt_token_count.successful.total_sum",),
            "output_tokens": ("metrics.output_token_count.successful.total_sum",),
            "duration_s": ("duration",),
        },
        latencies={
            "ttft": ("metrics.time_to_first_token_ms.successful.{}", 1.0),
            "tpot": ("metrics.inter_token_latency_ms.successful.{}", 1.0),
            "e2e": ("metrics.request_latency.successful.{}", 1000.0),
        },
        points={"mean": ("mean",), "p50": ("median",), "p90": ("percentiles.p90",), "p99": ("percentiles.p99",)},
        results="benchmarks",
    )

    def words(self, load: SingleLoad, target: Target, run: LoadRun) -> Iterator[str]:
        """`run`, and JSON for each of its models."""
        assert isinstance(load, RandomWorkload)  # noqa: S101 - it replays no trace
        data: dict[str, object] = {"kind": "synthetic_text"}
        for name, mean in (("prompt_tokens", load.prompt_tokens), ("output_tokens", load.output_tokens)):
            data[name] = mean
            if load.range_ratio:
                data[f"{name}_min"] = max(1, math.floor(mean * (1 - load.range_ratio)))
                data[f"{name}_max"] = math.ceil(mean * (1 + load.range_ratio))
        profile: dict[str, object] = {"kind": "concurrent", "streams": [load.concurrency]}
        if load.request_rate_req_s is not None:
            profile = {"kind": "poisson", "rate": [load.request_rate_req_s]}
        server = {"kind": "openai_http", "target": target.url, "model": target.served_name}
        options: tuple[tuple[str, dict[str, object]], ...] = (
            ("backend", {**server, "request_format": "/v1/completions", "extras": {"body": {"temperature": 0}}}),
            ("profile", profile),
            ("constraint", {"kind": "max_requests", "count": run.requests}),
            ("tokenizer", {"kind": "huggingface_auto", "model": target.flags.get("tokenizer") or target.model}),
            ("data", data),
            ("seed", {"kind": "static", "value": run.seed}),
            ("output", {"kind": "json", "path": run.result}),
        )
        yield from ("run", "--disable-console")
        for name, value in options:
            yield from (f"--{name}", json.dumps(value, separators=(",", ":")))
