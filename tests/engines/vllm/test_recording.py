"""Against vLLM's own scheduler.

tests/data/schedules_vllm_0_33_0.json: 82 schedules of the real vLLM 0.33.0 `Scheduler` / `AsyncScheduler`, recorded by
driving them with the engine core's loop in virtual time (the project's own recording of the engine's behaviour).
tests/data/schedules_options_vllm_0_32_0.json: 60 more of 0.32.0 with prefix caching, priorities, requests that stop
early, a watermark and held-back prompts, recorded by benchmarks/record_vllm_schedules.py.
tests/data/schedules_hard_vllm_0_33_0.json.gz: 52 harder ones of 0.33.0, recorded as the first: windows and states under
tight KV, states exported inside chunks, flags of the scheduler, cadences and priorities, answers that prompts hold, and
bursts shaped like Kimi-K3's.
tests/data/schedules_groups_vllm_0_33_0.json.gz: 49 more of those kinds, recorded by benchmarks/record_vllm_schedules.py
from seeds that nobody had looked at when the rules were written.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partitune.engines.recordings import TOLERANCE_S
from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.engine_core import simulate
from partitune.engines.vllm.scheduler.recording import Recording
from partitune.engines.vllm.scheduler.settings import PrefillCadence, SchedulingPolicy
from partitune.errors import SpecError
from partitune.simulation.run import Overheads

SCHEDULES = Path(__file__).parent.parent.parent / "data" / "schedules_vllm_0_33_0.json"
OPTIONS = SCHEDULES.with_name("schedules_options_vllm_0_32_0.json")
HARD = SCHEDULES.with_name("schedules_hard_vllm_0_33_0.json.gz")
GROUPS = SCHEDULES.with_name("schedules_groups_vllm_0_33_0.json.gz")


def test_every_recorded_schedule_is_reproduced() -> None:
    agreements = Recording.verify(SCHEDULES)
    assert len(agreements) == 82
    assert {recording.settings().regime for recording in Recording.read(SCHEDULES)} == set(Regime)
    assert [each for each in agreements if not each.agrees] == []


def test_every_recorded_schedule_with_options_is_reproduced() -> None:
    agreements = Recording.verify(OPTIONS)
    assert len(agreements) == 60
    assert [each for each in agreements if not each.agrees] == []
    recordings = Recording.read(OPTIONS)
    assert sum((recording.prefix_cache_hits or 0) > 0 for recording in recordings) == 30
    assert sum((recording.preemptions or 0) > 0 for recording in recordings) == 30
    assert {recording.settings().scheduling_policy for recording in recordings} == set(SchedulingPolicy)


@pytest.mark.parametrize(("file", "count"), [(HARD, 52), (GROUPS, 49)])
def test_every_harder_schedule_is_reproduced(file: Path, count: int) -> None:
    agreements = Recording.verify(file)
    assert len(agreements) == count
    assert [each for each in agreements if not each.agrees] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"passes_over_preempted": True}, {"passes_over_preempted": False}),
        ({"prefill_cadence": PrefillCadence.STEPS}, {"prefill_cadence": PrefillCadence.TURNS}),
    ],
)
def test_rules_of_033_are_what_these_recordings_show(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Each rule of the release is needed by a recording of it: with the one before, some differ."""
    differ = 0
    for recording in Recording.read(HARD):
        settings = recording.settings()
        if recording.name.startswith(("priority", "interval")):
            assert all(getattr(settings, name) == value for name, value in old.items())
            requests = [entry.request() for entry in recording.requests]
            run = simulate(requests, replace(settings, **new), recording.costs(), Overheads(), record_steps=True)
            differ += recording.difference(run) is not None
    assert differ


@pytest.mark.parametrize("file", [SCHEDULES, OPTIONS, HARD, GROUPS])
def test_running_ahead_gives_the_recorded_totals(file: Path) -> None:
    # Without step records the simulator skips rounds.
    for recording in Recording.read(file):
        run = recording.simulate(record_steps=False)
        assert run.makespan_s == pytest.approx(recording.makespan, abs=TOLERANCE_S), recording.name
        assert run.compute_s == pytest.approx(recording.stage_busy, abs=TOLERANCE_S), recording.name
        assert run.batches + run.empty_steps == len(recording.steps), recording.name


@pytest.fixture
def record() -> dict[str, Any]:
    found: dict[str, Any] = next(r for r in json.loads(SCHEDULES.read_text()) if r["name"] == "preempt-async")
    return found


def write(path: Path, data: object) -> Path:
    file = path / "recording.json"
    file.write_text(json.dumps(data))
    return file


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r["steps"][7].update(dispatch=r["steps"][7]["dispatch"] + 0.5), ["step 7", "dispatch_s"]),
        (lambda r: r["steps"][0].update(start=None), ["step 0", "start_s"]),
        (lambda r: r["steps"][3]["tokens"].update({"0": 9}), ["step 3", "tokens"]),
        (lambda r: r["steps"].pop(), ["254 steps", "255"]),
        (lambda r: r.update(makespan=1.0), ["makespan"]),
        (lambda r: r["stage_busy"].__setitem__(2, 1.0), ["stage 2", "busy"]),
        (lambda r: r.update(num_blocks=150), ["step"]),
        (lambda r: r.update(preemptions=r.get("preemptions", 0) + 99), ["preemptions recorded 99"]),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, record: dict[str, Any], change: Any, words: list[str]) -> None:
    change(record)
    difference = Recording.read(write(tmp_path, [record]))[0].agreement().difference
    assert difference is not None
    assert all(word in difference for word in words), difference


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r.pop("num_blocks"), ["0.num_blocks", "required"]),
        (lambda r: r.update(pp="four"), ["0.pp", "integer"]),
        (lambda r: r.update(regime="R5"), ["0.regime", "'sync-v2'"]),
        (lambda r: r.update(colour="red"), ["0.colour", "not permitted"]),
        (lambda r: r["requests"][2].update(output_tokens=0), ["0.requests.2.output_tokens", "greater than 0"]),
        (lambda r: r["steps"][1].pop("end"), ["0.steps.1.end", "required"]),
        (lambda r: r["stage_time"]["scale"].pop(), ["0: stage_time.scale", "3 entries", "pp is 4"]),
        (lambda r: r.update(max_num_seqs=5000), ["0: ", "max_num_seqs 5000"]),
    ],
)
def test_a_malformed_record_is_refused(tmp_path: Path, record: dict[str, Any], change: Any, words: list[str]) -> None:
    change(record)
    file = write(tmp_path, [record])
    with pytest.raises(SpecError) as caught:
        Recording.read(file)
    assert str(file) in str(caught.value)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("[{")
    for file in (broken, write(tmp_path, []), write(tmp_path, {"steps": []}), tmp_path / "absent.json", tmp_path):
        with pytest.raises(SpecError, match=str(file)):
            Recording.read(file)
