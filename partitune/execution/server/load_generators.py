"""The load generators there are (those of the engines, and guidellm, which belongs to none), and which can send a load.

Decision: what a tool cannot do like the search space says is refused before anything starts, never approximated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from partitune.engines.launch import LoadGenerator, LoadRun, Target
from partitune.engines.readout import BenchFormat
from partitune.engines.registry import ENGINES
from partitune.spec.workload import RandomWorkload, SingleLoad, TraceWorkload


class Guidellm(LoadGenerator):
    """`guidellm run`: random requests only, at a rate or so many at once.

    Its time per output token counts the first token; its inter-token latency is per request, which others call TPOT.

    Source: guidellm 0.8.1 `cli/run.py`, `schemas/`, `benchmark/schemas/` (report.py, metrics.py), `schemas/base/`.
    """

    name = title = "guidellm"
    program = ("guidellm",)
    trace = None
    draws_bursts = False
    counts_good_requests = False
    key_variable = "GUIDELLM__SPEC__BACKEND__API_KEY"
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
                low, high = load.bounds(mean)
                data |= {f"{name}_min": max(1, low), f"{name}_max": high}
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


LOAD_GENERATORS: Mapping[str, LoadGenerator] = {
    tool.name: tool for tool in (*(engine.launch.load_generator for engine in ENGINES.values()), Guidellm())
}


def unable(tool: LoadGenerator, load: SingleLoad, goodput: Mapping[str, float]) -> str | None:
    """Why `tool` cannot produce this load, or count its good requests; None when it can."""
    if goodput and not tool.counts_good_requests:
        return f"counts no good requests; {_allowed(lambda other: other.counts_good_requests)}"
    if isinstance(load, TraceWorkload):
        return None if tool.trace else f"replays no trace; {_allowed(lambda other: other.trace is not None)}"
    if load.burstiness != 1.0 and not tool.draws_bursts:
        able = _allowed(lambda other: other.draws_bursts)
        return f"has only Poisson arrivals, and burstiness is {load.burstiness}; {able}"
    if load.turns > 1:
        return "sends no conversations; allowed: turns: 1, or a simulated search"
    if load.prefix_tokens and not tool.shares_prefixes:
        return f"sends no prefix_tokens; {_allowed(lambda other: other.shares_prefixes)}"
    if load.prefixes > 1 and (load.range_ratio or load.requests % load.prefixes):
        return (
            "sends several system prompts only with prompts of one length and to as many requests each; allowed: "
            "prefixes a divisor of requests, and range_ratio: 0"
        )
    return None


def _allowed(can: Callable[[LoadGenerator], bool]) -> str:
    return f"allowed: tool {' or '.join(name for name, tool in LOAD_GENERATORS.items() if can(tool))}"
