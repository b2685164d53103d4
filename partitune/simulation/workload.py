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
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from partitune.errors import SpecError, nearest
from partitune.simulation.request import Request, SharedPrefix


@dataclass(frozen=True, slots=True)
class _Spelling:
    """Names of a trace line's three keys."""

    timestamp: str
    unit: str
    unit_s: float
    prompt: str
    output: str

    @property
    def keys(self) -> tuple[str, str, str]:
        return (self.timestamp, self.prompt, self.output)


_SPELLINGS = (
    _Spelling("timestamp_s", "seconds", 1.0, "prompt_tokens", "output_tokens"),
    _Spelling("timestamp", "milliseconds", 1e-3, "input_length", "output_length"),  # Mooncake's
)


@dataclass(frozen=True, slots=True)
class RandomWorkload:
    """Random lengths and arrivals. Lengths lie within `range_ratio` of the mean, evenly; 0 means all equal."""

    count: int
    prompt_tokens: int
    output_tokens: int
    range_ratio: float = 0.0  # 0 <= range_ratio < 1
    rate_req_s: float = math.inf  # inf: all at once
    burstiness: float = 1.0  # gamma shape of the gaps: 1 is a Poisson process, below 1 burstier, inf even
    seed: int = 0
    prefix_tokens: int = 0  # the same in front of every prompt, on top of its own (`--random-prefix-len`)

    def __post_init__(self) -> None:
        for key in ("count", "prompt_tokens", "output_tokens"):
            if getattr(self, key) < 1:
                raise SpecError(f"random workload: {key} is {getattr(self, key)}; it must be 1 or more")
        if self.prefix_tokens < 0:
            raise SpecError(f"random workload: prefix_tokens is {self.prefix_tokens}; it must be 0 or more")
        if not 0.0 <= self.range_ratio < 1.0:
            raise SpecError(f"random workload: range_ratio is {self.range_ratio}; it must be in [0, 1)")
        for key in ("rate_req_s", "burstiness"):
            if not getattr(self, key) > 0.0:
                raise SpecError(f"random workload: {key} is {getattr(self, key)}; it must be above 0")

    def requests(self) -> list[Request]:
        """The requests; equal workloads give equal requests on every machine."""
        lengths = np.random.default_rng(self.seed)
        prompts = self._lengths(lengths, self.prompt_tokens)
        outputs = self._lengths(lengths, self.output_tokens)
        arrivals = self._arrivals()
        shared = self.prefix_tokens
        prefix = SharedPrefix("random", shared) if shared else None
        return [
            Request(str(number), float(arrival), shared + max(1, int(prompt)), max(1, int(output)), prefix=prefix)
            for number, (arrival, prompt, output) in enumerate(zip(arrivals, prompts, outputs, strict=True))
        ]

    def _lengths(self, generator: np.random.Generator, mean: int) -> list[int]:
        low = math.floor(mean * (1 - self.range_ratio))
        high = math.ceil(mean * (1 + self.range_ratio))
        return [int(length) for length in generator.integers(low, high + 1, size=self.count)]

    def _arrivals(self) -> list[float]:
        if self.rate_req_s == math.inf:
            return [0.0] * self.count
        if self.burstiness == math.inf:
            gaps = np.full(self.count, 1.0 / self.rate_req_s)
        else:
            scale = 1.0 / (self.rate_req_s * self.burstiness)
            gaps = np.random.RandomState(self.seed).gamma(self.burstiness, scale, size=self.count)
        arrivals = np.cumsum(gaps)
        return [float(arrival) for arrival in arrivals * (self.count / self.rate_req_s / arrivals[-1])]


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
    return [
        Request(request.id, request.arrival_s - begin, request.prompt_tokens, request.output_tokens)
        for request in requests
    ]


def _trace_line(line: str, place: str, name: str) -> Request:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise SpecError(f"{place}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise SpecError(f"{place}: must be a JSON object, not {type(row).__name__}")
    spelling = max(_SPELLINGS, key=lambda each: len(row.keys() & set(each.keys)))
    for key in spelling.keys:
        if key not in row:
            near = nearest(key, row)
            hint = f"; did you mean it by {near[0]!r}?" if near else ""
            raise SpecError(f"{place}: {key}: missing; a line needs {', '.join(spelling.keys)}{hint}")
    arrival = row[spelling.timestamp]
    if isinstance(arrival, bool) or not isinstance(arrival, int | float) or not math.isfinite(arrival):
        raise SpecError(f"{place}: {spelling.timestamp}: {arrival!r} is not a number of {spelling.unit}")
    for key in (spelling.prompt, spelling.output):
        if isinstance(row[key], bool) or not isinstance(row[key], int) or row[key] < 1:
            raise SpecError(f"{place}: {key}: {row[key]!r} is not a whole number of 1 or more")
    return Request(name, arrival * spelling.unit_s, row[spelling.prompt], row[spelling.output])
