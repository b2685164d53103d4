"""What a load generator measured, in our metric names.

Decision: each tool's file is read by a table of the names it uses, and a key that is missing says which names were
looked for, because tools rename keys. Counts and the duration are demanded, throughputs are computed from them (one
definition for all tools) and must agree with what the tool printed. A latency of 0 is what the tools write where
nothing was measured (no second token), so it is left out and never wins; so are gaps between tokens that came several
at a time, which are gaps between network reads. One run leaves one result: a file that holds several, or ends in the
middle of one, is refused, as nobody can say which of them is meant.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from partitune.engines.readout import BenchFormat
from partitune.errors import BenchmarkFailed
from partitune.execution.readout.streams import gaps, unusable_metrics

_LARGEST_FILE = 256 << 20
#: A line of a log may begin like a result; more than this many are no result file.
_MOST_BROKEN_LINES = 20
#: How far a tool's own throughput may be from tokens over seconds.
_AGREEMENT = 0.02
#: Metrics that only the tool can count.
_RATES = frozenset({"goodput_req_s"})
_REQUIRED = ("completed", "input_tokens", "output_tokens")
_POINTS = ("mean", "p50", "p90", "p99")
#: A JSON object at the start of a line.
_OBJECT = re.compile(r"(?:^|\ufeff)\{", re.MULTILINE)

_Result = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What a load generator says of one measured window: counts, seconds, and metrics by our names."""

    metrics: Mapping[str, float]  # by our names (`spec.objectives.METRICS`); only what was measured
    sent: int | None  # requests; None: the tool does not say
    completed: int
    failed: int | None
    input_tokens: int
    output_tokens: int
    duration_s: float
    acceptance_rate: float | None = None  # of drafted tokens, 0 to 1
    longest_gap_s: float | None = None  # between two tokens of one request; None: not in the file
    errors: tuple[str, ...] = ()  # of requests, distinct, the first few
    remark: str = ""  # why some metrics are not among those found


def read_bench(
    form: BenchFormat, text: str, source: str = "the result file", needed: Collection[str] = ()
) -> BenchResult:
    """The result in a file of that form. `needed` names metrics that must be among those found.

    Raises:
        BenchmarkFailed: empty, half-written or no JSON; several results; a key missing, of a wrong type, negative, not
            finite; figures that contradict one another. Names `source` and the key.
    """
    result = _only_object(form, text, source)
    if form.results:
        runs = result.get(form.results)
        if not isinstance(runs, list) or len(runs) != 1 or not isinstance(runs[0], dict):
            raise BenchmarkFailed(
                f"{source}: looked for one benchmark under `{form.results}`, found "
                f"{len(runs) if isinstance(runs, list) else reprlib.repr(runs)}; allowed: a run with one rate or one "
                "number of streams, not a sweep"
            )
        result = runs[0]
    counts = {name: _count(result, form, name, source) for name in (*_REQUIRED, "failed", "sent")}
    duration_s = _number(result, form.keys["duration_s"], source)
    if not duration_s:
        raise _missing(source, "duration", form.keys["duration_s"])
    completed, input_tokens, output_tokens = (counts[name] or 0 for name in _REQUIRED)
    metrics = {
        "makespan_s": duration_s,
        "request_throughput_req_s": completed / duration_s,
        "output_throughput_tok_s": output_tokens / duration_s,
        "total_throughput_tok_s": (input_tokens + output_tokens) / duration_s,
    }
    _compare(result, form, metrics, source)
    for what, (pattern, unit_ms) in form.latencies.items():
        for point in _POINTS:
            if value := _number(result, [pattern.format(word) for word in form.points[point]], source):
                metrics[f"{what}_{point}_ms"] = value * unit_ms
    for name, keys in form.rates.items():
        if (rate := _number(result, keys, source)) is not None:
            metrics[name] = rate
    gaps_s = gaps(result, source)
    unusable, remark = unusable_metrics(metrics, gaps_s, output_tokens - completed)
    metrics = {name: value for name, value in metrics.items() if not name.startswith(unusable)}
    for name in needed:
        if name.startswith(unusable):
            raise BenchmarkFailed(f"{source}: {name} cannot be used: {remark}")
        if name not in metrics and (looked_for := _keys_of(form, name)):
            raise _missing(source, name, looked_for)
    accepted = _number(result, form.keys.get("acceptance_percent", ()), source)
    return BenchResult(
        metrics=metrics,
        sent=counts["sent"],
        completed=completed,
        failed=counts["failed"],
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        duration_s=duration_s,
        acceptance_rate=None if accepted is None else accepted / 100,
        longest_gap_s=None if gaps_s is None else max(gaps_s, default=0.0),
        errors=_errors(result),
        remark=remark,
    )


def median_metrics(results: Sequence[BenchResult]) -> dict[str, float]:
    """Median over windows of every metric that all of them have."""
    names = [name for name in results[0].metrics if all(name in each.metrics for each in results)] if results else []
    return {name: statistics.median(each.metrics[name] for each in results) for name in names}


def _only_object(form: BenchFormat, text: str, source: str) -> _Result:
    """The one result among the JSON objects that begin a line; nothing broken may stand after it.

    Other lines may be JSON as well: where no object is a result, the last one shows which key is missing.
    """
    if len(text) > _LARGEST_FILE:
        raise BenchmarkFailed(f"{source}: {len(text) >> 20} MiB, more than any result; the limit is 256 MiB")
    decoder = json.JSONDecoder()
    last: _Result | None = None
    results: list[tuple[int, _Result]] = []  # where each begins
    flaws: list[tuple[int, str]] = []  # broken results since the last complete one: where and why
    end = 0
    for begin in _OBJECT.finditer(text):
        start = begin.end() - 1
        if start < end or len(flaws) > _MOST_BROKEN_LINES:
            continue
        try:
            last, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            flaws.append((start, str(error)))
            continue
        behind = text[end : end + 200].partition("\n")[0].strip()
        flaws = [(start, f"{reprlib.repr(behind)} stands behind it")] if behind else []
        if any(_at(last, key) is not None for key in (form.results, *form.keys["completed"])):
            results.append((start, last))
    lines = [text.count("\n", 0, start) + 1 for start, _ in (*results, *flaws[-1:])]
    if flaws:
        raise BenchmarkFailed(
            f"{source}: the result that begins in line {lines[-1]} is not complete JSON ({flaws[-1][1]}); was its "
            "writer ended?"
        )
    if len(results) > 1:
        where = ", ".join(map(str, lines[:10]))
        raise BenchmarkFailed(f"{source}: {len(results)} results (lines {where}); allowed: one, that of this run")
    if last is None:
        start_of_text = reprlib.repr(text[:200].strip())
        raise BenchmarkFailed(f"{source}: looked for a JSON object at the start of a line, found {start_of_text}")
    return results[0][1] if results else last


def _at(result: object, key: str) -> object:
    """The value under `key`; a colon at its end is forgiven."""
    for part in key.split("."):
        result = result.get(part, result.get(f"{part}:")) if isinstance(result, dict) else None
    return result


def _number(result: _Result, keys: Sequence[str], source: str) -> float | None:
    """The number under the first of `keys` that is there with a value."""
    key = next((key for key in keys if _at(result, key) is not None), None)
    if key is None:
        return None
    value = _at(result, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BenchmarkFailed(f"{source}: {key} is {reprlib.repr(value)}; looked for a number")
    if not 0 <= value < 1e18:
        raise BenchmarkFailed(f"{source}: {key} is {reprlib.repr(value)}; looked for a finite number from 0 up")
    return float(value)


def _count(result: _Result, form: BenchFormat, name: str, source: str) -> int | None:
    value = _number(result, form.keys[name], source)
    if value is None and name in _REQUIRED:
        raise _missing(source, "a count", form.keys[name])
    if value is not None and value != int(value):
        raise BenchmarkFailed(f"{source}: {form.keys[name][0]} is {value}; looked for a whole number")
    return None if value is None else int(value)


def _missing(source: str, what: str, keys: Sequence[str]) -> BenchmarkFailed:
    return BenchmarkFailed(f"{source}: no value for {what}; looked for the keys {', '.join(keys)}")


def _keys_of(form: BenchFormat, metric: str) -> Sequence[str]:
    """Keys that a metric can have in the file; empty for one that comes from elsewhere."""
    what, _, rest = metric.partition("_")
    point = rest.removesuffix("_ms")
    if point in _POINTS and what in form.latencies:
        return [form.latencies[what][0].format(word) for word in form.points[point]]
    if point in _POINTS or metric in _RATES:
        return form.rates.get(metric, (f"(none: this tool does not measure {what})",))
    return ()


def _compare(result: _Result, form: BenchFormat, metrics: Mapping[str, float], source: str) -> None:
    for name, keys in form.throughputs.items():
        printed = _number(result, keys, source)
        if printed is not None and not math.isclose(printed, metrics[name], rel_tol=_AGREEMENT, abs_tol=1e-9):
            raise BenchmarkFailed(
                f"{source}: {keys[0]} is {printed:g}, but counts and duration give {metrics[name]:g}; "
                "one of them is wrong"
            )


def _errors(result: _Result) -> tuple[str, ...]:
    errors = result.get("errors")
    texts = errors if isinstance(errors, list) else []
    return tuple(dict.fromkeys(text[:200] for text in texts if isinstance(text, str) and text.strip()))[:3]
