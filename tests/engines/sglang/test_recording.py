"""Against SGLang's own loop and scheduler.

tests/data/schedules_sglang_0_5_23.json: 60 runs of the real SGLang 0.5.23 `Scheduler` (event_loop_pp, one instance a
stage), recorded in virtual time by benchmarks/record_sglang_schedules.py (the project's own recording of the engine).
tests/data/schedules_sglang_0_5_23_texts.json.gz: more of the same whose prompts begin alike (the runs of
benchmarks/sglang_text_scenarios.yaml, recorded in the same way).
tests/data/schedules_sglang_0_5_23_unnamed.json.gz: one run recorded by others with the same recorder, as it was handed
over: prompts share prefixes, and the file does not say which.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from partitune.engines.sglang.scheduler.recording import PrefixEntry, Recording
from partitune.errors import SpecError

DATA = Path(__file__).parent.parent.parent / "data"
SCHEDULES = DATA / "schedules_sglang_0_5_23.json"
TEXTS = DATA / "schedules_sglang_0_5_23_texts.json.gz"
UNNAMED = DATA / "schedules_sglang_0_5_23_unnamed.json.gz"


def test_every_recorded_turn_is_reproduced() -> None:
    agreements = Recording.verify(SCHEDULES)
    assert len(agreements) == 60
    assert sum(len(recording.steps) for recording in Recording.read(SCHEDULES)) == 11209
    assert [each for each in agreements if not each.agrees] == []


def test_the_recordings_hold_what_they_are_for() -> None:
    recordings = Recording.read(SCHEDULES)
    settings = [recording.settings() for recording in recordings]
    assert {one.stages for one in settings} == {1, 2, 3, 4, 5, 6, 8}
    assert {one.pp_async_batch_depth for one in settings} == {0, 1, 2}
    assert sum(recording.retractions for recording in recordings) == 34
    for key in ("enable_mixed_chunk", "comm_overlap", "skip_pure_chunked_output", "radix_cache", "ignore_eos"):
        assert {getattr(one, key) for one in settings} == {True, False}, key
    assert any(one.dynamic_chunks for one in settings)


def test_every_turn_with_shared_prefixes_is_reproduced() -> None:
    agreements = Recording.verify(TEXTS)
    recordings = Recording.read(TEXTS)
    assert len(agreements) == 36
    assert sum(len(recording.steps) for recording in recordings) == 12969
    assert [each for each in agreements if not each.agrees] == []
    assert {recording.pp for recording in recordings} == {1, 2, 3, 4, 5, 6, 8}
    assert {recording.schedule_policy for recording in recordings} == {"fcfs", "lpm", "dfs-weight"}
    assert sum(recording.retractions for recording in recordings) == 30
    requests = [request for recording in recordings for request in recording.requests]
    assert {len(request.prefix) for request in requests} == {0, 1, 2, 3}
    assert any(request.continues for request in requests)


def without_answers(recording: Recording) -> Recording:
    return recording.model_copy(
        update={"requests": [request.model_copy(update={"continues": None}) for request in recording.requests]}
    )


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("system-burst", lambda r: r.model_copy(update={"radix_cache": False})),
        ("levels-page", lambda r: r.model_copy(update={"page_size": 1})),
        ("talk", without_answers),
        ("lpm", lambda r: r.model_copy(update={"schedule_policy": "fcfs"})),
        ("dfs-tight", lambda r: r.model_copy(update={"schedule_policy": "lpm"})),
    ],
)
def test_what_a_recording_with_shared_prefixes_is_for_is_seen(name: str, change: Any) -> None:
    recording = next(one for one in Recording.read(TEXTS) if one.name == name)
    assert change(recording).agreement().difference is not None


def test_a_record_may_leave_unsaid_who_shares_with_whom() -> None:
    """The prompts of this one were made so: three groups in turn, 70 % of each shared. Both readings agree."""
    (recording,) = Recording.read(UNNAMED)
    assert recording.agreement().difference is None
    named = [
        request.model_copy(
            update={"prefix": [PrefixEntry(group=str(int(request.id) % 3), tokens=request.prompt_tokens * 7 // 10)]}
        )
        for request in recording.requests
    ]
    assert recording.model_copy(update={"requests": named}).agreement().difference is None
    other = [request.model_copy(update={"prefix": request.prefix[:0]}) for request in named[:1]] + named[1:]
    assert recording.model_copy(update={"requests": other}).agreement().difference is not None


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_a_retracted_prompt_is_found_in_the_radix_cache(number: int) -> None:
    """Without the cache the same run reads more: release_kv_cache leaves the prompt there, match_kv_cache finds it."""
    recording = next(one for one in Recording.read(SCHEDULES) if one.name == f"kv-hit-{number}")
    without = recording.model_copy(update={"radix_cache": False}).simulate()
    assert without.batch_tokens > sum(sum(step.tokens.values()) for step in recording.steps)


@pytest.fixture
def record() -> dict[str, Any]:
    found: dict[str, Any] = next(r for r in json.loads(SCHEDULES.read_text()) if r["name"] == "kv-bold")
    return found


def write(path: Path, data: object) -> Path:
    file = path / "recording.json"
    file.write_text(json.dumps(data))
    return file


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r["steps"][7].update(dispatch=r["steps"][7]["dispatch"] + 0.5), ["turn 7 (slot 1)", "dispatch_s"]),
        (lambda r: r["steps"][0].update(start=None), ["turn 0 (slot 0)", "start_s"]),
        (lambda r: r["steps"][3]["tokens"].update({"0": 9}), ["turn 3", "tokens"]),
        (lambda r: r["steps"].pop(), ["turns"]),
        (lambda r: r["first_token"].update({"2": 1e3}), ["request 2", "first token"]),
        (lambda r: r["finish"].update({"2": 1e3}), ["request 2", "finish"]),
        (lambda r: r.update(retractions=9), ["9 retractions", "simulated 3"]),
        (lambda r: r.update(makespan=1.0), ["makespan"]),
        (lambda r: r["stage_busy"].__setitem__(1, 1.0), ["stage 1", "busy"]),
        (lambda r: r.update(num_tokens=2000), ["turn"]),
        (lambda r: r.update(schedule_conservativeness=1.0), ["turn"]),
        (lambda r: r.update(pp_max_micro_batch_size=3), ["turn"]),
        (lambda r: r.update(engine_step_s=0.01), ["turn 0", "dispatch_s"]),
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
        (lambda r: r.pop("page_size"), ["0.page_size", "required"]),
        (lambda r: r.update(pages=1), ["0.pages", "Extra"]),
        (lambda r: r["stage_time"]["scale"].pop(), ["0: stage_time.scale", "pp is 2"]),
        (lambda r: r["finish"].pop("3"), ["0: finish", "every request"]),
        (
            lambda r: r.update(chunked_prefill_size=100, page_size=16),
            ["0: SGLang settings", "multiple of page_size 16"],
        ),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, record: dict[str, Any], change: Any, words: list[str]) -> None:
    change(record)
    file = write(tmp_path, [record])
    with pytest.raises(SpecError) as refused:
        Recording.read(file)
    assert all(word in str(refused.value) for word in [str(file), *words]), refused.value


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.json: cannot read"):
        Recording.read(tmp_path / "none.json")


def test_a_run_that_cannot_be_simulated_to_its_end_differs(tmp_path: Path, record: dict[str, Any]) -> None:
    record["num_tokens"] = 150
    difference = Recording.read(write(tmp_path, [record]))[0].agreement().difference
    assert difference is not None
    assert "recorded 310 steps to the end, simulated: request 4 is alone" in difference, difference
