"""What the load generators of vLLM and SGLang have in common: SGLang's was made of vLLM's."""

from __future__ import annotations

from collections.abc import Iterator

from partitune.engines.launch import LoadRun
from partitune.engines.readout import BenchFormat


def serving_format(end_to_end: str, **further: tuple[str, ...]) -> BenchFormat:
    """The keys of a result; `end_to_end` is the tool's word for the latency of a whole request."""
    return BenchFormat(
        keys={
            "completed": ("completed",),
            "failed": ("failed",),
            "sent": ("num_prompts",),
            "input_tokens": ("total_input_tokens",),
            "output_tokens": ("total_output_tokens",),
            "duration_s": ("duration",),
            **further,
        },
        latencies={
            **{what: ("{}_" + what + "_ms", 1.0) for what in ("ttft", "tpot", "itl")},
            "e2e": ("{}_" + end_to_end + "_ms", 1.0),
        },
        points={"mean": ("mean",), "p50": ("median", "p50"), "p90": ("p90",), "p99": ("p99",)},
        throughputs={
            "output_throughput_tok_s": ("output_throughput",),
            "request_throughput_req_s": ("request_throughput",),
        },
        rates={"goodput_req_s": ("request_goodput",)},  # null where no limits were given to the tool
    )


def goodput_words(run: LoadRun) -> Iterator[str]:
    """What a good request keeps; the whole request is `e2el` there."""
    if run.goodput:
        yield "--goodput"
        names = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2e_ms": "e2el"}
        yield from (f"{names[name]}:{limit:g}" for name, limit in run.goodput.items())
