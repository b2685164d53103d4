from __future__ import annotations

import math
import random

import numpy as np
import pytest
from pydantic import ValidationError

from partitune.errors import SpecError
from partitune.simulation.content import spans
from partitune.simulation.request import SharedPrefix
from partitune.simulation.workload import random_requests
from partitune.spec.search_space import SearchSpace
from partitune.spec.workload import RandomWorkload


def load(requests: int, prompt: int, output: int, **more: float) -> RandomWorkload:
    open_or_closed = more if "request_rate_req_s" in more else {"concurrency": requests, **more}
    return RandomWorkload(requests=requests, prompt_tokens=prompt, output_tokens=output, **open_or_closed)  # type: ignore[arg-type]


def test_equal_lengths_all_at_once() -> None:
    requests = random_requests(load(16, 256, 32))
    assert {(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in requests} == {(0.0, 256, 32)}
    assert len({r.id for r in requests}) == 16


def test_lengths_are_the_draws_of_the_benchmark() -> None:
    # vllm bench serve, RandomDataset.get_sampling_params: default_rng(seed), inputs first, both bounds included.
    requests = random_requests(load(50, 1000, 21, range_ratio=0.3), seed=7)
    generator = np.random.default_rng(7)
    assert [r.prompt_tokens for r in requests] == generator.integers(700, 1301, size=50).tolist()
    assert [r.output_tokens for r in requests] == generator.integers(14, 29, size=50).tolist()


def test_a_short_mean_never_gives_an_empty_request() -> None:
    requests = random_requests(load(200, 1, 1, range_ratio=0.9))
    assert {r.output_tokens for r in requests} == {1, 2}
    assert min(r.prompt_tokens for r in requests) == 1


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 5.0])
def test_arrivals_sum_to_count_over_rate(burstiness: float) -> None:
    requests = random_requests(load(400, 8, 8, request_rate_req_s=4.0, burstiness=burstiness))
    arrivals = [r.arrival_s for r in requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(100.0)
    gaps = np.diff(arrivals)
    # A gamma distribution of shape k has a coefficient of variation of 1 / sqrt(k).
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.15)


def test_the_seed_decides() -> None:
    drawn = load(20, 100, 10, range_ratio=0.5, request_rate_req_s=2.0)
    first, again, other = (random_requests(drawn, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("key", "value"),
    [("requests", 0), ("prompt_tokens", 0), ("output_tokens", -1), ("range_ratio", 1.0), ("request_rate_req_s", 0.0),
     ("burstiness", math.nan)],
)  # fmt: skip
def test_nonsense_is_refused(key: str, value: float) -> None:
    with pytest.raises(ValidationError, match=key):
        RandomWorkload(**({"concurrency": 1} | {key: value}))  # type: ignore[arg-type]


def test_system_prompts_come_before_and_go_round_as_the_benchmark_shuffles_them() -> None:
    shared = load(6, 100, 10, range_ratio=0.2, prefix_tokens=50, prefixes=3)
    alone, requests = random_requests(load(6, 100, 10, range_ratio=0.2), 5), random_requests(shared, 5)
    assert [r.prompt_tokens - 50 for r in requests] == [r.prompt_tokens for r in alone]
    # PrefixRepetitionRandomDataset: two of each prefix in order, then random.seed(seed), random.shuffle.
    wanted = ["0", "0", "1", "1", "2", "2"]
    random.seed(5)
    random.shuffle(wanted)
    assert [r.prefix for r in requests] == [(SharedPrefix(group, 50),) for group in wanted]


def test_turns_of_the_conversations_in_flight_alternate() -> None:
    talks = load(10, 100, 10, prefix_tokens=50, turns=2, concurrency=3)
    requests = random_requests(talks)
    before = [None, None, None, "0", "1", "2", None, None, "6", "7"]
    assert [r.continues for r in requests] == before
    assert [r.prompt_tokens for r in requests] == [150 if name is None else 260 for name in before]
    assert [bool(r.prefix) for r in requests] == [name is None for name in before]
    spans(requests)
    rounds = random_requests(load(6, 8, 8, turns=3, request_rate_req_s=4.0))
    assert [r.continues for r in rounds] == [None, None, "0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"turns": 3}, "turns: found 3 of 8 requests; allowed: a divisor of requests"),
        ({"turns": 4, "prefixes": 3, "prefix_tokens": 5}, "prefixes: found 3 for 2 conversations"),
        ({"prefixes": 2}, "prefixes: found without prefix_tokens"),
    ],
)  # fmt: skip
def test_conversations_that_do_not_come_out_are_refused(keys: dict[str, int], words: str) -> None:
    drawn = {"kind": "random", "requests": 8, "concurrency": 2, **keys}
    with pytest.raises(SpecError, match=words):
        SearchSpace.from_mapping({**SearchSpace.load("tiny").resolved(), "workload": drawn})
