"""What runs: read from the engine's own metrics page and logs, so that it can be held against what was asked.

Decision: a figure that the engine does not export is None, never 0: a gate that sees no counter says nothing, one that
sees a wrong 0 would lie. A page that is no metrics page, or whose value is no number, ends the trial as not
trustworthy. The log proves little about the partition: neither engine prints one that it was given, so the only split
in a log is the one that vLLM made by itself because it did not see ours.

Source: vLLM 0.32.0 `v1/metrics/loggers.py`, `v1/spec_decode/metrics.py`, `distributed/{parallel_state,utils}.py`,
`v1/executor/multiproc_executor.py`, `config/vllm.py`, `v1/core/kv_cache_utils.py`; of its workers only the first of a
node writes what goes through `info_once` (`logger.py`), and on a CPU none says how large its weights are. SGLang 0.5.23
`srt/observability/metrics_collector.py`, `srt/model_executor/model_runner.py`, `srt/managers/scheduler.py`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from partitune.errors import BenchmarkFailed
from partitune.execution.readout.log_lines import LogLine, lines_of

_LARGEST_PAGE = 16 << 20
_CACHE_INFO = "vllm:cache_config_info"
_COUNTERS: Mapping[str, tuple[str, ...]] = {
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "generation_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "kv_blocks": ("sglang:num_pages",),
    "kv_tokens": ("sglang:max_total_num_tokens",),
    "block_size": ("sglang:page_size",),
}


#: A page holds hundreds of histogram lines; it is read once a second while the engine is measured.
_READ = (_CACHE_INFO, *(name for names in _COUNTERS.values() for name in names))


@dataclass(frozen=True, slots=True)
class Counters:
    """A metrics page at one moment, summed over data-parallel engines; None: not exported."""

    kv_blocks: int | None = None  # of the engine with the fewest
    kv_tokens: int | None = None
    block_size: int | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    prefix_queries: float | None = None  # tokens looked up
    prefix_hits: float | None = None  # tokens found
    preemptions: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    running: float | None = None  # requests


def read_metrics(text: str | bytes, source: str = "/metrics") -> Counters:
    """Figures of a page in Prometheus' text format, of vLLM or SGLang.

    Raises:
        BenchmarkFailed: too large, not such a page, none of either engine's metrics on it, or a value that is no
            number; names the page and the metric.
    """
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    if len(text) > _LARGEST_PAGE:
        raise BenchmarkFailed(f"{source}: {len(text) >> 20} MiB, more than any metrics page; another server's?")
    lines = text.split("\n")
    if not any(line.startswith(("vllm:", "sglang:")) for line in lines):
        names = [line.partition("{")[0][:80] for line in lines if line.strip() and not line.startswith("#")]
        found = f"{len(names)} other lines, such as {names[0]!r}" if names else "no metric at all"
        raise BenchmarkFailed(f"{source}: looked for vllm:… or sglang:… metrics and found {found}")
    samples: dict[str, list[Sample]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(line for line in lines if line.startswith(_READ))):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append(sample)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BenchmarkFailed(f"{source}: not a page in Prometheus' text format: {error}") from error
    cache = _cache_info(samples.get(_CACHE_INFO, ()), source)

    def count(field: str) -> float | None:
        return next((_total(samples[name], source) for name in _COUNTERS[field] if name in samples), None)

    def size(field: str) -> int | None:
        value = count(field)
        return cache.get(field) if value is None else int(value)

    return Counters(
        kv_blocks=size("kv_blocks"),
        kv_tokens=size("kv_tokens"),
        block_size=size("block_size"),
        prompt_tokens=count("prompt_tokens"),
        generation_tokens=count("generation_tokens"),
        prefix_queries=count("prefix_queries"),
        prefix_hits=count("prefix_hits"),
        preemptions=count("preemptions"),
        draft_tokens=count("draft_tokens"),
        accepted_tokens=count("accepted_tokens"),
        running=count("running"),
    )


def _total(samples: Sequence[Sample], source: str) -> float:
    """Sum over engines. SGLang's stages and tensor-parallel ranks repeat one another's figures: the first counts."""
    total = 0.0
    for sample in samples:
        value = float(sample.value)
        if not 0 <= value < math.inf:
            raise BenchmarkFailed(f"{source}: {sample.name} is {value}; looked for a count")
        if sample.labels.get("pp_rank", "0") == "0" and sample.labels.get("tp_rank", "0") == "0":
            total += value
    return total


def _cache_info(samples: Iterable[Sample], source: str) -> dict[str, int]:
    """The KV cache in the labels of vLLM's info metric; of several engines the smallest."""
    sizes: dict[str, int] = {}
    labels = {"kv_blocks": "num_gpu_blocks", "kv_tokens": "kv_cache_size_tokens", "block_size": "block_size"}
    for sample in samples:
        for field, label in labels.items():
            text = sample.labels.get(label, "None")
            if text == "None":  # models without a KV cache
                continue
            if not re.fullmatch(r"\d{1,15}", text, re.ASCII):
                raise BenchmarkFailed(f"{source}: {_CACHE_INFO} has {label}={text[:80]!r}; looked for a whole number")
            sizes[field] = min(sizes.get(field, int(text)), int(text))
    return sizes


_RANK = re.compile(r"rank \d{1,6} in world size \d{1,6} is assigned as .*?PP rank (?P<stage>\d{1,6})")
_OWN_SPLIT = re.compile(r"Hidden layers were unevenly partitioned: \[(?P<layers>[\d, ]{1,4000})\]")
_WEIGHTS = re.compile(
    r"Model loading took (?P<vllm>\d[\d.]{0,20}) GiB|^Load weight end\..*mem usage=(?P<sglang>\d[\d.]{0,20}) GB"
)
_KV_TOKENS = re.compile(r"KV cache size: (?P<vllm>[\d,]{1,20}) tokens|^max_total_num_tokens=(?P<sglang>\d{1,15})")
_ASYNC_OFF = re.compile(r"Async scheduling (?:is|will be|not supported).*disabled|ynchronous scheduling is disabled")
_ASYNC_ON = re.compile(r"ynchronous scheduling is enabled")
_V1 = re.compile(r"using the V1 model runner")
_V2 = re.compile(r"Using V2 Model Runner")


@dataclass(frozen=True, slots=True)
class LogReading:
    """What the logs of one start say; None or missing where they say nothing."""

    node_of_stage: Mapping[int, tuple[int, ...]]  # stage -> nodes (indices of the plan) that a worker of it wrote from
    weights_gib: Mapping[tuple[int, int], float]  # (stage, tensor-parallel rank) -> GiB of its GPU
    own_split: tuple[int, ...] | None  # layers per stage that vLLM chose because it was given no partition
    kv_tokens: int | None
    is_async: bool | None
    runner: str | None  # `v1` or `v2` of vLLM


def read_logs(logs: Sequence[str]) -> LogReading:
    """Read what the processes of node n wrote (`logs[n]`, in the plan's order). Takes any text, never raises."""
    said: dict[str, str] = {}  # of what is said once: the first
    node_of_stage: dict[int, set[int]] = {}
    weights: dict[tuple[int, int], float] = {}
    for node, log in enumerate(logs):
        for line in lines_of(log, node):
            if "PP" in line.place:
                node_of_stage.setdefault(line.place["PP"], set()).add(node)
            if found := _RANK.search(line.message):
                node_of_stage.setdefault(int(found["stage"]), set()).add(node)
            if (found := _WEIGHTS.search(line.message)) and (size := _decimal(found["vllm"] or found["sglang"])):
                weights.setdefault((line.place.get("PP", 0), line.place.get("TP", 0)), size)
            _note(line, said)
    return LogReading(
        node_of_stage={stage: tuple(sorted(nodes)) for stage, nodes in sorted(node_of_stage.items())},
        weights_gib=weights,
        own_split=tuple(int(part) for part in said["split"].split(",") if part.strip()) if "split" in said else None,
        kv_tokens=int(said["kv_tokens"].replace(",", "") or 0) if "kv_tokens" in said else None,
        is_async={"on": True, "off": False}.get(said.get("async", "")),
        runner=said.get("runner"),
    )


def asynchronous_in(server_info: str | bytes) -> bool | None:
    """Whether vLLM schedules asynchronously, from `/server_info?config_format=json` of a server in development mode.

    None where the page does not say: another engine or version, or no such page.
    """
    try:
        page = json.loads(server_info)
    except (ValueError, RecursionError):
        return None
    for key in ("vllm_config", "scheduler_config", "async_scheduling"):
        page = page.get(key) if isinstance(page, dict) else None
    return page if isinstance(page, bool) else None


def _note(line: LogLine, said: dict[str, str]) -> None:
    message = line.message
    if found := _OWN_SPLIT.search(message):
        said.setdefault("split", found["layers"])
    if found := _KV_TOKENS.search(message):
        said.setdefault("kv_tokens", found["vllm"] or found["sglang"])
    if _ASYNC_OFF.search(message):
        said.setdefault("async", "off")
    elif _ASYNC_ON.search(message):
        said.setdefault("async", "on")
    if _V2.search(message):
        said.setdefault("runner", "v2")
    elif _V1.search(message):
        said.setdefault("runner", "v1")


def _decimal(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+\.?\d*", text) else None
