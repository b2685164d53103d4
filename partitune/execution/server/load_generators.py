"""The load generators and the words they are started with: the search space's load, said to each tool.

Decision: every run gets the lengths, the arrivals and the number of requests of the search space, in the tool's own
terms, and greedy requests that run to their full length. What a tool cannot do like that is refused before anything
starts, never approximated. No tool warms up by itself: each would repeat measured prompts, and the prefix cache would
answer for the engine.

Sources: vLLM 0.32.0 `benchmarks/serve.py`, `benchmarks/datasets/datasets.py`; SGLang 0.5.23 `benchmark/serving.py`,
`benchmark/datasets/common.py` (compute_random_lens); guidellm 0.8.1 `cli/run.py`, `schemas/`.
"""

from __future__ import annotations

import json
import math
import os.path
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from partitune.candidate import Knob
from partitune.spec.workload import RandomWorkload, SingleLoad, TraceWorkload

#: Flags of the engine that the load generator needs too, as it reads the same tokenizer.
SHARED_FLAGS = ("tokenizer", "tokenizer_mode", "trust_remote_code")
#: How each tool is usually started.
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm",),
    "sglang": ("python", "-m", "sglang.benchmark.serving"),
    "guidellm": ("guidellm",),
}


@dataclass(frozen=True, slots=True)
class Target:
    """The server a load goes to."""

    url: str
    engine: str
    model: str  # whose tokenizer makes the prompts
    served_name: str
    flags: Mapping[str, Knob]  # of the engine


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a load."""

    requests: int
    seed: int
    result: str  # file to write
    goodput: Mapping[str, float] = field(default_factory=dict)  # `ttft_ms` and so on: what a good request keeps


def unable(tool: str, load: SingleLoad, goodput: Mapping[str, float]) -> str | None:
    """Why `tool` cannot produce this load, or count its good requests; None when it can."""
    if tool == "guidellm" and goodput:
        return "counts no good requests; allowed: tool vllm or sglang"
    if isinstance(load, TraceWorkload):
        return None if tool == "vllm" else "replays no trace; allowed: tool vllm"
    if tool != "vllm" and load.burstiness != 1.0:
        return f"has only Poisson arrivals, and burstiness is {load.burstiness}; allowed: tool vllm"
    return None


def words(tool: str, load: SingleLoad, target: Target, run: Run) -> tuple[str, ...]:
    """The words after the program's name."""
    make = {"vllm": _vllm, "sglang": _sglang, "guidellm": _guidellm}[tool]
    return tuple(make(load, target, run))


def _vllm(load: SingleLoad, target: Target, run: Run) -> Iterator[str]:
    yield from ("bench", "serve", "--backend", "vllm" if target.engine == "vllm" else "openai")
    yield from ("--base-url", target.url, "--endpoint", "/v1/completions")
    yield from ("--model", target.model, "--served-model-name", target.served_name)
    for name in SHARED_FLAGS:
        if value := target.flags.get(name):
            yield "--" + name.replace("_", "-")
            if value is not True:
                yield str(value)
    if isinstance(load, TraceWorkload):
        yield from ("--dataset-name", "timed_trace", "--dataset-path", load.file)
        yield from ("--timed-trace-sec-multiplier", "0.001")
    else:
        yield from ("--dataset-name", "random", "--random-input-len", str(load.prompt_tokens))
        yield from ("--random-output-len", str(load.output_tokens), "--random-range-ratio", f"{load.range_ratio:g}")
        if load.concurrency is not None:
            yield from ("--max-concurrency", str(load.concurrency))
        if load.request_rate_req_s is not None:
            yield from ("--request-rate", f"{load.request_rate_req_s:g}", "--burstiness", f"{load.burstiness:g}")
    yield from ("--num-prompts", str(run.requests), "--seed", str(run.seed), "--ignore-eos", "--temperature", "0")
    yield from ("--num-warmups", "0", "--ready-check-timeout-sec", "0", "--disable-tqdm")
    yield from ("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99")
    yield from _goodput(run)
    folder, name = os.path.split(run.result)
    yield from ("--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", name)


def _sglang(load: SingleLoad, target: Target, run: Run) -> Iterator[str]:
    assert isinstance(load, RandomWorkload)  # noqa: S101 - `unable` refuses the others
    yield from ("--backend", "sglang" if target.engine == "sglang" else "vllm", "--base-url", target.url)
    yield from ("--model", target.model, "--served-model-name", target.served_name)
    if tokenizer := target.flags.get("tokenizer_path") or target.flags.get("tokenizer"):
        yield from ("--tokenizer", str(tokenizer))
    # Lengths are drawn from [ratio x longest, longest] here, around the mean in a search space.
    ratio = (1 - load.range_ratio) / (1 + load.range_ratio)
    longest = [math.ceil(mean * (1 + load.range_ratio)) for mean in (load.prompt_tokens, load.output_tokens)]
    yield from ("--dataset-name", "random-ids", "--random-input-len", str(longest[0]))
    yield from ("--random-output-len", str(longest[1]), "--random-range-ratio", f"{ratio:.6g}")
    if load.concurrency is not None:
        yield from ("--max-concurrency", str(load.concurrency))
    if load.request_rate_req_s is not None:
        yield from ("--request-rate", f"{load.request_rate_req_s:g}")
    yield from ("--num-prompts", str(run.requests), "--seed", str(run.seed), "--warmup-requests", "0")
    yield from _goodput(run)
    yield from ("--disable-tqdm", "--output-details", "--output-file", run.result)


def _goodput(run: Run) -> Iterator[str]:
    """Both tools take the same words; the whole request is `e2el` there."""
    if run.goodput:
        yield "--goodput"
        names = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2e_ms": "e2el"}
        yield from (f"{names[name]}:{limit:g}" for name, limit in run.goodput.items())


def _guidellm(load: SingleLoad, target: Target, run: Run) -> Iterator[str]:
    assert isinstance(load, RandomWorkload)  # noqa: S101 - `unable` refuses the others
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
