"""What vLLM logs, what its words say about how it runs, and the names on its metrics page.

The only split in a log is the one that vLLM made by itself because it did not see ours. Of its workers only the first
of a node writes what goes through `info_once`, and on a CPU none says how large its weights are. Every line of a
record has a head; up to 0.30 the process stands before every line and the main process has none.

Source: vLLM 0.32.0 `logger.py` (_FORMAT, _DATE_FORMAT), `logging_utils/formatter.py`, `v1/engine/core.py`,
`v1/engine/{utils,exceptions}.py`, `distributed/{parallel_state,utils}.py`, `v1/worker/{gpu,cpu}_model_runner.py`,
`v1/worker/gpu/model_runner.py`, `v1/worker/{utils,cpu_worker}.py`, `v1/executor/multiproc_executor.py` (also the names
of workers, setup_proc_title_and_log_prefix), `v1/core/kv_cache_utils.py`, `config/{vllm,model}.py`,
`model_executor/models/registry.py`, `v1/metrics/loggers.py`, `v1/spec_decode/metrics.py`; uvicorn's own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from partitune.engines.deployment import Deployment
from partitune.engines.readout import FailureKind, Head, LogReading, LogWords, MetricsPage, Phase, Readout
from partitune.engines.vllm.pipelining import Regime

#: Searched, not matched: a progress bar leaves no line end before the next record.
_HEAD = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"(?P<time>\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)? \[[^\]]{1,200}\] ?"
)
_SPEAKER = re.compile(r"\((?P<process>[A-Za-z][\w.:-]{0,99}) pid=\d{1,10}(?:, ip=[^\s,()]{1,100})?\)[ \t]?\Z")

_WORDS = LogWords(
    phases=(
        (Phase.READY, r"^INFO: +Application startup complete"),
        (Phase.CAPTURE, r"^Model loading took|^Warming up model for the compilation|^Available KV cache memory"),
        (Phase.CAPTURE, r"KV cache size: [\d,]+ tokens"),
        (Phase.LOAD, r"is assigned as DP rank|^Starting to load model"),
        (Phase.RENDEZVOUS, r"^Initializing a V1 LLM engine|^world_size=\d+ rank=\d+"),
    ),
    failures={
        FailureKind.DEAD: (
            r"EngineDeadError",
            r"EngineCore encountered an issue",
            r"(?:Engine core|WorkerProc) initialization failed",
            r"Frontend process failed during engine core initialization",
            r"Timed out waiting for engine core processes",
            r"Worker failed with error",
            r"^RuntimeError: (?:Executor failed|cancelled)",
        ),
        FailureKind.KV_TOO_SMALL: (
            r"No available memory for the cache blocks",
            r"To serve at least one request with",
            r"can be stored in KV cache",
        ),
        FailureKind.MEMORY_TAKEN: (r"memory.* on (?:startup|kv cache allocation) is less than",),
        FailureKind.STALL: (r"RPC call to \w+ timed out",),
        FailureKind.UNSUPPORTED: (
            r"Pipeline parallelism is not supported",
            r"Model architectures? .* (?:are|is) not supported|Model architectures .* failed to be inspected",
        ),
    },
    facts=(
        ("own_split", "", r"Hidden layers were unevenly partitioned: \[([\d, ]{1,4000})\]"),
        ("kv_tokens", "", r"KV cache size: ([\d,]{1,20}) tokens"),
        (
            *("is_async", "off"),
            r"Async scheduling (?:is|will be|not supported).*disabled|ynchronous scheduling is disabled",
        ),
        ("is_async", "on", r"ynchronous scheduling is enabled"),
        ("runner", "v2", r"Using V2 Model Runner"),
        ("runner", "v1", r"using the V1 model runner"),
    ),
    weights=r"Model loading took (\d[\d.]{0,20}) GiB",
    stage=r"rank \d{1,6} in world size \d{1,6} is assigned as .*?PP rank (\d{1,6})",
    missing_memory=(
        r"(?P<needed>\d[\d.]*) GiB KV cache is needed.*?memory \((?P<had>-?\d[\d.]*) GiB\)",
        r"\((?P<had>-?\d[\d.]*)/\d[\d.]* GiB\).*?requested memory for kv \((?P<needed>-?\d[\d.]*)/",
        r"\((?P<had>-?\d[\d.]*)/\d[\d.]* GiB\).*?is less than .*?(?P<needed>\d[\d.]*) GiB\)",
    ),
    memory_left=r"Available KV cache memory: (-\d[\d.]*) GiB",
    no_such_model=r"Model architectures? .* not supported|does not recognize this architecture",
    outer_processes=frozenset({"", "APIServer", "MainProcess"}),
)

_METRICS = MetricsPage(
    prefix="vllm:",
    counters={
        "prompt_tokens": "vllm:prompt_tokens_total",
        "generation_tokens": "vllm:generation_tokens_total",
        "prefix_queries": "vllm:prefix_cache_queries_total",
        "prefix_hits": "vllm:prefix_cache_hits_total",
        "preemptions": "vllm:num_preemptions_total",
        "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
        "accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
        "running": "vllm:num_requests_running",
    },
    info="vllm:cache_config_info",
    info_labels={"kv_blocks": "num_gpu_blocks", "kv_tokens": "kv_cache_size_tokens", "block_size": "block_size"},
)


class VllmReadout(Readout):
    """What a server of vLLM says of itself in its logs and pages."""

    metrics = _METRICS
    logs = _WORDS

    def head(self, line: str) -> Head | None:
        """Process, time and level that stand before a message; None where the line has no such head."""
        head = _HEAD.search(line)
        if head is None:
            return None
        speaker = _SPEAKER.search(line, max(0, head.start() - 250), head.start())
        return Head(speaker["process"] if speaker else "", line[head.end() :], head["time"], head["level"])

    def schedules_ahead(self, config: Mapping[str, object]) -> bool | None:
        """From `/server_info?config_format=json` of a server in development mode; None: another version's page."""
        value: Any = config
        for key in ("vllm_config", "scheduler_config", "async_scheduling"):
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, bool) else None

    def flow_name(self, predicted: str, reading: LogReading, is_async: bool | None) -> str:
        """The regime by the runner and the scheduling that were read; what was not read is as predicted."""
        regime = Regime(predicted)
        asynchronous = regime.asynchronous if is_async is None else is_async
        runner = reading.runner or regime.value.rpartition("-")[2]
        return Regime(f"{'async' if asynchronous else 'sync'}-{runner}").value

    def differences(
        self, deployment: Deployment, reading: LogReading, is_async: bool | None, kv_blocks: int | None
    ) -> Iterator[str]:
        """Where scheduling, model runner or number of KV blocks is not what `deployment` asked for, a sentence each."""
        asked = deployment.flags.get("async_scheduling")
        if asked is not None and is_async is not None and asked != is_async:
            yield f"async scheduling is {_on(is_async)}, asked for was {_on(bool(asked))}"
        if deployment.runner != "auto" and reading.runner is not None and reading.runner != deployment.runner:
            yield f"the model runner is {reading.runner}, asked for was {deployment.runner}"
        blocks = deployment.flags.get("num_gpu_blocks_override")
        if blocks is not None and kv_blocks is not None and blocks != kv_blocks:
            yield f"the KV cache has {kv_blocks} blocks, asked for were {blocks}"


def _on(value: bool) -> str:
    return "on" if value else "off"
