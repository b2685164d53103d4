"""What every stage and slot did in recorded runs of SGLang: every moment once, and the sums of the run."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from partitune.cli import main
from partitune.engines.recordings import LinearCosts
from partitune.engines.sglang.scheduler.engine_core import simulate_sglang
from partitune.engines.sglang.scheduler.recording import Recording
from partitune.engines.sglang.scheduler.settings import SglangSettings
from partitune.engines.sglang.trace_names import SglangTraceNames
from partitune.simulation.chrome_trace import chrome_trace
from partitune.simulation.run import Overheads, Run
from partitune.simulation.timeline import Activity, Timeline
from tests.builders import burst
from tests.engines.sglang.test_recording import SCHEDULES

RECORDINGS = {recording.name: recording for recording in Recording.read(SCHEDULES)}


def traced(recording: Recording) -> tuple[Run, Timeline]:
    overheads = Overheads(broadcast_s=recording.ring_s, **recording.alike(Overheads))
    requests = [entry.request() for entry in recording.requests]
    costs = recording.costs(recording.handoff)
    run = simulate_sglang(requests, recording.settings(), costs, overheads, record_timeline=True)
    assert run.timeline is not None
    return run, run.timeline


@pytest.mark.parametrize("name", ["times-all", "times-overlap-depth-1", "kv-long", "all-1", "one-stage"])
def test_every_moment_of_every_stage_is_exactly_one_activity(name: str) -> None:
    recording = RECORDINGS[name]
    run, timeline = traced(recording)
    for stage in range(recording.pp):
        slices = timeline.stage(stage)
        assert slices[0].start_s == 0.0
        assert slices[-1].end_s == pytest.approx(recording.makespan)
        assert all(one.end_s == after.start_s for one, after in pairwise(slices))
        computed = sum(one.end_s - one.start_s for one in slices if one.activity is Activity.COMPUTE)
        assert computed == pytest.approx(recording.stage_busy[stage])
        handed = sum(one.end_s - one.start_s for one in slices if one.activity in (Activity.SEND, Activity.RECEIVE))
        assert handed <= run.transfer_s[stage] + 1e-9
    steps = [step for step in recording.steps if step.tokens]
    assert [batch.requests for batch in timeline.batches] == [step.tokens for step in steps]
    assert [batch.dispatch_s for batch in timeline.batches] == pytest.approx([step.dispatch_s for step in steps])
    assert all(batch.ready_s <= batch.dispatch_s + 1e-9 for batch in timeline.batches)


def test_a_slot_holds_a_batch_until_its_tokens_are_back() -> None:
    recording = RECORDINGS["times-depth-2"]
    _, timeline = traced(recording)
    slots = recording.settings().slots
    assert [piece.slot for piece in timeline.slots] == [
        number % slots for number, step in enumerate(recording.steps) if step.tokens
    ]
    for slot in range(slots):
        held = [piece for piece in timeline.slots if piece.slot == slot]
        assert all(one.end_s <= after.start_s for one, after in pairwise(held))
    back = {round(time, 6) for time in (*recording.first_token.values(), *recording.finish.values())}
    assert back <= {round(piece.end_s, 6) for piece in timeline.slots}


def test_what_a_stage_waits_for_is_named() -> None:
    """Two requests in one of two slots: each step waits for its token, and the hand-off overlaps with nothing."""
    costs = LinearCosts((1.0, 2.0), 1.0, 0.0, handoff_base_s=0.5)
    settings = SglangSettings(stages=2, max_running_requests=4, num_tokens=100)
    run = simulate_sglang(burst(2, 4, 3), settings, costs, Overheads(), record_timeline=True)
    assert run.timeline is not None
    shown = [(one.activity.value, one.start_s, one.end_s) for one in run.timeline.stage(0)]
    assert shown[:3] == [("compute", 0.0, 1.0), ("send", 1.0, 1.5), ("waits for token", 1.5, 3.5)]
    trace: dict[str, Any] = chrome_trace(run.timeline, ["a", "b"], ["", ""], 1, {}, SglangTraceNames())
    names = [event["name"] for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == 0]
    assert names[0] == "step[EXTEND bs=2 toks=8]"
    assert "step[DECODE bs=2]" in names


def test_explain_writes_a_file_a_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = tmp_path / "whole.json"
    command = ["explain", "kimi-k3-pp8-tp2-sglang", "--json", "--no-advice"]
    assert main([*command, "--trace", str(whole), "--trace-dir", str(tmp_path)]) == 0
    assert "wrote 17 traces" in capsys.readouterr().err
    files = sorted(path.name for path in tmp_path.glob("*.gz"))
    assert files == sorted(
        ["slots.trace.json.gz", *(f"simulated-TP-{tp}-PP-{pp}.trace.json.gz" for tp in range(2) for pp in range(8))]
    )
    rank = json.loads(gzip.decompress((tmp_path / "simulated-TP-1-PP-3.trace.json.gz").read_bytes()))
    assert rank["distributedInfo"]["rank"] == 7
    assert rank["distributedInfo"]["pg_config"][0]["ranks"] == list(range(1, 16, 2))

    def steps(trace: dict[str, Any], process: int) -> list[tuple[object, object]]:
        events = [event for event in trace["traceEvents"] if event["pid"] == process]
        return [(event["name"], event["ts"]) for event in events if event["name"].startswith("step[")]

    assert steps(rank, 7) == steps(json.loads(whole.read_text()), 3) != []
