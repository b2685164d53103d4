"""Gates, with the runs that tuners were fooled by (field reports 56 to 59, 89) and a recorded one that passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitune.engines.readout import Counters
from partitune.engines.vllm.benchmark import VllmBench
from partitune.errors import BenchmarkFailed, Stalled
from partitune.execution.readout.bench_results import BenchResult, read_bench
from partitune.execution.readout.engine_readout import read_metrics
from partitune.execution.server.gates import ProgressWatch, check_window
from tests.engine_output import VLLM, recorded

GOOD = BenchResult(
    metrics={}, sent=100, completed=100, failed=0, input_tokens=10_000, output_tokens=1600, duration_s=9.0
)
BEFORE = Counters(generation_tokens=50, prefix_queries=5000, prefix_hits=100)
AFTER = Counters(generation_tokens=1650, prefix_queries=15_000, prefix_hits=150)


def reasons(result: BenchResult, before: Counters | None = BEFORE, after: Counters | None = AFTER) -> str:
    with pytest.raises(BenchmarkFailed) as caught:
        check_window(result, before, after, requests=100, output_tokens=1600, shared_prefix=False)
    return str(caught.value)


def test_a_recorded_window_passes() -> None:
    window = read_bench(VllmBench.format, recorded("bench_prefill.json"))
    before, after = (
        read_metrics(recorded("metrics_before.txt"), VLLM.metrics),
        read_metrics(recorded("metrics_after.txt"), VLLM.metrics),
    )
    check_window(window, before, after, requests=12, output_tokens=12, shared_prefix=False)
    check_window(GOOD, BEFORE, AFTER, requests=100, output_tokens=1600, shared_prefix=False)
    check_window(GOOD, None, AFTER, requests=100, output_tokens=1600, shared_prefix=False)
    check_window(GOOD, Counters(), Counters(), requests=100, output_tokens=1600, shared_prefix=False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"completed": 1, "failed": 99}, "only 1 of 100 requests completed"),
        ({"completed": 98}, "only 98 of 100 requests completed, fewer than 99%"),
        ({"completed": 101}, "another run"),
        ({"sent": 1000}, "sent 1000 requests instead of 100"),
        ({"output_tokens": 1500}, "only 1500 of 1600 output tokens came"),
        ({"duration_s": 0.01}, "it took 0.01 s"),
        ({"longest_gap_s": 75.0}, "stood still for 75 s"),
        ({"acceptance_rate": 0.01}, "1.0% of drafted tokens were accepted"),
    ],
)
def test_each_gate_of_the_client(change: dict[str, float], said: str) -> None:
    text = reasons(replace(GOOD, **change))  # type: ignore[arg-type]
    assert said in text
    assert ";" not in text.replace("another run?", "")


def test_prompts_that_came_from_the_cache() -> None:
    """100,000 tokens looked up and 60,000 found by a load that shares nothing: TPOT was 34 % too good."""
    before, after = Counters(prefix_queries=0, prefix_hits=0), Counters(prefix_queries=100_000, prefix_hits=60_000)
    assert "60.0% of the prompt tokens came from the prefix cache" in reasons(GOOD, before, after)
    check_window(GOOD, before, after, requests=100, output_tokens=1600, shared_prefix=True)
    few = replace(after, prefix_hits=1000)  # 1 %
    check_window(GOOD, before, few, requests=100, output_tokens=1600, shared_prefix=False)


def test_a_broken_drafter_by_the_engines_counters() -> None:
    """vllm#52069 and others: speculation over stages with about 1 % acceptance."""
    before = replace(BEFORE, draft_tokens=10.0, accepted_tokens=5.0)
    assert "1.0% of drafted" in reasons(GOOD, before, replace(AFTER, draft_tokens=1010.0, accepted_tokens=15.0))
    good = replace(AFTER, draft_tokens=1010.0, accepted_tokens=505.0)
    check_window(GOOD, before, good, requests=100, output_tokens=1600, shared_prefix=False)


def test_tokens_of_another_server_and_an_engine_that_began_anew() -> None:
    assert "another server answered" in reasons(GOOD, BEFORE, replace(AFTER, generation_tokens=50))
    assert "started anew" in reasons(GOOD, BEFORE, replace(AFTER, generation_tokens=0))


def test_all_reasons_come_at_once_with_the_errors_of_requests() -> None:
    bad = replace(GOOD, completed=3, output_tokens=48, duration_s=0.1, errors=("Not Found", "Server disconnected"))
    text = reasons(bad, Counters(prefix_queries=0, prefix_hits=0), Counters(prefix_queries=100, prefix_hits=90))
    assert text == (
        "the window cannot be trusted: only 3 of 100 requests completed, fewer than 99%; only 48 of 1600 output tokens "
        "came, fewer than 95%; it took 0.1 s, less than 0.2 s; 90.0% of the prompt tokens came from the prefix cache, "
        "more than 1% of a load that shares no prefix: the same prompts were sent before; errors of requests: "
        "Not Found | Server disconnected"
    )


def test_a_hung_engine_is_seen_and_a_busy_or_idle_one_is_not() -> None:
    """vllm#53402: running 3, 0 tokens a second, /metrics answers 200."""
    watch = ProgressWatch(limit_s=60)
    hung = Counters(generation_tokens=500, prompt_tokens=900, running=3)
    for now_s in (0, 30, 60):
        watch.see(now_s, hung)
    with pytest.raises(Stalled, match="3 requests run and no token came for 75 s, longer than 60 s") as caught:
        watch.see(75, hung)
    assert caught.value.excess == 15

    busy = ProgressWatch(limit_s=60)
    for step in range(10):  # a long prefill: no token out, prompt tokens in
        busy.see(50 * step, replace(hung, prompt_tokens=1000 * step))
    idle = ProgressWatch(limit_s=60)
    for now_s in (0, 100, 200):
        idle.see(now_s, replace(hung, running=0))
    idle.see(250, hung)  # a request has just come
    idle.see(300, Counters())  # a page without figures
    with pytest.raises(Stalled):
        idle.see(311, hung)
