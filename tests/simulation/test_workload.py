from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from partitune.errors import SpecError
from partitune.planning.caveats import caveats
from partitune.planning.resolve import resolve
from partitune.simulation.workload import random_requests, read_trace
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


def trace(path: Path, *lines: str) -> Path:
    file = path / "trace.jsonl"
    file.write_text("\n".join(lines))
    return file


def test_both_spellings_of_a_trace(tmp_path: Path) -> None:
    ours = read_trace(
        trace(
            tmp_path,
            '{"timestamp_s": 10.5, "prompt_tokens": 100, "output_tokens": 20}',
            "",
            '{"timestamp_s": 12, "prompt_tokens": 7, "output_tokens": 1, "user": "x"}',
        )
    )
    assert ours.doubts == ("trace.jsonl: not heeded of its lines: user",)
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in ours.requests] == [(0.0, 100, 20), (1.5, 7, 1)]
    mooncake = read_trace(
        trace(
            tmp_path,
            '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}',
            '{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46]}',
        )
    )
    assert [(r.prompt_tokens, r.output_tokens) for r in mooncake.requests] == [(6955, 52), (6472, 26)]
    assert mooncake.requests[1].arrival_s == pytest.approx(3.053)


def test_what_of_a_trace_is_not_heeded_is_said_with_how_much_it_is(tmp_path: Path) -> None:
    line = '{{"timestamp": {}, "input_length": 1000, "output_length": 1, "hash_ids": {}}}'
    beginnings = [[0, 1, 2], [0, 1, 3], [0, 9], [7, 9]]  # 2 and 1 of 10 blocks begin as a prompt before did
    lines = [line.format(1000 * number, ids) for number, ids in enumerate(beginnings)]
    (doubt,) = read_trace(trace(tmp_path, *lines)).doubts
    assert doubt.startswith("trace.jsonl: hash_ids are not heeded")
    assert "30.0 % of their blocks were seen before" in doubt
    bailian = '{"chat_id": 1, "timestamp": 61.114, "input_length": 5, "output_length": 1, "type": "text", "turn": 2}'
    seconds, others = read_trace(trace(tmp_path, bailian)).doubts
    assert "timestamp has fractions, and is read as milliseconds" in seconds
    assert others == "trace.jsonl: not heeded of its lines: chat_id, type, turn"


def test_a_trace_is_doubted_beside_every_figure(tmp_path: Path) -> None:
    file = trace(tmp_path, '{"timestamp": 0, "input_length": 60, "output_length": 2, "hash_ids": [4]}')
    load = {"kind": "trace", "file": str(file)}
    space = SearchSpace.from_mapping({**SearchSpace.load("tiny").resolved(), "workload": load})
    doubts = caveats(resolve(space), {}).doubts
    assert any("hash_ids are not heeded" in doubt for doubt in doubts), doubts


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ["not JSON"]),
        ("[1]", ["JSON object"]),
        ('{"timestamp_s": 1, "prompt_tokens": 5}', ["output_tokens: missing"]),
        ('{"timestamp_s": 1, "prompt_tokens": 5, "output_token": 5}', ["output_tokens: missing", "'output_token'"]),
        ('{"timestamp": 1, "input_length": 5}', ["output_length: missing"]),
        ('{"timestamp_s": "1", "prompt_tokens": 5, "output_tokens": 5}', ["timestamp_s", "'1'"]),
        ('{"timestamp_s": NaN, "prompt_tokens": 5, "output_tokens": 5}', ["timestamp_s", "nan"]),
        ('{"timestamp_s": 1, "prompt_tokens": 0, "output_tokens": 5}', ["prompt_tokens", "1 or more"]),
        ('{"timestamp_s": 1, "prompt_tokens": 5, "output_tokens": 2.5}', ["output_tokens", "2.5"]),
        ('{"timestamp_s": 1, "prompt_tokens": true, "output_tokens": 2}', ["prompt_tokens", "True"]),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: list[str]) -> None:
    good = '{"timestamp_s": 1, "prompt_tokens": 5, "output_tokens": 5}'
    file = trace(tmp_path, good, good, line)
    with pytest.raises(SpecError) as caught:
        read_trace(file)
    assert f"{file}:3: " in str(caught.value)
    assert all(word in str(caught.value) for word in words), caught.value


def test_an_unreadable_or_empty_trace_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for file in (tmp_path / "absent", tmp_path, binary, trace(tmp_path, "", "  ")):
        with pytest.raises(SpecError, match=str(file)):
            read_trace(file)
