"""`toy-bench`: the words it is started with, and where its result has what. Source: Toy 1.2 `program.py`."""

from __future__ import annotations

from collections.abc import Iterator

from partitune.engines.launch import LoadGenerator, LoadRun, Target, serving_format
from partitune.spec.workload import RandomWorkload, SingleLoad


class ToyBench(LoadGenerator):
    """The load generator of Toy."""

    name = "toy"
    title = "toy bench"
    program = ("toy",)
    format = serving_format("e2e")
    trace = None
    draws_bursts = False
    counts_good_requests = False

    def words(self, load: SingleLoad, target: Target, run: LoadRun) -> Iterator[str]:
        """`bench` and its flags."""
        assert isinstance(load, RandomWorkload)
        yield from ("bench", "--url", target.url, "--model", target.model, "--served-name", target.served_name)
        yield from ("--prompt-tokens", str(load.prompt_tokens), "--output-tokens", str(load.output_tokens))
        yield from ("--clients", str(load.concurrency or run.requests), "--requests", str(run.requests))
        yield from ("--seed", str(run.seed), "--result", run.result)
