from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from partitune.cli import main
from partitune.costs.cost_model import Batch
from partitune.engines.sglang.trace_names import SglangTraceNames
from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.engine_core import simulate
from partitune.engines.vllm.scheduler.settings import SchedulerSettings
from partitune.engines.vllm.trace_names import VllmTraceNames
from partitune.errors import OutOfMemory, SpecError
from partitune.hardware.parallelism import Layout
from partitune.report.trace_file import write_trace, write_traces
from partitune.simulation.chrome_trace import chrome_trace, rank_traces
from partitune.simulation.request import Request
from partitune.simulation.run import Overheads, Run
from partitune.simulation.timeline import Activity, CoreActivity, Slice, Timeline
from partitune.simulation.trace_names import Rank
from tests.engines.vllm.test_reference_agreement import Scenario, scenarios

RECORDED = json.loads((Path(__file__).parent.parent / "data" / "trace_vllm_0_32_rank0.json").read_text())
MARKER = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
#: Metadata events of the Trace Event Format: name -> what its args hold.
METADATA: dict[str, dict[str, type]] = {
    "process_name": {"name": str},
    "process_labels": {"labels": str},
    "process_sort_index": {"sort_index": int},
    "thread_name": {"name": str},
}


class Fixed:
    """The same seconds for every batch."""

    def __init__(self, *compute: float, transfer: float = 0.0) -> None:
        self.stages = len(compute)
        self.compute, self.transfer = compute, transfer

    def compute_s(self, batch: Batch) -> Sequence[float]:
        return self.compute

    def transfer_s(self, tokens: int) -> Sequence[float]:
        return [self.transfer] * (self.stages - 1)


def run_of(
    regime: Regime, costs: Fixed, *requests: Request, overheads: Overheads | None = None, budget: int = 64
) -> Run:
    config = SchedulerSettings(regime, costs.stages, budget, max_num_seqs=budget, num_blocks=1000)
    return simulate(requests, config, costs, overheads or Overheads(), record_timeline=True)


def timeline_of(run: Run) -> Timeline:
    assert run.timeline is not None
    return run.timeline


def shown(run: Run, stage: int) -> list[tuple[str, float, float]]:
    return [(one.activity.value, one.start_s, one.end_s) for one in timeline_of(run).stage(stage)]


def spent(slices: Sequence[Slice], *activities: Activity) -> float:
    return sum(one.end_s - one.start_s for one in slices if one.activity in activities)


ONE = Request("a", 0.0, 4, 3)


@given(scenarios())
@settings(max_examples=150, deadline=None)
def test_every_moment_of_every_stage_is_exactly_one_activity(scenario: Scenario) -> None:
    requests, config, costs, overheads, concurrency, context_step = scenario
    try:
        run = simulate(requests, config, costs, overheads, concurrency, context_step=context_step, record_timeline=True)
    except OutOfMemory:
        return
    timeline = timeline_of(run)
    for stage in range(config.stages):
        slices = timeline.stage(stage)
        assert slices[0].start_s == 0.0
        assert slices[-1].end_s == run.makespan_s
        assert all(one.end_s > one.start_s for one in slices)
        assert all(one.end_s == after.start_s for one, after in pairwise(slices))
        assert spent(slices, Activity.COMPUTE) == pytest.approx(run.compute_s[stage], rel=1e-12)
        assert spent(slices, Activity.SEND, Activity.RECEIVE) == pytest.approx(run.transfer_s[stage], rel=1e-12)
        computed = [one.batch for one in slices if one.activity is Activity.COMPUTE]
        assert computed == list(timeline.batches)
    assert all(one.end_s <= after.start_s for one, after in pairwise(timeline.core))


@given(scenarios())
@settings(max_examples=50, deadline=None)
def test_watching_changes_nothing(scenario: Scenario) -> None:
    requests, config, costs, overheads, concurrency, _ = scenario
    try:
        watched = simulate(requests, config, costs, overheads, concurrency, record_timeline=True)
    except OutOfMemory:
        return
    unwatched = simulate(requests, config, costs, overheads, concurrency, record_steps=True)
    assert watched.inter_token_s.tolist() == unwatched.inter_token_s.tolist()
    # Not `==` of the runs: Python 3.13 asks the array for its truth where 3.11 saw the same object.
    others = [field.name for field in fields(watched) if field.name not in ("inter_token_s", "timeline")]
    assert [getattr(watched, name) for name in others] == [getattr(unwatched, name) for name in others]
    steps = [dict(step.tokens) for step in unwatched.steps]
    assert [dict(batch.requests) for batch in timeline_of(watched).batches] == [step for step in steps if step]
    assert [batch.step for batch in timeline_of(watched).batches] == [n for n, step in enumerate(steps, 1) if step]


def test_r1_waits_for_the_token_of_the_step_before() -> None:
    # The next step is dispatched at once, with a placeholder; the fourth is the engine's own step past the last token.
    run = run_of(Regime.ASYNC_V1, Fixed(1.0, 1.0, 1.0), ONE)
    assert shown(run, 0) == [
        ("compute", 0.0, 1.0),
        ("waits for token", 1.0, 3.0),
        ("compute", 3.0, 4.0),
        ("waits for token", 4.0, 6.0),
        ("compute", 6.0, 7.0),
        ("waits for token", 7.0, 9.0),
        ("compute", 9.0, 10.0),
        ("no work", 10.0, 12.0),
    ]
    # Stage 1 is idle while the token is made and while stage 0 computes; only the first is the token's fault.
    assert shown(run, 1)[:4] == [
        ("no work", 0.0, 1.0),
        ("compute", 1.0, 2.0),
        ("waits for token", 2.0, 3.0),
        ("no work", 3.0, 4.0),
    ]


def test_r2_with_one_cohort_waits_for_its_token_and_so_for_nothing_the_queue_could_give() -> None:
    # Step 1 computes, an empty step takes the other slot, the core blocks until step 1 is back.
    run = run_of(Regime.SYNC_V1, Fixed(1.0, 1.0), ONE)
    assert shown(run, 0) == [
        ("compute", 0.0, 1.0),
        ("waits for token", 1.0, 2.0),
        ("compute", 2.0, 3.0),
        ("waits for token", 3.0, 4.0),
        ("compute", 4.0, 5.0),
        ("no work", 5.0, 6.0),
    ]
    core = [(one.activity, one.start_s, one.end_s, one.step) for one in timeline_of(run).core]
    assert core[:3] == [
        (CoreActivity.DISPATCH, 0.0, 0.0, 1),
        (CoreActivity.EMPTY, 0.0, 0.0, 2),
        (CoreActivity.BLOCKED, 0.0, 2.0, 1),
    ]


def test_r2_with_a_request_that_came_while_the_core_was_blocked_has_its_queue_full() -> None:
    # As recorded from the engine (arrive_while_blocked): it is not even scheduled before the oldest step is back.
    run = run_of(Regime.SYNC_V1, Fixed(1.0, 1.0, 1.0), ONE, Request("late", 1.5, 4, 1))
    assert shown(run, 0)[:4] == [
        ("compute", 0.0, 1.0),
        ("waits for token", 1.0, 1.5),
        ("queue full", 1.5, 3.0),
        ("compute", 3.0, 4.0),
    ]
    assert [dict(batch.requests) for batch in timeline_of(run).batches][1] == {"a": 1, "late": 4}


def test_a_request_that_waits_for_a_seat_does_not_blame_the_queue() -> None:
    requests = [Request(str(number), 0.0, 4, 1) for number in range(2)]
    config = SchedulerSettings(Regime.SYNC_V1, 2, 64, max_num_seqs=1, num_blocks=1000)
    run = simulate(requests, config, Fixed(1.0, 1.0), Overheads(), record_timeline=True)
    assert shown(run, 0)[:3] == [("compute", 0.0, 1.0), ("no work", 1.0, 2.0), ("compute", 2.0, 3.0)]


def test_r3_with_one_cohort_has_no_work_once_its_token_is_there_and_the_core_is_in_empty_steps() -> None:
    # Three slots: step 1, an empty step of 2.5 s, step 3. Its token has been there since 2.
    run = run_of(Regime.ASYNC_V2, Fixed(1.0, 1.0), ONE, overheads=Overheads(empty_step_s=2.5))
    assert shown(run, 0)[:4] == [
        ("compute", 0.0, 1.0),
        ("waits for token", 1.0, 2.0),
        ("no work", 2.0, 2.5),
        ("compute", 2.5, 3.5),
    ]
    core = [(one.activity, one.start_s, one.end_s, one.step) for one in timeline_of(run).core]
    assert core[:5] == [
        (CoreActivity.DISPATCH, 0.0, 0.0, 1),
        (CoreActivity.EMPTY, 0.0, 0.0, 2),
        (CoreActivity.SLEEP, 0.0, 2.5, 2),
        (CoreActivity.DISPATCH, 2.5, 2.5, 3),
        (CoreActivity.EMPTY, 2.5, 2.5, 4),
    ]


def test_r3_with_a_slow_last_stage_fills_its_queue() -> None:
    # Prompts of one step each; three slots are dispatched at 0, the fourth when the first is back at 5.
    requests = [Request(str(number), 0.0, 4, 1) for number in range(4)]
    run = run_of(Regime.ASYNC_V2, Fixed(1.0, 4.0), *requests, budget=4)
    assert shown(run, 0)[3:6] == [("queue full", 3.0, 5.0), ("compute", 5.0, 6.0), ("no work", 6.0, 17.0)]


def test_a_slow_receiver_shows_as_a_wait_for_the_send() -> None:
    requests = [Request(str(number), 0.0, 4, 1) for number in range(2)]
    run = run_of(Regime.ASYNC_V2, Fixed(1.0, 3.0, transfer=0.5), *requests, budget=4)
    assert shown(run, 0) == [
        ("compute", 0.0, 1.0),
        ("send", 1.0, 1.5),
        ("compute", 1.5, 2.5),
        ("waits for send", 2.5, 4.5),
        ("send", 4.5, 5.0),
        ("no work", 5.0, 8.0),
    ]
    assert shown(run, 1) == [
        ("no work", 0.0, 1.0),
        ("receive", 1.0, 1.5),
        ("compute", 1.5, 4.5),
        ("receive", 4.5, 5.0),
        ("compute", 5.0, 8.0),
    ]


def test_r4_blocks_its_last_stage_on_the_copy() -> None:
    run = run_of(Regime.SYNC_V2, Fixed(1.0, 1.0), ONE, overheads=Overheads(d2h_s=0.5))
    assert shown(run, 0)[:3] == [("compute", 0.0, 1.0), ("waits for token", 1.0, 2.5), ("compute", 2.5, 3.5)]
    assert shown(run, 1)[:5] == [
        ("no work", 0.0, 1.0),
        ("compute", 1.0, 2.0),
        ("waits for copy", 2.0, 2.5),
        ("no work", 2.5, 3.5),
        ("compute", 3.5, 4.5),
    ]


@pytest.mark.parametrize("regime", list(Regime))
def test_nothing_to_do_until_the_next_request_comes_is_no_work(regime: Regime) -> None:
    run = run_of(regime, Fixed(1.0, 1.0), Request("a", 0.0, 4, 1), Request("b", 10.0, 4, 1))
    assert shown(run, 0) == [
        ("compute", 0.0, 1.0),
        ("no work", 1.0, 10.0),
        ("compute", 10.0, 11.0),
        ("no work", 11.0, 12.0),
    ]


def complete_events(trace: dict[str, Any], process: int) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == process]


def check_format(trace: dict[str, Any]) -> None:
    """Trace Event Format: what viewers require of the phases we use, and slices of a track that do not overlap."""
    for event in trace["traceEvents"]:
        assert event["ph"] in ("M", "X", "i")
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0
        if event["ph"] == "M":
            ((key, kind),) = METADATA[event["name"]].items()
            assert isinstance(event["args"][key], kind)
        elif event["ph"] == "X":
            assert event["dur"] >= 0
            assert set(event) == set(RECORDED_SLICE)
        else:
            assert event["s"] == "t"
    for track in {(event["pid"], event["tid"]) for event in trace["traceEvents"]}:
        slices = [event for event in complete_events(trace, track[0]) if event["tid"] == track[1]]
        for one, after in pairwise(slices):
            assert round(1000 * (one["ts"] + one["dur"])) <= round(1000 * after["ts"])


RECORDED_SLICE = next(event for event in RECORDED["traceEvents"] if event["ph"] == "X")


@pytest.fixture(scope="module")
def k3_trace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("trace") / "out.json"
    assert main(["explain", "kimi-k3-pp8-tp2", "--json", "--trace", str(path)]) == 0
    trace: dict[str, Any] = json.loads(path.read_text())
    return trace


def test_the_trace_has_the_shape_of_the_engines_own(k3_trace: dict[str, Any]) -> None:
    check_format(k3_trace)
    assert set(k3_trace) - {"partitune"} <= set(RECORDED)
    assert set(k3_trace["distributedInfo"]) == set(RECORDED["distributedInfo"])
    assert set(k3_trace["distributedInfo"]["pg_config"][0]) <= set(RECORDED["distributedInfo"]["pg_config"][0])
    assert k3_trace["displayTimeUnit"] == RECORDED["displayTimeUnit"]
    assert k3_trace["distributedInfo"]["world_size"] == 16
    recorded = [event["name"] for event in RECORDED["traceEvents"] if event["name"].startswith("execute_")]
    assert recorded
    assert all(MARKER.fullmatch(name) for name in recorded)


def test_the_trace_of_k3_shows_eight_stages_in_their_places(k3_trace: dict[str, Any]) -> None:
    names = {e["pid"]: e["args"]["name"] for e in k3_trace["traceEvents"] if e["name"] == "process_name"}
    assert names == {
        **{stage: f"stage {stage} (node {stage // 4}, 2 x B300)" for stage in range(8)},
        8: "engine core",
    }
    markers = [
        [event for event in complete_events(k3_trace, stage) if MARKER.fullmatch(event["name"]) and event["dur"]]
        for stage in range(8)
    ]
    # 16 prompts of 256 tokens fit one step; the 31 tokens that follow are 31 decodes of all 16.
    expected = ["execute_context_16(4096)_generation_0(0)"] + ["execute_context_0(0)_generation_16(16)"] * 31
    for events in markers:
        assert [event["name"] for event in events] == expected
        assert [event["args"]["tokens"] for event in events] == [4096] + [16] * 31
        assert events[0]["args"]["requests"] == {str(number): 256 for number in range(16)}
    # The k-th batch reaches a stage when the stage before is done with it, and the pass begins and ends with it.
    for before, after in pairwise(markers):
        assert all(
            round(1000 * (one["ts"] + one["dur"])) <= round(1000 * two["ts"])
            for one, two in zip(before, after, strict=True)
        )


def test_the_trace_adds_up_to_the_table(k3_trace: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["explain", "kimi-k3-pp8-tp2", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    for row in table["stages"]:
        slices = complete_events(k3_trace, row["stage"])
        seconds = {"compute": 0.0, "transfer": 0.0, "wait": 0.0}
        for event in slices:
            kind = "compute" if MARKER.fullmatch(event["name"]) else "wait" if event["cat"] == "wait" else "transfer"
            seconds[kind] += event["dur"] / 1e6
        # The table's run holds costs over up to 32 rounds of decoding, the trace's does not.
        assert seconds["compute"] == pytest.approx(row["compute_s"], rel=1e-3)
        assert seconds["transfer"] == pytest.approx(row["transfer_s"], rel=1e-3)
        assert seconds["wait"] == pytest.approx(row["wait_s"], rel=1e-3)


def test_workers_run_steps_without_tokens_in_their_turn() -> None:
    """`v1/worker/gpu_worker.py` execute_model: an empty step is marked too, after what the stage had before."""
    run = run_of(Regime.ASYNC_V2, Fixed(1.0, 1.0), ONE, overheads=Overheads(empty_step_s=2.5))
    timeline = timeline_of(run)
    assert list(timeline.empty_steps(0))[:2] == [(1.0, 2), (3.5, 4)]
    assert list(timeline.empty_steps(1))[:2] == [(2.0, 2), (4.5, 4)]
    trace: dict[str, Any] = chrome_trace(timeline, ["one", "two"], ["", ""], 1, {}, VllmTraceNames())
    check_format(trace)
    empty = "execute_context_0(0)_generation_0(0)"
    assert empty in {event["name"] for event in RECORDED["traceEvents"]}
    for stage in range(2):
        marks = [event for event in complete_events(trace, stage) if MARKER.fullmatch(event["name"])]
        core = [event for event in trace["traceEvents"] if event["name"] in ("dispatch", "empty step")]
        assert [event["args"]["step"] for event in marks] == [event["args"]["step"] for event in core]
        assert [event["name"] == empty for event in marks] == [event["name"] == "empty step" for event in core]
        assert {event["dur"] for event in marks if event["name"] == empty} == {0.0}


def test_every_rank_has_a_file_named_as_the_engines() -> None:
    """The recorded set: dp0_pp0_tp0_dcp0_ep0_rank0.<ns>.pt.trace.json.gz and …pp1…rank1, worker VLLM::Worker_PP0."""
    timeline = timeline_of(run_of(Regime.ASYNC_V2, Fixed(1.0, 1.0, transfer=0.5), ONE))
    layout = Layout(pp=2)
    ranks = [Rank(stage, 0, layout, has_experts=True) for stage in range(2)]
    traces: dict[str, Any] = rank_traces(timeline, ["a", "b"], ranks, {}, VllmTraceNames())
    names = [f"dp0_pp{rank}_tp0_dcp0_ep0_rank{rank}.0.pt.trace.json.gz" for rank in range(2)]
    assert list(traces) == ["engine_core.trace.json.gz", *names]
    whole = chrome_trace(timeline, ["one", "two"], ["a", "b"], 1, {}, VllmTraceNames())
    for rank, name in enumerate(names):
        check_format(traces[name])
        assert traces[name]["distributedInfo"]["rank"] == rank
        assert traces[name]["distributedInfo"]["pg_config"][0]["ranks"] == [0, 1]
        assert complete_events(traces[name], rank) == complete_events(whole, rank)
        workers = [e["args"]["name"] for e in traces[name]["traceEvents"] if e["name"] == "process_name"]
        assert workers == [f"VLLM::Worker_PP{rank}"]
    recorded = [e["args"]["name"] for e in RECORDED["traceEvents"] if e["name"] == "process_name"]
    assert recorded[0] == "VLLM::Worker_PP0"


def test_names_say_the_dimensions_of_more_than_one_rank() -> None:
    wide = Rank(1, 1, Layout(tp=2, pp=2, dp=2, expert_ranks=4), has_experts=True)
    dense = Rank(1, 1, Layout(tp=2, pp=2), has_experts=False)
    vllm, sglang = VllmTraceNames(), SglangTraceNames()
    assert vllm.worker(wide) == "VLLM::Worker_DP0_PP1_TP1_EP1"
    assert vllm.file(dense) == "rank3.0.pt.trace.json.gz"
    assert sglang.worker(dense) == "sglang::scheduler_PP1_TP1"
    assert sglang.file(wide) == "simulated-TP-1-DP-0-PP-1-EP-1.trace.json.gz"
    assert sglang.file(Rank(0, 0, Layout(), has_experts=False)) == "simulated-TP-0.trace.json.gz"


def test_a_send_is_named_as_pytorch_names_it() -> None:
    # PyTorch `ProcessGroupNCCL.cpp` profiling titles: `nccl:send 0->1`, `nccl:recv 1<-0`; gloo's hold no ranks.
    run = run_of(Regime.ASYNC_V2, Fixed(1.0, 1.0, transfer=0.5), ONE)
    trace = chrome_trace(timeline_of(run), ["one", "two"], ["", ""], 2, {})
    check_format(trace)
    names = [{event["name"] for event in complete_events(trace, stage)} for stage in range(2)]
    assert "nccl:send 0->1" in names[0]
    assert "nccl:recv 1<-0" in names[1]
    assert {e["name"] for e in RECORDED["traceEvents"] if e["name"].startswith("gloo")} == {"gloo:send"}


def test_a_trace_replaces_an_older_one_and_nothing_else(tmp_path: Path) -> None:
    trace = chrome_trace(timeline_of(run_of(Regime.ASYNC_V2, Fixed(1.0), ONE)), ["one"], [""], 1, {})
    for name in ("out.json", "out.json.gz"):
        write_trace(tmp_path / name, trace)
        write_trace(tmp_path / name, trace)
    assert json.loads((tmp_path / "out.json").read_text()) == trace
    assert json.loads(gzip.decompress((tmp_path / "out.json.gz").read_bytes())) == trace
    for content in (json.dumps(RECORDED).encode(), gzip.compress(b"{}"), b"\x1f\x8bbroken", b""):
        other = tmp_path / "profile.json"
        other.write_bytes(content)
        with pytest.raises(SpecError, match="not a simulated trace"):
            write_trace(other, trace)
        assert other.read_bytes() == content
    for wrong in (tmp_path, tmp_path / "missing" / "out.json", tmp_path / "out.json" / "out.json", Path()):
        with pytest.raises(SpecError, match="--trace"):
            write_trace(wrong, trace)
    with pytest.raises(SpecError, match=r"--trace-dir: .*profile\.json: exists and is not a simulated trace"):
        write_traces(tmp_path, {"rank0.json": trace, "profile.json": trace})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "out.json.gz", "profile.json"]


def test_a_bad_path_ends_with_code_2_and_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "tiny", "--trace", str(tmp_path / "missing" / "out.json")]) == 2
    assert "in an existing folder" in capsys.readouterr().err


def test_a_candidate_that_cannot_run_leaves_no_trace(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main(["explain", "tiny", "--set", "gpu_memory_utilization=0.1", "--trace", str(out)]) == 1
    assert not out.exists()
