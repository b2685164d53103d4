"""Gates, with the runs that tuners were fooled by (field reports 56 to 59, 89) and a recorded one that passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitune.engines.readout import Counters
from partitune.engines.vllm.benchmark import VllmBench
from partitune.errors import BenchmarkFailed, Stalled
from partitune.execution.readout.bench_results import BenchResult, read_bench
from partitune.execution.readout.engine_readout import read_metrics
from partitune.execution.server.gates import Asked, ProgressWatch, check_window
from partitune.simulation.workload import random_requests
from partitune.spec.workload import RandomWorkload
from tests.engine_output import VLLM, recorded
from tests.fake_setup import fake_setup

GOOD = BenchResult(
    metrics={}, sent=100, completed=100, failed=0, input_tokens=10_000, output_tokens=1600, duration_s=9.0
)
ASKED = Asked([(100, 100)] * 100, [(16, 16)] * 100)
BEFORE = Counters(generation_tokens=50, prefix_queries=5000, prefix_hits=100)
AFTER = Counters(generation_tokens=1650, prefix_queries=15_000, prefix_hits=150)


def reasons(result: BenchResult, before: Counters | None = BEFORE, after: Counters | None = AFTER) -> str:
    with pytest.raises(BenchmarkFailed) as caught:
        check_window(result, before, after, ASKED)
    return str(caught.value)


def test_a_recorded_window_passes() -> None:
    window = read_bench(VllmBench.format, recorded("bench_prefill.json"))
    before, after = (
        read_metrics(recorded("metrics_before.txt"), VLLM.metrics),
        read_metrics(recorded("metrics_after.txt"), VLLM.metrics),
    )
    check_window(window, None, None, Asked([(256, 256)] * 12, [(1, 1)] * 12))
    both = replace(
        window, sent=28, completed=28, input_tokens=4096, output_tokens=268
    )  # the pages stand around two benchmarks
    check_window(both, before, after, Asked([(256, 256)] * 12 + [(64, 64)] * 16, [(1, 16)] * 28))
    check_window(GOOD, BEFORE, AFTER, ASKED)
    check_window(GOOD, None, AFTER, ASKED)
    check_window(GOOD, Counters(), Counters(), ASKED)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"completed": 1, "failed": 99, "output_tokens": 16, "input_tokens": 100}, "only 1 of 100 requests completed"),
        ({"completed": 98, "output_tokens": 1568}, "only 98 of 100 requests completed, fewer than 99%"),
        ({"completed": 101}, "another run"),
        ({"sent": 1000}, "sent 1000 requests instead of 100"),
        ({"output_tokens": 1599}, "1599 output tokens came, asked for were 1600"),
        ({"output_tokens": 4800}, "4800 output tokens came, asked for were 1600"),
        ({"completed": 99}, "1600 output tokens came, asked for were 1584"),
        ({"input_tokens": 0}, "0 input tokens were sent, asked for were 10000, give or take 10%"),
        ({"input_tokens": 10_000_000}, "10000000 input tokens were sent"),
        ({"metrics": {"e2e_p99_ms": 12_000.0}}, "a latency of 12 s is longer than the whole window of 9 s"),
        ({"acceptance_rate": 1.5}, "150.0% of drafted tokens were accepted, more than all"),
        ({"duration_s": 0.01}, "it took 0.01 s"),
        ({"longest_gap_s": 75.0}, "stood still for 75 s"),
        ({"acceptance_rate": 0.01}, "1.0% of drafted tokens were accepted"),
    ],
)
def test_each_gate_of_the_client(change: dict[str, object], said: str) -> None:
    text = reasons(replace(GOOD, **change), None, None)  # type: ignore[arg-type]
    assert said in text
    assert ";" not in text.replace("another run?", "")


def test_prompts_that_came_from_the_cache() -> None:
    """100,000 tokens looked up and 60,000 found by a load that shares nothing: TPOT was 34 % too good."""
    before, after = Counters(prefix_queries=0, prefix_hits=0), Counters(prefix_queries=100_000, prefix_hits=60_000)
    assert "60.0% of the prompt tokens came from the prefix cache" in reasons(GOOD, before, after)
    check_window(GOOD, before, after, replace(ASKED, shared_prefix=True))
    few = replace(after, prefix_hits=1000)  # 1 %
    check_window(GOOD, before, few, ASKED)


def test_a_broken_drafter_by_the_engines_counters() -> None:
    """vllm#52069 and others: speculation over stages with about 1 % acceptance."""
    before = replace(BEFORE, draft_tokens=10.0, accepted_tokens=5.0)
    assert "1.0% of drafted" in reasons(GOOD, before, replace(AFTER, draft_tokens=1010.0, accepted_tokens=15.0))
    good = replace(AFTER, draft_tokens=1010.0, accepted_tokens=505.0)
    check_window(GOOD, before, good, ASKED)


def test_tokens_of_another_server_and_an_engine_that_began_anew() -> None:
    assert "another server answered" in reasons(GOOD, BEFORE, replace(AFTER, generation_tokens=50))
    assert "generated 1700 tokens and the client received 1600: others used it too" in reasons(
        GOOD, BEFORE, replace(AFTER, generation_tokens=1750)
    )
    for read in (0, 30_000):
        after = replace(AFTER, prompt_tokens=read)
        said = f"the engine read {read} prompt tokens and the client sent 10000"
        assert said in reasons(GOOD, replace(BEFORE, prompt_tokens=0), after)
    # Random tokens sent as text are cut anew: a third more is no other load.
    check_window(GOOD, replace(BEFORE, prompt_tokens=0), replace(AFTER, prompt_tokens=13_300), ASKED)
    assert "started anew" in reasons(GOOD, BEFORE, replace(AFTER, generation_tokens=0))


def test_all_reasons_come_at_once_with_the_errors_of_requests() -> None:
    bad = replace(
        GOOD,
        completed=3,
        input_tokens=300,
        output_tokens=47,
        duration_s=0.1,
        errors=("Not Found", "Server disconnected"),
    )
    text = reasons(bad, Counters(prefix_queries=0, prefix_hits=0), Counters(prefix_queries=100, prefix_hits=90))
    assert text == (
        "the window cannot be trusted: only 3 of 100 requests completed, fewer than 99%; it took 0.1 s, less "
        "than 0.2 s; 47 output tokens came, asked for were 48; 90.0% of the prompt tokens came from the prefix cache, "
        "more than 1% of a load that shares no prefix: the same prompts were sent before; errors of requests: "
        "Not Found | Server disconnected"
    )


def of_load(**settings: object) -> Asked:
    """What the tool of a fake setup is asked for, with `settings` as further arguments of the tool."""
    (load,) = fake_setup(benchmark={"arguments": settings}).loads
    return Asked.of(load)


def test_what_a_study_asks_for_is_what_its_tool_may_draw() -> None:
    """24 requests of 16 tokens in and 12 out; a load with a range admits every sum that can be drawn, and no other."""
    asked = of_load()
    assert (asked.prompts, asked.answers, asked.full_length) == ([(16, 16)] * 24, [(12, 12)] * 24, True)
    assert not of_load(extra_body='{"ignore_eos": false}').full_length
    assert not of_load(disable_ignore_eos=True).full_length  # SGLang's

    load = RandomWorkload(requests=50, prompt_tokens=300, output_tokens=40, range_ratio=0.3, concurrency=4)
    low, high = load.bounds(load.output_tokens)
    varied = Asked([load.bounds(300)] * 50, [(low, high)] * 50)
    for seed in range(20):
        drawn = random_requests(load, seed)
        inputs, outputs = (sum(request.prompt_tokens for request in drawn), sum(r.output_tokens for r in drawn))
        window = replace(GOOD, sent=50, completed=50, input_tokens=inputs, output_tokens=outputs)
        check_window(window, None, None, varied)
    for wrong in (50 * low - 1, 50 * high + 1):
        with pytest.raises(BenchmarkFailed, match=f"{wrong} output tokens came, asked for were 1400 to 2600"):
            check_window(replace(window, output_tokens=wrong), None, None, varied)


def test_answers_that_may_end_early_never_exceed_what_was_asked() -> None:
    early = replace(ASKED, full_length=False)
    check_window(replace(GOOD, output_tokens=700), None, None, early)
    for tokens in (99, 1601):
        with pytest.raises(BenchmarkFailed, match=f"{tokens} output tokens came, asked for were 100 to 1600"):
            check_window(replace(GOOD, output_tokens=tokens), None, None, early)


def test_prompts_are_as_long_as_a_tokenizer_may_make_them() -> None:
    for tokens in (10_000 - 1000 - 1600, 10_000 + 1000 + 1600):
        check_window(replace(GOOD, input_tokens=tokens), None, None, ASKED)
    short = Asked([(2, 2)] * 100, ASKED.answers)
    check_window(replace(GOOD, input_tokens=1800), None, None, short)  # tokens at the ends
    with pytest.raises(BenchmarkFailed, match="99 input tokens"):
        check_window(replace(GOOD, input_tokens=99), None, None, short)


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
