"""`vllm serve …`, `vllm serve --help=all`, `vllm bench serve …`: the fake engine's command line."""

from __future__ import annotations

import argparse
import sys

SERVE_FLAGS = (
    *("host", "port", "served-model-name", "pipeline-parallel-size", "tensor-parallel-size", "nnodes", "node-rank"),
    *("master-addr", "master-port", "distributed-executor-backend", "max-num-batched-tokens", "max-num-seqs"),
    *("max-model-len", "gpu-memory-utilization", "worker-extension-cls", "load-format", "dtype", "block-size", "seed"),
    *("uvicorn-log-level", "kv-cache-memory-bytes", "tokenizer", "scheduling-policy"),
)
SERVE_SWITCHES = (
    *("async-scheduling", "enable-prefix-caching", "enable-chunked-prefill", "enforce-eager"),
    *("trust-remote-code", "enable-log-requests", "disable-log-stats", "headless", "fail-on-environ-validation"),
)
BENCH_FLAGS = (
    *("backend", "base-url", "endpoint", "model", "served-model-name", "tokenizer", "dataset-name", "dataset-path"),
    *("random-input-len", "random-output-len", "random-range-ratio", "max-concurrency", "request-rate", "burstiness"),
    *("num-prompts", "seed", "temperature", "num-warmups", "ready-check-timeout-sec", "percentile-metrics"),
    *("metric-percentiles", "result-dir", "result-filename"),
)
BENCH_SWITCHES = ("ignore-eos", "disable-tqdm", "save-result", "save-detailed", "trust-remote-code")


def parser(program: str, flags: tuple[str, ...], switches: tuple[str, ...]) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(program)
    for name in flags:
        made.add_argument(f"--{name}")
    for name in switches:
        made.add_argument(f"--{name}", action=argparse.BooleanOptionalAction)
    return made


def main(words: list[str]) -> None:
    if words[:2] == ["bench", "serve"]:
        from bench import bench  # type: ignore[import-not-found]

        bench(parser("vllm bench serve", BENCH_FLAGS, BENCH_SWITCHES).parse_args(words[2:]))
    elif words[:1] == ["serve"]:
        made = parser("vllm serve", SERVE_FLAGS, SERVE_SWITCHES)
        made.add_argument("model_tag", nargs="?")
        if "--help=all" in words:
            made.print_help()
            return
        from serving import serve  # type: ignore[import-not-found]

        serve(made.parse_args(words[1:]))
    else:
        sys.exit(f"vllm: error: argument subparser: invalid choice: {words[:1]}")


if __name__ == "__main__":
    main(sys.argv[1:])
