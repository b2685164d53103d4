"""Against the schedulers of vLLM 0.30.0, 0.31.0 and 0.32.0 on the V1 model runner, each as its own wheel has it.

tests/data/schedules_vllm_0_30_0_to_0_32_0.json.gz: 51 schedules recorded by benchmarks/record_vllm_schedules.py, kinds
storm, prefix, threshold, priority and early, two of each, and some with windows and states: 0.30.0 in async-v1 and
sync-v1, 0.31.0 and 0.32.0, which refuse async scheduling on that runner, in sync-v1.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partitune.engines.recordings import TOLERANCE_S
from partitune.engines.vllm.scheduler.engine_core import simulate
from partitune.engines.vllm.scheduler.recording import Recording
from partitune.simulation.run import Overheads

FORMER = Path(__file__).parent.parent.parent / "data" / "schedules_vllm_0_30_0_to_0_32_0.json.gz"


def test_former_releases_are_reproduced() -> None:
    recordings = Recording.read(FORMER)
    assert Counter((recording.engine, str(recording.regime)) for recording in recordings) == {
        ("vllm 0.30.0", "async-v1"): 13,
        ("vllm 0.30.0", "sync-v1"): 10,
        ("vllm 0.31.0", "sync-v1"): 14,
        ("vllm 0.32.0", "sync-v1"): 14,
    }
    assert [each for each in (recording.agreement() for recording in recordings) if not each.agrees] == []
    for recording in recordings:
        run = recording.simulate(record_steps=False)
        assert run.makespan_s == pytest.approx(recording.makespan, abs=TOLERANCE_S), recording.name


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("spares_lone_prompts", True),
        ("passed_over_first", False),
        ("whole_prompt_border", False),
        ("renames_states", False),
    ],
)
def test_every_rule_of_a_former_release_is_shown_by_a_recording(rule: str, value: object) -> None:
    """With the rule of 0.33 instead, some of them differ."""
    differing = 0
    for recording in Recording.read(FORMER):
        settings = recording.settings()
        if getattr(settings, rule) != value:
            requests = [entry.request() for entry in recording.requests]
            changed: dict[str, Any] = {rule: value}
            newer = replace(settings, **changed)
            run = simulate(requests, newer, recording.costs(), Overheads(), record_steps=True)
            differing += recording.difference(run) is not None
    assert differing
