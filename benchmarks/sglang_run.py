"""One scenario through SGLang's loop: a process configuration, a thread per stage, and what they did.

Decision: the stages' schedules must be the same, which is what lets a simulator decide once for all of them; if they
are not, nothing is recorded.
"""

# The engine is not installed where the checks run.
# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import importlib.metadata
import threading
from typing import Any

from sglang.srt import runtime_context
from sglang.srt.server_args import ServerArgs

from benchmarks.sglang_recorded import Recorded
from benchmarks.sglang_scenarios import Scenario
from benchmarks.sglang_texts import prompts
from benchmarks.sglang_virtual_device import FAILED, AnotherStageFailedError, ring


def record(scenario: Scenario) -> dict[str, Any]:
    """Run one scenario."""
    arguments = ServerArgs(
        model_path="none",
        pp_size=scenario.pp,
        pp_async_batch_depth=scenario.async_batch_depth,
        pp_max_micro_batch_size=scenario.pp_max_micro_batch_size
        or max(scenario.max_running_requests // scenario.pp, 1),
        chunked_prefill_size=scenario.chunked_prefill_size or -1,
        max_prefill_tokens=scenario.max_prefill_tokens,
        prefill_max_requests=scenario.prefill_max_requests,
        prefill_decode_interval=scenario.prefill_decode_interval,
        max_running_requests=scenario.max_running_requests,
        enable_mixed_chunk=scenario.enable_mixed_chunk,
        schedule_conservativeness=scenario.schedule_conservativeness,
        schedule_policy=scenario.schedule_policy,
        page_size=scenario.page_size,
        disable_radix_cache=not scenario.radix_cache,
        disable_overlap_schedule=True,
        device="cpu",
        attention_backend="torch_native",
        skip_tokenizer_init=True,
    )
    runtime_context.publish(arguments, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=0))
    # Resolution may move a value (for example by the device); what is recorded is what was asked for.
    runtime_context.get_context().override(
        "recorder",
        chunked_prefill_size=scenario.chunked_prefill_size or -1,
        max_prefill_tokens=scenario.max_prefill_tokens,
        page_size=scenario.page_size,
        pp_max_micro_batch_size=scenario.pp_max_micro_batch_size
        or max(scenario.max_running_requests // scenario.pp, 1),
        disable_overlap_schedule=True,
        enable_mixed_chunk=scenario.enable_mixed_chunk,
    )
    requests = scenario.requests()
    stages = ring(
        scenario.pp,
        lambda _boundary, tokens: scenario.handoff_base + scenario.handoff_per_token * tokens,
        scenario.ring_s,
    )
    arrivals = sorted(requests, key=lambda request: request["arrival"])
    texts = prompts(requests)
    schedulers = [Recorded(scenario, stage, list(arrivals), texts) for stage in stages]
    failures: list[Exception] = []
    FAILED.clear()

    def run(scheduler: Recorded) -> None:
        try:
            scheduler.work()
        except AnotherStageFailedError:
            pass
        except Exception as error:  # noqa: BLE001 - carried to the main thread and raised there
            failures.append(error)
            FAILED.set()

    with scenario.environment():
        threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in schedulers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    first, last = schedulers[0], schedulers[-1]
    for other in schedulers[1:]:
        assert [s["tokens"] for s in other.steps] == [s["tokens"] for s in first.steps], "stages disagree"
    assert len(first.last_s) == len(requests), "a request did not finish"
    steps = []
    for mine_, theirs in zip(first.steps, last.steps, strict=True):
        end = theirs["end"] if mine_["tokens"] else mine_["end"]
        steps.append({**mine_, "end": end})
    while steps and not steps[-1]["tokens"]:
        steps.pop()
    return scenario.as_record(
        engine=f"sglang {importlib.metadata.version('sglang')}",
        requests=requests,
        steps=steps,
        makespan=max(step["end"] for step in steps),
        stage_busy=[one.busy_s for one in schedulers],
        first_token=first.first_s,
        finish=first.last_s,
        retractions=first.retracted,
    )
