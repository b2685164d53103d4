"""A simulated run as a Chrome trace, to be opened in Perfetto beside the real one.

Decision: the shape is that of the engine's own torch traces (vLLM 0.32: top-level keys, microseconds, step markers
`execute_context_N(TOKENS)_generation_N(TOKENS)` of `v1/worker/gpu_worker.py` annotate_profile, PyTorch's names of sends
and receives), so that the k-th marker of a stage is the same kind of thing in both. Unlike them it is one file for all
stages: process = stage, and one more for the engine core. What is ours stands under the top-level key `partitune`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partitune.simulation.timeline import Activity, CoreActivity, CoreSlice, Slice, Timeline, TracedBatch

#: An event of the Trace Event Format, and what it may hold.
Event = dict[str, object]

#: The top-level key that tells our traces from real ones.
OURS = "partitune"


def chrome_trace(
    timeline: Timeline, names: Sequence[str], labels: Sequence[str], tp: int, about: Mapping[str, object]
) -> dict[str, object]:
    """The JSON object of a trace.

    Args:
        timeline: what happened.
        names: per stage, such as `stage 0 (node 0, 2 x B300)`.
        labels: per stage, shown beside its name.
        tp: GPUs per stage; one stands for all.
        about: what was simulated; put under the key `partitune`.
    """
    ranks = list(range(0, timeline.stages * tp, tp))
    group = {"pg_name": "pp", "pg_desc": "one rank of every stage", "pg_size": len(ranks), "ranks": ranks}
    events = _process(timeline.stages, "engine core", "schedules, dispatches, waits for the oldest batch", 0)
    for stage, (name, label) in enumerate(zip(names, labels, strict=True)):
        events += _process(stage, name, label, stage + 1)
    for stage in range(timeline.stages):
        events += [_stage_event(one, stage) for one in timeline.stage(stage) if _lasts(one)]
    events += [_core_event(one, timeline.stages) for one in timeline.core]
    return {
        "schemaVersion": 1,
        OURS: {"simulated": True, **about},
        "deviceProperties": [],
        "distributedInfo": {
            "backend": "simulated",
            "rank": 0,
            "world_size": timeline.stages * tp,
            "pg_count": 1,
            "pg_config": [group],
        },
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceEvents": events,
    }


def marker(batch: TracedBatch) -> str:
    """The engine's own name of a step."""
    return f"execute_context_{batch.prompts}({batch.prompt_tokens})_generation_{batch.decodes}({batch.decodes})"


def _process(process: int, name: str, label: str, position: int) -> list[Event]:
    arguments: dict[str, dict[str, object]] = {
        "process_name": {"name": name},
        "process_labels": {"labels": label},
        "process_sort_index": {"sort_index": position},
        "thread_name": {"name": name},
    }
    return [
        {"ph": "M", "name": key, "ts": 0, "pid": process, "tid": process, "args": value}
        for key, value in arguments.items()
    ]


def _stage_event(one: Slice, stage: int) -> Event:
    arguments: dict[str, object] = {}
    if one.batch is not None:
        arguments["step" if one.activity is Activity.COMPUTE else "of step"] = one.batch.step
    category, name = "wait", one.activity.value
    match one.activity:
        case Activity.COMPUTE if one.batch is not None:
            category, name = "user_annotation", marker(one.batch)
            arguments["tokens"] = sum(one.batch.requests.values())
            arguments["requests"] = one.batch.requests
        case Activity.SEND:
            category, name = "user_annotation", f"nccl:send {stage}->{stage + 1}"
        case Activity.RECEIVE:
            category, name = "user_annotation", f"nccl:recv {stage}<-{stage - 1}"
    return _complete(name, category, stage, one.start_s, one.end_s, arguments)


def _core_event(one: CoreSlice, process: int) -> Event:
    if one.activity is CoreActivity.EMPTY:
        return {
            "ph": "i",
            "s": "t",
            "cat": "engine_core",
            "name": one.activity.value,
            "pid": process,
            "tid": process,
            "ts": _nanoseconds(one.start_s) / 1000,
            "args": {"step": one.step},
        }
    return _complete(one.activity.value, "engine_core", process, one.start_s, one.end_s, {"step": one.step})


def _complete(
    name: str, category: str, process: int, start_s: float, end_s: float, arguments: Mapping[str, object]
) -> Event:
    start, end = _nanoseconds(start_s), _nanoseconds(end_s)
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": process,
        "tid": process,
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "args": arguments,
    }


def _nanoseconds(seconds: float) -> int:
    """Whole nanoseconds: both ends of a slice are rounded alike, so neighbours stay neighbours."""
    return round(seconds * 1e9)


def _lasts(one: Slice) -> bool:
    return _nanoseconds(one.end_s) > _nanoseconds(one.start_s)
