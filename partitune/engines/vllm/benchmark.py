"""`vllm bench serve`: the words it is started with, and where its result has what.

Source: vLLM 0.32.0 `benchmarks/serve.py` (one JSON object, or one a line with --append-result),
`benchmarks/datasets/datasets.py`.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from math import gcd

from partitune.engines.launch import LoadGenerator, LoadRun, Target, TraceReading, goodput_words, serving_format
from partitune.spec.workload import RandomWorkload, SingleLoad, TraceWorkload

#: Flags of the engine that it needs too, as it reads the same tokenizer.
_SHARED_FLAGS = ("tokenizer", "tokenizer_mode", "trust_remote_code")
#: Why it cannot be told what a prompt begins with.
_BY_IDS = "prompts are made from hash_ids alone"


class VllmBench(LoadGenerator):
    """The load generator of vLLM, for any server with an OpenAI API."""

    name = "vllm"
    title = "vllm bench serve"
    program = ("vllm",)
    format = serving_format("e2el", acceptance_percent=("spec_decode_acceptance_rate",))
    #: It makes a prompt of `hash_ids` and an empty one where there are none; Mooncake's spelling is its default.
    trace = TraceReading(
        ("timestamp", "input_length", "output_length", "hash_ids"),
        "timed_trace_chunk_hash_size",
        "tokens that one of the trace's hash_ids stands for",
        others={"chat_id": "its times are in seconds", **dict.fromkeys(("prefix", "continues"), _BY_IDS)},
    )
    shares_prefixes = True
    draws_bursts = True
    counts_good_requests = True

    def words(self, load: SingleLoad, target: Target, run: LoadRun) -> Iterator[str]:
        """`bench serve` with the flags of this load and server, greedy and without a warm-up of its own."""
        yield from ("bench", "serve", "--backend", "vllm" if target.engine == self.name else "openai")
        yield from ("--base-url", target.url, "--endpoint", "/v1/completions")
        yield from ("--model", target.model, "--served-model-name", target.served_name)
        for name in _SHARED_FLAGS:
            if value := target.flags.get(name):
                yield "--" + name.replace("_", "-")
                if value is not True:
                    yield str(value)
        if isinstance(load, TraceWorkload):
            yield from ("--dataset-name", "timed_trace", "--dataset-path", load.file)
            yield from ("--timed-trace-sec-multiplier", "0.001")
        else:
            yield from _random(load, run)
            if load.concurrency is not None:
                yield from ("--max-concurrency", str(load.concurrency))
            if load.request_rate_req_s is not None:
                yield from ("--request-rate", f"{load.request_rate_req_s:g}", "--burstiness", f"{load.burstiness:g}")
        yield from ("--num-prompts", str(run.requests), "--seed", str(run.seed), "--ignore-eos", "--temperature", "0")
        yield from ("--num-warmups", "0", "--ready-check-timeout-sec", "0", "--disable-tqdm")
        yield from ("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99")
        yield from goodput_words(run)
        folder, name = os.path.split(run.result)
        yield from ("--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", name)


def _random(load: RandomWorkload, run: LoadRun) -> Iterator[str]:
    """The data set: `random` knows one system prompt, `prefix_repetition` several, each for as many requests."""
    if load.prefixes > 1:
        lengths = {
            "prefix-len": load.prefix_tokens,
            "suffix-len": load.prompt_tokens,
            "output-len": load.output_tokens,
            "num-prefixes": gcd(load.prefixes, run.requests),  # a warm-up may have fewer requests
        }
        yield from ("--dataset-name", "prefix_repetition")
        yield from (word for name, value in lengths.items() for word in (f"--prefix-repetition-{name}", str(value)))
        return
    yield from ("--dataset-name", "random", "--random-input-len", str(load.prompt_tokens))
    yield from ("--random-output-len", str(load.output_tokens), "--random-range-ratio", f"{load.range_ratio:g}")
    if load.prefix_tokens:
        yield from ("--random-prefix-len", str(load.prefix_tokens))
