"""A simulated run as a Chrome trace, to be opened in Perfetto beside the real one.

Decision: the shape is that of the engine's own torch traces (vLLM 0.32: top-level keys, microseconds, PyTorch's names
of sends and receives; the engine's own names of steps, workers and files), so that the k-th step of a stage is the same
kind of thing in both. One file holds all stages, process = stage, and one more for what is beside them; or every rank
has its own, as in a real set. What is ours stands under the top-level key `partitune`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partitune.simulation.timeline import Activity, CoreActivity, CoreSlice, Slice, SlotSlice, Timeline
from partitune.simulation.trace_names import Rank, TraceNames

#: An event of the Trace Event Format, and what it may hold.
Event = dict[str, object]

#: The top-level key that tells our traces from real ones.
OURS = "partitune"


def chrome_trace(
    timeline: Timeline,
    names: Sequence[str],
    labels: Sequence[str],
    tp: int,
    about: Mapping[str, object],
    spelled: TraceNames | None = None,
) -> dict[str, object]:
    """The JSON object of a trace of all stages.

    Args:
        timeline: what happened.
        names: per stage, such as `stage 0 (node 0, 2 x B300)`.
        labels: per stage, shown beside its name.
        tp: GPUs per stage; one stands for all.
        about: what was simulated; put under the key `partitune`.
        spelled: the engine's own names.
    """
    spelled = spelled or TraceNames()
    events = _beside(timeline, timeline.stages, spelled)
    for stage, (name, label) in enumerate(zip(names, labels, strict=True)):
        events += _process(stage, name, label, stage + 1)
    for stage in range(timeline.stages):
        events += _stage_events(timeline, stage, stage, spelled)
    return _trace(events, about, 0, timeline.stages, tp)


def rank_traces(
    timeline: Timeline, labels: Sequence[str], ranks: Sequence[Rank], about: Mapping[str, object], spelled: TraceNames
) -> dict[str, dict[str, object]]:
    """One trace a rank, by the name of its file as the engine gives it, and one of what is beside the stages.

    Args:
        timeline: what happened.
        labels: per stage, shown beside the name of the worker.
        ranks: of the data rank that was simulated; those of a stage have the same to show.
        about: what was simulated; put under the key `partitune`.
        spelled: the engine's own names.
    """
    tp = ranks[0].layout.tp
    beside = f"{spelled.beside.replace(' ', '_')}.trace.json.gz"
    found = {beside: _trace(_beside(timeline, len(ranks), spelled), about, 0, timeline.stages, tp)}
    for rank in ranks:
        events = _process(rank.number, spelled.worker(rank), labels[rank.stage], rank.number)
        events += _stage_events(timeline, rank.stage, rank.number, spelled)
        found[spelled.file(rank)] = _trace(events, about, rank.number, timeline.stages, tp)
    return found


def _trace(events: Sequence[Event], about: Mapping[str, object], rank: int, stages: int, tp: int) -> dict[str, object]:
    ranks = list(range(rank % tp, stages * tp, tp))
    group = {"pg_name": "pp", "pg_desc": "one rank of every stage", "pg_size": len(ranks), "ranks": ranks}
    return {
        "schemaVersion": 1,
        OURS: {"simulated": True, **about},
        "deviceProperties": [],
        "distributedInfo": {
            "backend": "simulated",
            "rank": rank,
            "world_size": stages * tp,
            "pg_count": 1,
            "pg_config": [group],
        },
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceEvents": events,
    }


def _beside(timeline: Timeline, process: int, spelled: TraceNames) -> list[Event]:
    """What is no stage's: an engine core, or the slots that a loop visits."""
    events = _process(process, spelled.beside, spelled.about_beside, 0)
    for piece in timeline.core:
        events.append(_event(piece, process, "engine_core", piece.activity.value, {"step": piece.step}))
    for slot in sorted({piece.slot for piece in timeline.slots}):
        name = {"name": f"slot {slot}"}
        events.append({"ph": "M", "name": "thread_name", "ts": 0, "pid": process, "tid": slot, "args": name})
    for held in timeline.slots:
        what = {"step": held.batch.step, "requests": held.batch.requests}
        events.append(_event(held, process, "slot", spelled.step(held.batch), what, held.slot))
    return events


def _stage_events(timeline: Timeline, stage: int, process: int, spelled: TraceNames) -> list[Event]:
    """Everything on the track of a stage; a wait is cut where a step without tokens falls into it."""
    empty = [(at, step) for at, step in timeline.empty_steps(stage)] if spelled.empty is not None else []
    events: list[Event] = []

    def take() -> None:
        at_s, step = empty.pop(0)
        mark = Slice(Activity.COMPUTE, at_s, at_s, None)
        events.append(_event(mark, process, "user_annotation", spelled.empty or "", {"step": step}))

    for piece in timeline.stage(stage):
        while empty and empty[0][0] < piece.end_s:
            cut_s = max(empty[0][0], piece.start_s)
            before, piece = piece._replace(end_s=cut_s), piece._replace(start_s=cut_s)
            if _lasts(before):
                events.append(_stage_event(before, stage, process, spelled))
            take()
        if _lasts(piece):
            events.append(_stage_event(piece, stage, process, spelled))
    while empty:
        take()
    return events


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


def _stage_event(piece: Slice, stage: int, process: int, spelled: TraceNames) -> Event:
    arguments: dict[str, object] = {}
    if piece.batch is not None:
        arguments["step" if piece.activity is Activity.COMPUTE else "of step"] = piece.batch.step
    category, name = "wait", piece.activity.value
    match piece.activity:
        case Activity.COMPUTE if piece.batch is not None:
            category, name = "user_annotation", spelled.step(piece.batch)
            arguments["tokens"] = sum(piece.batch.requests.values())
            arguments["requests"] = piece.batch.requests
        case Activity.SEND:
            category, name = "user_annotation", f"nccl:send {stage}->{stage + 1}"
        case Activity.RECEIVE:
            category, name = "user_annotation", f"nccl:recv {stage}<-{stage - 1}"
    return _event(piece, process, category, name, arguments)


def _event(
    piece: Slice | CoreSlice | SlotSlice,
    process: int,
    category: str,
    name: str,
    arguments: Mapping[str, object],
    thread: int | None = None,
) -> Event:
    """One complete event; an empty step of the engine core is an instant one."""
    start = _nanoseconds(piece.start_s)
    instant = isinstance(piece, CoreSlice) and piece.activity is CoreActivity.EMPTY
    return {
        **({"ph": "i", "s": "t"} if instant else {"ph": "X"}),
        "cat": category,
        "name": name,
        "pid": process,
        "tid": process if thread is None else thread,
        "ts": start / 1000,
        **({} if instant else {"dur": (_nanoseconds(piece.end_s) - start) / 1000}),
        "args": arguments,
    }


def _nanoseconds(seconds: float) -> int:
    """Whole nanoseconds: both ends of a slice are rounded alike, so neighbours stay neighbours."""
    return round(seconds * 1e9)


def _lasts(piece: Slice) -> bool:
    return _nanoseconds(piece.end_s) > _nanoseconds(piece.start_s)
