"""Requests to simulate: drawn at random as the benchmark draws them, or read from a trace.

Decision: the random workload repeats the draws of `vllm bench serve --dataset-name random` (numpy's default generator
seeded with the benchmark's seed: prompt lengths first, then output lengths), so the same seed means the same lengths on
a server and in the simulator; gaps between arrivals come from the legacy generator and are rescaled to sum to count /
rate, as there. Special tokens a tokenizer adds are not counted.

Source: vLLM 0.33.0 `benchmarks/datasets/` (RandomDataset.get_sampling_params) and `benchmarks/serve.py` (get_request).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import numpy as np

from partitune.errors import SpecError, nearest
from partitune.simulation.request import Request
from partitune.spec.workload import RandomWorkload

#: How a trace line may spell arrival, prompt and output, and the unit of the arrival.
_SPELLINGS = (
    (("timestamp_s", "prompt_tokens", "output_tokens"), "seconds", 1.0),
    (("timestamp", "input_length", "output_length"), "milliseconds", 1e-3),  # Mooncake's
)
#: Keys of a trace that a doubt lists.
_NAMED = 8


def random_requests(load: RandomWorkload, seed: int = 0) -> list[Request]:
    """The requests of a random load; equal loads and seeds give equal requests on every machine.

    Lengths lie within `range_ratio` of the mean, evenly. Without a rate all arrive at 0.
    """
    generator = np.random.default_rng(seed)
    prompts, outputs = (_lengths(generator, mean, load) for mean in (load.prompt_tokens, load.output_tokens))
    return [
        Request(str(number), arrival, max(1, prompt), max(1, output))
        for number, (arrival, prompt, output) in enumerate(zip(_arrivals(load, seed), prompts, outputs, strict=True))
    ]


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


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trace says of its requests, and what it says that nothing here heeds."""

    requests: tuple[Request, ...]  # in the order of the file; the first to arrive does so at 0
    doubts: tuple[str, ...]


def read_trace(path: Path, most: int | None = None) -> Trace:
    """A JSON-lines trace, one object a line.

    A line has `timestamp_s`, `prompt_tokens`, `output_tokens`, or as in the Mooncake traces `timestamp` (milliseconds),
    `input_length`, `output_length`. Further keys are named as doubts, blank lines are skipped.

    Args:
        path: of the file.
        most: only so many requests from its beginning; None: all.

    Raises:
        SpecError: the file cannot be read, or a line is not as described; names file, line and key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot read the trace: {error}") from None
    requests: list[Request] = []
    unheeded = _Unheeded()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            requests.append(_trace_line(line, f"{path}:{number}", str(len(requests)), unheeded))
    if not requests:
        raise SpecError(f"{path}: the trace has no requests; give one JSON object a line")
    begin = min(request.arrival_s for request in requests)
    from_zero = [replace(request, arrival_s=request.arrival_s - begin) for request in requests]
    return Trace(tuple(from_zero[:most]), tuple(unheeded.doubts(path.name)))


class _Unheeded:
    """Keys of trace lines that nothing here heeds, and what `hash_ids` say of prompts that begin alike."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._fractions = False
        self._seen: set[object] = set()
        self._blocks = self._known = 0

    def add(self, row: dict[str, object], heeded: Sequence[str]) -> None:
        """Take note of one line. An id stands for a block and all before it, so that equal ids are equal beginnings."""
        self._names.update(dict.fromkeys(key for key in row if key not in heeded))
        arrival = row[heeded[0]]
        self._fractions |= heeded[0] == "timestamp" and isinstance(arrival, float) and not arrival.is_integer()
        blocks = row.get("hash_ids")
        if isinstance(blocks, list):
            ids = [block for block in blocks if isinstance(block, int)]
            self._blocks += len(ids)
            self._known += sum(1 for _ in takewhile(self._seen.__contains__, ids))
            self._seen.update(ids)

    def doubts(self, trace: str) -> Iterator[str]:
        """What a person should know beside every figure under this trace."""
        if self._fractions:
            yield f"{trace}: timestamp has fractions, and is read as milliseconds; a trace in seconds says timestamp_s"
        if self._blocks:
            yield (
                f"{trace}: hash_ids are not heeded: prompts are simulated as if none began like another, where "
                f"{100 * self._known / self._blocks:.1f} % of their blocks were seen before, by a cache that forgets "
                "nothing"
            )
        if others := [name for name in self._names if name != "hash_ids" or not self._blocks]:
            yield f"{trace}: not heeded of its lines: {', '.join(others[:_NAMED])}{', …' * (len(others) > _NAMED)}"


def _trace_line(line: str, place: str, name: str, unheeded: _Unheeded) -> Request:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise SpecError(f"{place}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise SpecError(f"{place}: must be a JSON object, not {type(row).__name__}")
    keys, unit, unit_s = max(_SPELLINGS, key=lambda spelling: len(row.keys() & set(spelling[0])))
    for key in keys:
        if key not in row:
            near = nearest(key, row)
            hint = f"; did you mean it by {near[0]!r}?" if near else ""
            raise SpecError(f"{place}: {key}: missing; a line needs {', '.join(keys)}{hint}")
    arrival, prompt, output = (row[key] for key in keys)
    if type(arrival) not in (int, float) or not math.isfinite(arrival):
        raise SpecError(f"{place}: {keys[0]}: {arrival!r} is not a number of {unit}")
    for key in keys[1:]:
        if type(row[key]) is not int or row[key] < 1:
            raise SpecError(f"{place}: {key}: {row[key]!r} is not a whole number of 1 or more")
    unheeded.add(row, keys)
    return Request(name, arrival * unit_s, prompt, output)
