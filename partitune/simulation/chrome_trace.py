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
        events += [_stage_event(piece, stage) for piece in timeline.stage(stage) if _lasts(piece)]
    for piece in timeline.core:
        events.append(_event(piece, timeline.stages, "engine_core", piece.activity.value, {"step": piece.step}))
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


def _stage_event(piece: Slice, stage: int) -> Event:
    arguments: dict[str, object] = {}
    if piece.batch is not None:
        arguments["step" if piece.activity is Activity.COMPUTE else "of step"] = piece.batch.step
    category, name = "wait", piece.activity.value
    match piece.activity:
        case Activity.COMPUTE if piece.batch is not None:
            category, name = "user_annotation", marker(piece.batch)
            arguments["tokens"] = sum(piece.batch.requests.values())
            arguments["requests"] = piece.batch.requests
        case Activity.SEND:
            category, name = "user_annotation", f"nccl:send {stage}->{stage + 1}"
        case Activity.RECEIVE:
            category, name = "user_annotation", f"nccl:recv {stage}<-{stage - 1}"
    return _event(piece, stage, category, name, arguments)


def _event(piece: Slice | CoreSlice, process: int, category: str, name: str, arguments: Mapping[str, object]) -> Event:
    """One complete event; an empty step of the engine core is an instant one."""
    start, instant = _nanoseconds(piece.start_s), piece.activity is CoreActivity.EMPTY
    return {
        **({"ph": "i", "s": "t"} if instant else {"ph": "X"}),
        "cat": category,
        "name": name,
        "pid": process,
        "tid": process,
        "ts": start / 1000,
        **({} if instant else {"dur": (_nanoseconds(piece.end_s) - start) / 1000}),
        "args": arguments,
    }


def _nanoseconds(seconds: float) -> int:
    """Whole nanoseconds: both ends of a slice are rounded alike, so neighbours stay neighbours."""
    return round(seconds * 1e9)


def _lasts(piece: Slice) -> bool:
    return _nanoseconds(piece.end_s) > _nanoseconds(piece.start_s)
