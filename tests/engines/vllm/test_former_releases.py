"""Against the schedulers of vLLM 0.30.0, 0.31.0 and 0.32.0 on the V1 model runner, each as its own wheel has it.

tests/data/schedules_vllm_0_30_0_to_0_32_0.json.gz: 40 schedules recorded by benchmarks/record_vllm_schedules.py, kinds
storm, prefix, threshold, priority and early, two of each: 0.30.0 in async-v1 and sync-v1, 0.31.0 and 0.32.0, which
refuse async scheduling on that runner, in sync-v1.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from partitune.engines.vllm.scheduler.recording import Recording

FORMER = Path(__file__).parent.parent.parent / "data" / "schedules_vllm_0_30_0_to_0_32_0.json.gz"

#: Rules of 0.30.0 (`v1/core/sched/scheduler.py`) that are not simulated: `long_prefill_token_threshold` cuts a request
#: that is alone as well, and requests passed over once wait in a queue of their own (`skipped_waiting`) ahead of all.
DIFFERENCES = {
    ("storm-0 (vllm 0.30.0)", "async-v1"): "step 132: tokens recorded {'004': 1, '007': 1}, simulated "
    "{'004': 1, '007': 1, '008': 72}",
    ("threshold-0 (vllm 0.30.0)", "async-v1"): "step 0: end_s recorded 9.026, simulated 9.458",
    ("threshold-1 (vllm 0.30.0)", "async-v1"): "step 0: end_s recorded 15.50532, simulated 17.519080000000002",
    ("early-1 (vllm 0.30.0)", "async-v1"): "step 309: tokens recorded {'006': 64}, simulated {'007': 64}",
    ("threshold-0 (vllm 0.30.0)", "sync-v1"): "step 0: end_s recorded 9.026, simulated 9.458",
    ("threshold-1 (vllm 0.30.0)", "sync-v1"): "step 0: end_s recorded 15.50532, simulated 17.519080000000002",
    ("early-1 (vllm 0.30.0)", "sync-v1"): "step 665: tokens recorded {'003': 64}, simulated {'004': 64}",
}


def test_former_releases_are_reproduced_but_for_rules_that_are_named() -> None:
    recordings = Recording.read(FORMER)
    assert Counter((recording.engine, str(recording.regime)) for recording in recordings) == {
        ("vllm 0.30.0", "async-v1"): 10,
        ("vllm 0.30.0", "sync-v1"): 10,
        ("vllm 0.31.0", "sync-v1"): 10,
        ("vllm 0.32.0", "sync-v1"): 10,
    }
    assert all(recording.preemptions for recording in recordings)
    agreements = [(recording, recording.agreement()) for recording in recordings]
    found = {(each.where, str(recording.regime)): each.difference for recording, each in agreements if not each.agrees}
    assert found == DIFFERENCES
