"""`sglang.benchmark.serving`: the words it is started with, and where its result has what.

Source: SGLang 0.5.23 `benchmark/serving.py` (one object a line, appended), `benchmark/datasets/common.py`
(compute_random_lens).
"""

from __future__ import annotations

from collections.abc import Iterator

from partitune.engines.launch import LoadGenerator, LoadRun, Target, goodput_words, serving_format
from partitune.spec.workload import RandomWorkload, SingleLoad


class SglangBench(LoadGenerator):
    """The load generator of SGLang."""

    name = "sglang"
    title = "sglang.benchmark.serving"
    program = ("python", "-m", "sglang.benchmark.serving")
    format = serving_format("e2e_latency")
    trace = None
    draws_bursts = False
    counts_good_requests = True

    def words(self, load: SingleLoad, target: Target, run: LoadRun) -> Iterator[str]:
        """Its flags; there is no sub-command.

        Lengths are drawn from [ratio x longest, longest] there, and lie around the mean in a search space.
        """
        assert isinstance(load, RandomWorkload)  # noqa: S101 - it replays no trace
        yield from ("--backend", "sglang" if target.engine == self.name else "vllm", "--base-url", target.url)
        yield from ("--model", target.model, "--served-model-name", target.served_name)
        if tokenizer := target.flags.get("tokenizer_path") or target.flags.get("tokenizer"):
            yield from ("--tokenizer", str(tokenizer))
        ratio = (1 - load.range_ratio) / (1 + load.range_ratio)
        longest = [load.bounds(mean)[1] for mean in (load.prompt_tokens, load.output_tokens)]
        yield from ("--dataset-name", "random-ids", "--random-input-len", str(longest[0]))
        yield from ("--random-output-len", str(longest[1]), "--random-range-ratio", f"{ratio:.6g}")
        if load.concurrency is not None:
            yield from ("--max-concurrency", str(load.concurrency))
        if load.request_rate_req_s is not None:
            yield from ("--request-rate", f"{load.request_rate_req_s:g}")
        yield from ("--num-prompts", str(run.requests), "--seed", str(run.seed), "--warmup-requests", "0")
        yield from goodput_words(run)
        yield from ("--disable-tqdm", "--output-details", "--output-file", run.result)
