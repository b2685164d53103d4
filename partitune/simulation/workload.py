"""Requests to simulate, drawn at random as the benchmark draws them.

Decision: the random workload repeats the draws of `vllm bench serve --dataset-name random` (numpy's default generator
seeded with the benchmark's seed: prompt lengths first, then output lengths), so the same seed means the same lengths on
a server and in the simulator; gaps between arrivals come from the legacy generator and are rescaled to sum to count /
rate, as there. Special tokens a tokenizer adds are not counted.

Conversations take turns, and the client holds a turn back until the answer before it is there.

Source: vLLM 0.33.0 `benchmarks/datasets/` (RandomDataset.get_sampling_params, PrefixRepetitionRandomDataset) and
`benchmarks/serve.py` (get_request).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from partitune.simulation.request import Request, SharedPrefix
from partitune.spec.workload import RandomWorkload


def random_requests(load: RandomWorkload, seed: int = 0) -> list[Request]:
    """The requests of a random load; equal loads and seeds give equal requests on every machine.

    Lengths lie within `range_ratio` of the mean, evenly. Without a rate all arrive at 0.
    """
    generator = np.random.default_rng(seed)
    prompts, outputs = (_lengths(generator, mean, load) for mean in (load.prompt_tokens, load.output_tokens))
    groups = _groups(load, seed)
    requests: list[Request] = []
    for arrival, prompt, output, (conversation, before) in zip(
        _arrivals(load, seed), prompts, outputs, _order(load), strict=True
    ):
        tokens = load.prefix_tokens
        prefix: tuple[SharedPrefix, ...] = ()
        continues = None
        if before is not None:
            earlier = requests[before]
            tokens, continues = earlier.prompt_tokens + earlier.output_tokens, earlier.id
        elif load.prefix_tokens:
            prefix = (SharedPrefix(str(groups[conversation]), load.prefix_tokens),)
        name, whole = str(len(requests)), max(1, tokens + prompt)
        requests.append(Request(name, arrival, whole, max(1, output), prefix=prefix, continues=continues))
    return requests


def _order(load: RandomWorkload) -> Iterator[tuple[int, int | None]]:
    """Of every request its conversation, and which request it continues.

    As many conversations as are in flight take turns, those of an open load all: who is earlier is sent first.
    """
    together = load.concurrency or load.conversations
    for first in range(0, load.conversations, together):
        round_ = range(first, min(first + together, load.conversations))
        for turn in range(load.turns):
            for conversation in round_:
                number = first * load.turns + turn * len(round_) + conversation - first
                yield conversation, number - len(round_) if turn else None


def _groups(load: RandomWorkload, seed: int) -> list[int]:
    """The system prompt of every conversation, in the order of `--dataset-name prefix_repetition`."""
    groups = [conversation * load.prefixes // load.conversations for conversation in range(load.conversations)]
    if load.prefixes > 1:
        random.Random(seed).shuffle(groups)  # noqa: S311 - as the benchmark draws
    return groups


def _lengths(generator: np.random.Generator, mean: int, load: RandomWorkload) -> list[int]:
    low, high = load.bounds(mean)
    lengths: list[int] = generator.integers(low, high + 1, size=load.requests).tolist()
    return lengths


def _arrivals(load: RandomWorkload, seed: int) -> list[float]:
    if load.request_rate_req_s is None:
        return [0.0] * load.requests
    scale = 1.0 / (load.request_rate_req_s * load.burstiness)
    gaps = np.random.RandomState(seed).gamma(load.burstiness, scale, size=load.requests)
    arrivals = np.cumsum(gaps)
    seconds: list[float] = (arrivals * (load.requests / load.request_rate_req_s / arrivals[-1])).tolist()
    return seconds
