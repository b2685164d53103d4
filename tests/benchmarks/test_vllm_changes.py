"""What a new release changed, told from two sets of recordings: here those of vLLM 0.30.0 and 0.31.0.

Between them `long_prefill_token_threshold` stopped to cut requests that are alone (0.31.0 `v1/core/sched/scheduler.py`:
`num_eligible_reqs > 1`), and requests that were passed over went back into the one waiting queue.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.record_vllm_schedules import allowed, read
from benchmarks.vllm_changes import by_setting, first_difference, name_changes, report, schedule_changes
from benchmarks.vllm_facts import Facts, of_project, recordings_before

FORMER = read(Path(__file__).parent.parent / "data" / "schedules_vllm_0_30_0_to_0_32_0.json.gz")


def facts(version: str, pages: int = 8, **what: bool) -> Facts:
    """What is recorded of a release in sync-v1, one KV plan, and the flags and architectures that are named."""
    schedules = {
        record["name"]: record
        for record in FORMER
        if record["engine"] == f"vllm {version}" and record["regime"] == "R2" and "ext" not in record
    }
    plan: dict[str, Any] = {
        "model": "one layer",
        "layer_kinds": "f",
        "page_bytes": {"full": pages},
        "block_size": {"full": 4},
        "max_model_len": 8,
        "max_num_batched_tokens": 8,
        "in_flight_batches": 1,
        "partition": [1],
        "available_bytes_per_stage": [80],
        "num_blocks": 80 // pages,
        "max_group_layers_per_stage": [1],
        "num_groups": 1,
        "capacity": [40.0 * 8 / pages, 5.0 * 8 / pages],
    }
    return Facts(version, f"vllm {version}", schedules, {"one layer": plan}, frozenset(what), what)


def test_what_changed_is_told_by_the_setting_that_it_hangs_on() -> None:
    lines = list(schedule_changes(facts("0.30.0"), facts("0.31.0")))
    first = "threshold-0 (R2, pp 3), step 0: tokens were {'000': 96}, are {'000': 240}"
    assert lines == [
        "schedules: 3 of 10 differ",
        f"  long_prefill_token_threshold: 2 of 2 differ; {first}",
        "  any: 1 of 8 differ; early-1 (R2, pp 8), step 665: tokens were {'003': 64}, are {'004': 64}",
    ]


def test_the_same_release_changed_nothing() -> None:
    lines = report(facts("0.31.0", a=True), facts("0.32.0", a=True))
    assert lines == [
        "vllm 0.31.0 -> vllm 0.32.0",
        "schedules: 0 of 10 differ",
        "KV plans: 0 of 1 differ",
        "flags: 0 new, 0 gone",
        "architectures: 0 new, 0 gone",
        "vllm 0.32.0 and what is simulated here",
        "simulator: 0 of 10 schedules differ",
        "planner: 0 of 1 KV plans differ",
    ]


def test_every_other_change_is_a_line() -> None:
    before, after = facts("0.31.0", a=True, b=True), facts("0.32.0", pages=16, b=False, c=True)
    assert [line for line in report(before, after) if line.startswith(" ")] == [
        "  one layer: num_blocks was 10, is 5",
        "  one layer: capacity was [40.0, 5.0], is [20.0, 2.5]",
        "  new: c",
        "  gone: a",
        "  new: c",
        "  gone: a",
        "  b: has no pipeline any more",
    ]


def test_the_setting_whose_scenarios_differ_most_often_explains_them() -> None:
    usual = {"scheduling_policy": "fcfs"}
    records: dict[str, Any] = {
        "0": {"scheduling_policy": "priority", "watermark": 0.1},
        "1": {"scheduling_policy": "priority"},
        "2": usual | {"watermark": 0.1},
        "3": usual | {"ext": {"windows": [8], "group": "w"}},
        "4": usual,
    }
    differing = dict.fromkeys("013", "differs")
    assert list(by_setting(records, differing)) == [("scheduling_policy", 2, 2, "0"), ("windows", 1, 1, "3")]
    assert list(by_setting(records, {"4": "differs"})) == [("any", 1, 5, "4")]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("end", 2.002, "step 0: end was 2.0, is 2.002"),
        ("end", 2.0004, None),
        ("start", None, "step 0: start was 0.0, is None"),
        ("tokens", {"a": 2}, "step 0: tokens were {'a': 1}, are {'a': 2}"),
    ],
)
def test_the_first_step_that_differs_is_named(key: str, value: object, words: str | None) -> None:
    step = {"dispatch": 0.0, "start": 0.0, "end": 2.0, "tokens": {"a": 1}}
    assert first_difference({"steps": [step]}, {"steps": [step | {key: value}]}) == words


def test_names_come_and_go() -> None:
    assert list(name_changes("flags", "ab", "bc")) == ["flags: 1 new, 1 gone", "  new: c", "  gone: a"]


def test_a_release_is_held_against_the_newest_recordings_up_to_it() -> None:
    assert {record["engine"] for record in recordings_before("0.31.2")} == {"vllm 0.31.0"}
    assert {record["regime"] for record in recordings_before("0.30.0")} == {"R1", "R2"}
    assert of_project("0.32.9").version == "0.32.0"
    assert allowed("0.30.1")[0] == "R1"
    assert allowed("0.31.0")[0] == "R2"  # config/vllm.py: V1 runner, pipeline and async scheduling are refused together
