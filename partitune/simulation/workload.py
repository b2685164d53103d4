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
from dataclasses import replace
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


def read_trace(path: Path) -> list[Request]:
    """Requests of a JSON-lines trace, one object a line; the first one arrives at 0.

    A line has `timestamp_s`, `prompt_tokens`, `output_tokens`, or as in the Mooncake traces `timestamp` (milliseconds),
    `input_length`, `output_length`. Further keys are ignored, blank lines are skipped.

    Raises:
        SpecError: the file cannot be read, or a line is not as described; names file, line and key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot read the trace: {error}") from None
    requests: list[Request] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            requests.append(_trace_line(line, f"{path}:{number}", str(len(requests))))
    if not requests:
        raise SpecError(f"{path}: the trace has no requests; give one JSON object a line")
    begin = min(request.arrival_s for request in requests)
    return [replace(request, arrival_s=request.arrival_s - begin) for request in requests]


def _trace_line(line: str, place: str, name: str) -> Request:
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
    return Request(name, arrival * unit_s, prompt, output)
