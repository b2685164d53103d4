"""What runs: read from the engine's own metrics page and logs, so that it can be held against what was asked.

Decision: a figure that the engine does not export is None, never 0: a gate that sees no counter says nothing, one that
sees a wrong 0 would lie. A page that is no metrics page, or whose value is no number, ends the trial as not
trustworthy. The log proves little about the partition: an engine does not print one that it was given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from partitune.engines.readout import Counters, LogReading, MetricsPage, Readout
from partitune.errors import BenchmarkFailed
from partitune.execution.readout.log_lines import lines_of

_LARGEST_PAGE = 16 << 20
_SIZES = frozenset({"kv_blocks", "kv_tokens", "block_size"})


def read_metrics(text: str, page: MetricsPage, source: str = "/metrics") -> Counters:
    """Figures of a page in Prometheus' text format.

    Args:
        text: the page.
        page: what the engine calls them.
        source: of the text, for messages.

    Raises:
        BenchmarkFailed: too large, not such a page, none of the engine's metrics on it, or a value that is no number;
            names the page and the metric.
    """
    if len(text) > _LARGEST_PAGE:
        raise BenchmarkFailed(f"{source}: {len(text) >> 20} MiB, more than any metrics page; another server's?")
    lines = text.split("\n")
    if not any(line.startswith(page.prefix) for line in lines):
        names = [line.partition("{")[0][:80] for line in lines if line.strip() and not line.startswith("#")]
        there = f"{len(names)} other lines, such as {names[0]!r}" if names else "no metric at all"
        raise BenchmarkFailed(f"{source}: looked for {page.prefix}… metrics and found {there}")
    # A page holds hundreds of histogram lines; it is read once a second while the engine is measured.
    wanted = tuple(filter(None, (page.info, *page.counters.values())))
    samples: dict[str, list[Sample]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(line for line in lines if line.startswith(wanted))):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append(sample)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BenchmarkFailed(f"{source}: not a page in Prometheus' text format: {error}") from error
    figures: dict[str, Any] = dict(_cache_sizes(samples.get(page.info, ()), page, source))
    for name, metric in page.counters.items():
        if metric in samples:
            figures[name] = _total(samples[metric], page.repeating, source)
    return Counters(**{name: int(value) if name in _SIZES else value for name, value in figures.items()})


def _total(samples: Sequence[Sample], repeating: Sequence[str], source: str) -> float:
    """Sum over engines; of ranks that repeat one another's figures the first counts."""
    total = 0.0
    for sample in samples:
        value = float(sample.value)
        if not 0 <= value < math.inf:
            raise BenchmarkFailed(f"{source}: {sample.name} is {value}; looked for a count")
        if all(sample.labels.get(label, "0") == "0" for label in repeating):
            total += value
    return total


def _cache_sizes(samples: Iterable[Sample], page: MetricsPage, source: str) -> dict[str, int]:
    """The KV cache in the labels of an info metric; of several engines the smallest."""
    sizes: dict[str, int] = {}
    for sample in samples:
        for name, label in page.info_labels.items():
            text = sample.labels.get(label, "None")
            if text == "None":  # models without a KV cache
                continue
            if not re.fullmatch(r"\d{1,15}", text, re.ASCII):
                raise BenchmarkFailed(f"{source}: {page.info} has {label}={text[:80]!r}; looked for a whole number")
            sizes[name] = min(sizes.get(name, int(text)), int(text))
    return sizes


def read_logs(logs: Sequence[str], readout: Readout) -> LogReading:
    """Read what the processes of node n wrote (`logs[n]`, node by node). Takes any text, never raises."""
    words, facts = readout.logs, dict[str, str]()  # of what is said once: the first
    patterns = [(name, value, re.compile(pattern)) for name, value, pattern in words.facts]
    stage_pattern, weights_pattern = re.compile(words.stage), re.compile(words.weights)
    node_of_stage: dict[int, set[int]] = {}
    weights: dict[tuple[int, int], float] = {}
    for node, log in enumerate(logs):
        for line in lines_of(log, node, readout):
            if "PP" in line.place:
                node_of_stage.setdefault(line.place["PP"], set()).add(node)
            if stage := stage_pattern.search(line.message):
                node_of_stage.setdefault(int(stage[1]), set()).add(node)
            if (weight := weights_pattern.search(line.message)) and re.fullmatch(r"\d+\.?\d*", weight[1]):
                weights.setdefault((line.place.get("PP", 0), line.place.get("TP", 0)), float(weight[1]))
            for name, value, pattern in patterns:
                if name not in facts and (fact := pattern.search(line.message)):
                    facts[name] = value or fact[1]
    split = facts.get("own_split")
    return LogReading(
        node_of_stage={stage: tuple(sorted(nodes)) for stage, nodes in sorted(node_of_stage.items())},
        weights_gib=weights,
        own_split=None if split is None else tuple(int(layers) for layers in split.split(",") if layers.strip()),
        kv_tokens=int(facts["kv_tokens"].replace(",", "") or 0) if "kv_tokens" in facts else None,
        is_async={"on": True, "off": False}.get(facts.get("is_async", "")),
        runner=facts.get("runner"),
    )
