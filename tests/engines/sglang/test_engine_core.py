"""What is known of SGLang 0.5.23 under pipeline parallelism, beyond the recordings.

Numbers come from its source (paths under srt/ in each test) and from the periods that follow from the order of calls in
`managers/scheduler_pp_mixin.py` event_loop_pp; test_sim_sglang_recording.py holds the same code to the engine itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from partitune.engines.recordings import LinearCosts
from partitune.engines.sglang.scheduler.engine_core import simulate_sglang
from partitune.engines.sglang.scheduler.settings import SglangSettings
from partitune.errors import OutOfMemory, SpecError
from partitune.simulation.request import Request, SharedPrefix
from partitune.simulation.run import Overheads, Run, Step
from tests.builders import burst

FREE = Overheads()


def simulated(
    requests: Sequence[Request], settings: SglangSettings, costs: LinearCosts, overheads: Overheads = FREE
) -> Run:
    return simulate_sglang(requests, settings, costs, overheads, record_steps=True)


def equal(stages: int, seconds: float = 1.0, handoff_s: float = 0.0) -> LinearCosts:
    """A batch takes the same time whatever it holds: decode is bound by weights."""
    return LinearCosts((1.0,) * stages, seconds, 0.0, handoff_s)


# Who decodes where (facts sect. 0 item 5, sect. 1.3)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_the_engines_own_cap_puts_sixteen_short_prompts_into_one_slot(stages: int) -> None:
    """managers/scheduler.py init_model_worker: max_running_requests // pp_size, 2048 rows or more by default."""
    settings = SglangSettings(stages=stages, max_running_requests=2048, num_tokens=1 << 20)
    assert settings.micro_batch_cap == 2048 // stages
    run = simulated(burst(16, 20, 200), settings, equal(stages))
    assert {len(step.tokens) for step in run.steps if step.tokens} == {16}
    assert all(busy / run.makespan_s == pytest.approx(1 / stages, rel=0.02) for busy in run.compute_s)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_cap_of_concurrency_over_stages_fills_the_pipe(stages: int) -> None:
    requests = burst(16, 20, 200)
    auto = SglangSettings(stages=stages, max_running_requests=2048, num_tokens=1 << 20)
    capped = replace(auto, pp_max_micro_batch_size=math.ceil(16 / stages))
    by_token = LinearCosts((1.0,) * stages, 0.0, 1.0)
    full = simulated(requests, capped, by_token)
    assert all(busy / full.makespan_s > 0.92 for busy in full.compute_s)
    assert simulated(requests, auto, by_token).makespan_s / full.makespan_s == pytest.approx(stages, rel=0.08)
    # Where a batch takes the same time whatever it holds, a full pipe is busier and no faster.
    busy = simulated(requests, capped, equal(stages))
    assert all(seconds / busy.makespan_s > 0.95 for seconds in busy.compute_s)
    assert busy.makespan_s == pytest.approx(simulated(requests, auto, equal(stages)).makespan_s, rel=0.05)


def test_the_cap_is_by_stages_not_by_slots_and_never_nothing() -> None:
    base = SglangSettings(stages=4, max_running_requests=30, num_tokens=100, pp_async_batch_depth=2)
    assert (base.slots, base.micro_batch_cap) == (6, 7)
    assert replace(base, max_running_requests=3).micro_batch_cap == 1
    assert replace(base, stages=1, pp_async_batch_depth=2).slots == 1  # event_loop_normal


def test_fewer_busy_slots_than_stages_gain_nothing_for_a_request() -> None:
    """Facts 2.5: time per token is the sum over stages until the slots are as many as the stages."""
    settings = SglangSettings(stages=4, max_running_requests=64, num_tokens=1 << 20, pp_max_micro_batch_size=1)
    gaps = {count: simulated(burst(count, 8, 50), settings, equal(4)).inter_token_s.max() for count in (1, 2, 4)}
    assert gaps == pytest.approx({1: 4.0, 2: 4.0, 4: 4.0})


# Chunks and decodes (facts 2.6)


def test_the_next_chunk_goes_to_the_next_slot_without_waiting() -> None:
    settings = SglangSettings(stages=4, max_running_requests=8, num_tokens=1 << 20, chunked_prefill_size=100)
    run = simulated(burst(1, 800, 2), settings, LinearCosts((1.0,) * 4, 0.0, 0.01))
    chunks = run.steps[:8]
    assert [dict(step.tokens) for step in chunks] == [{"0": 100}] * 8
    assert [step.start_s for step in chunks] == pytest.approx([float(number) for number in range(8)])
    # Fill: every chunk once on stage 0, the last one on the three others.
    assert run.requests[0].first_token_s == pytest.approx(8 + 3)
    # The request stays in the slot of its last chunk: 7 % 4.
    assert [number % 4 for number, step in enumerate(run.steps) if number > 7 and step.tokens] == [3]


def test_a_slot_with_a_prompt_does_not_decode_unless_mixed() -> None:
    """managers/scheduler.py get_next_batch_to_run: 'Run prefill first if possible'."""
    requests = [Request("old", 0.0, 10, 40), Request("new", 5.0, 1000, 2)]
    plain = SglangSettings(
        stages=2, max_running_requests=8, num_tokens=1 << 20, chunked_prefill_size=100, pp_max_micro_batch_size=4
    )

    def stall(settings: SglangSettings) -> float:
        return float(simulated(requests, settings, LinearCosts((1.0, 1.0), 0.5, 0.005)).inter_token_s.max())

    chunk_s = 0.5 + 100 * 0.005
    assert stall(plain) > 9 * chunk_s  # ten chunks, and the decode waits for all of them
    assert stall(replace(plain, enable_mixed_chunk=True)) < 4 * chunk_s


def test_a_mixed_chunk_is_shorter_by_the_decodes() -> None:
    """managers/schedule_policy.py PrefillAdder: rem_chunk_tokens -= num_mixed_decode_tokens."""
    settings = SglangSettings(
        stages=2, max_running_requests=8, num_tokens=1 << 20, chunked_prefill_size=100, enable_mixed_chunk=True
    )
    run = simulated([*burst(3, 10, 30), Request("long", 3.0, 500, 2)], settings, equal(2))
    mixed = [step.tokens for step in run.steps if "long" in step.tokens and "0" in step.tokens]
    assert mixed
    assert all(step["long"] == 97 for step in mixed if step["long"] > 50)


def test_prefill_decode_interval_keeps_slots_for_decodes() -> None:
    """managers/scheduler.py _arm_prefill_decode_interval: the next n slots do not prefill."""
    requests = [*burst(2, 10, 30), Request("long", 3.0, 400, 2)]
    settings = SglangSettings(
        stages=2,
        max_running_requests=8,
        num_tokens=1 << 20,
        chunked_prefill_size=100,
        pp_max_micro_batch_size=3,
        prefill_decode_interval=3,
    )
    run = simulated(requests, settings, equal(2))
    turns = [number for number, step in enumerate(run.steps) if step.tokens.get("long", 0) > 1]
    assert [later - earlier for earlier, later in pairwise(turns)] == [4, 4, 4]


# Periods (facts 2.4, 2.5)


def period(settings: SglangSettings, costs: LinearCosts, overheads: Overheads) -> float:
    """Seconds per slot of a full pipe that decodes."""
    slots = settings.slots
    run = simulated(burst(2 * slots, 1, 80), replace(settings, pp_max_micro_batch_size=2), costs, overheads)
    middle = len(run.steps) // 2
    first, last = run.steps[middle].start_s, run.steps[middle + 20 * slots].start_s
    assert first is not None
    assert last is not None
    return (last - first) / (20 * slots)


@pytest.mark.parametrize("stages", [2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("depth", [0, 1])
def test_period_of_a_full_pipe(stages: int, depth: int) -> None:
    """t = 6 ms, hop 0.15 ms, CPU 2.3 ms: the three regimes of the loop.

    Depth 0: the CPU is in the cycle, (sum t + hops + CPU) / stages; with an odd number the last rank sends before it
    receives (scheduler_pp_mixin.py, send_first) and waits for its own computation, t + hop + CPU. Depth 1: t + hop.
    """
    t, hop, cpu = 6.0, 0.15, 2.3
    settings = SglangSettings(
        stages=stages,
        max_running_requests=64,
        num_tokens=1 << 20,
        chunked_prefill_size=2,
        pp_async_batch_depth=depth,
    )
    wanted = t + hop
    if depth == 0:
        wanted = t + hop + cpu if stages % 2 else (stages * t + (stages - 1) * hop + cpu) / stages
    assert period(settings, equal(stages, t, hop), Overheads(engine_step_s=cpu)) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(
    ("stages", "overlap", "chunk_s"), [(2, False, 1.4), (2, True, 1.0), (4, False, 1.4), (4, True, 1.4)]
)
def test_what_a_handoff_overlaps(stages: int, overlap: bool, chunk_s: float) -> None:
    """Facts 2.4: nothing by default. SGLANG_PP_COMM_OVERLAP frees the first and the last stage; a stage between them
    asks for batch i + 1 on the stream that waits for batch i to be sent (_pp_send_dict_to_next_stage, ready_event)."""
    settings = SglangSettings(
        stages=stages,
        max_running_requests=64,
        num_tokens=1 << 20,
        chunked_prefill_size=100,
        pp_async_batch_depth=1,
        comm_overlap=overlap,
    )
    costs = LinearCosts((1.0,) * stages, 1.0, 0.0, 0.4)
    run = simulated(burst(1, 4000, 2), settings, costs)
    first, last = run.steps[10].start_s, run.steps[30].start_s
    assert first is not None
    assert last is not None
    assert (last - first) / 20 == pytest.approx(chunk_s)
    assert period(settings, costs, FREE) == pytest.approx(1.4)  # decodes replay CUDA graphs and wait for the send


def test_middle_chunks_need_no_ring_when_told_so() -> None:
    """SGLANG_PP_SKIP_PURE_CHUNKED_OUTPUT_COMM takes the last stage's answer out of stage 0's way (depth 0)."""
    settings = SglangSettings(stages=2, max_running_requests=8, num_tokens=1 << 20, chunked_prefill_size=100)
    costs = LinearCosts((1.0, 1.0), 1.0, 0.0, 0.4)
    slow = simulated(burst(1, 4000, 2), settings, costs, Overheads(engine_step_s=0.3, broadcast_s=0.5))
    fast = simulated(
        burst(1, 4000, 2),
        replace(settings, skip_pure_chunked_output=True),
        costs,
        Overheads(engine_step_s=0.3, broadcast_s=0.5),
    )
    assert fast.makespan_s < slow.makespan_s


# One stage


def test_one_stage_is_a_sum() -> None:
    """event_loop_normal: decide, compute, process."""
    settings = SglangSettings(stages=1, max_running_requests=8, num_tokens=1 << 20, chunked_prefill_size=100)
    overheads = Overheads(engine_step_s=0.1, d2h_s=0.02, sample_s=0.3)
    run = simulated(burst(5, 30, 11), settings, LinearCosts((1.0,), 1.0, 0.01), overheads)
    # 150 prompt tokens in two chunks (30, 30, 30, 10 | 20, 30), then ten rounds of five decodes.
    work = (1 + 1.0) + (1 + 0.5) + 10 * (1 + 0.05)
    assert run.batches == 12
    assert run.makespan_s == pytest.approx(work + 12 * (0.1 + 0.3) + 11 * 0.02)
    assert run.duration_s == pytest.approx(run.makespan_s + 0.02)
    assert run.compute_s[0] == pytest.approx(work + 12 * 0.3)


# Memory


def test_of_equal_output_the_longest_prompt_is_retracted() -> None:
    """managers/schedule_batch.py _get_decode_retraction_order: key (output, -prompt), taken from the end; only the
    slot whose turn it is gives requests up, and the others' future was not reserved."""
    settings = SglangSettings(
        stages=2, max_running_requests=8, num_tokens=300, pp_max_micro_batch_size=3, ignore_eos=False
    )
    prompts = [10, 30, 12, 11, 25, 9]  # three for each slot; 97 tokens and six more a round
    run = simulated([Request(str(n), 0.0, prompt, 60) for n, prompt in enumerate(prompts)], settings, equal(2))
    turns = [step.tokens for step in run.steps if step.tokens]
    gone = next(
        set(before) - set(now) for before, now in zip(turns, turns[2:], strict=False) if len(now) < len(before) == 3
    )
    assert run.preemptions > 0
    assert gone == {"4"}  # slot 1 is the first that finds less than three tokens


def test_a_request_alone_in_its_slot_is_aborted() -> None:
    """managers/schedule_batch.py retract_decode: 'Out of memory even after retracting all other requests in the decode
    batch'. Other slots' requests cannot be retracted, which is why it happens under pipeline parallelism."""
    settings = SglangSettings(
        stages=2,
        max_running_requests=8,
        num_tokens=100,
        pp_max_micro_batch_size=1,
        ignore_eos=False,
        schedule_conservativeness=0.0,
    )
    with pytest.raises(OutOfMemory, match="alone in its micro-batch") as error:
        simulated(burst(2, 10, 60), settings, equal(2))
    assert error.value.excess == 1.0
    assert simulated(burst(2, 10, 60), replace(settings, num_tokens=140), equal(2)).preemptions == 0


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"num_tokens": 40}, OutOfMemory, "needs 42 KV tokens, the pool has 40"),
        ({"max_model_len": 41}, SpecError, "less the 2"),
    ],
)
def test_a_request_the_engine_would_cut_short_is_refused(
    change: dict[str, Any], error: type[Exception], words: str
) -> None:
    """managers/scheduler.py init_req_max_new_tokens."""
    settings = SglangSettings(stages=2, max_running_requests=8, num_tokens=1000)
    with pytest.raises(error, match=words):
        simulated(burst(1, 20, 20), replace(settings, **change), equal(2))


def test_a_prompt_is_not_read_again_where_it_begins_like_one_before() -> None:
    """mem_cache/common.py match_kv_cache: all but the last token, if need be, and only what was computed by then."""
    settings = SglangSettings(stages=2, max_running_requests=8, num_tokens=1000)
    system = (SharedPrefix("system", 40),)
    first = Request("0", 0.0, 60, 5, prefix=system)
    other = Request("1", 50.0, 70, 5, prefix=system)
    again = Request("2", 100.0, 40, 5, prefix=system)
    talk = Request("3", 150.0, 90, 5, continues="1")
    run = simulated([first, other, again, talk], settings, equal(2))
    assert (run.prefix_cache_queries, run.prefix_cache_hits) == (60 + 70 + 40 + 90, 40 + 39 + 74)
    early = simulated([first, replace(other, arrival_s=0.0)], settings, equal(2))
    assert early.prefix_cache_hits == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stages": 0}, "stages is 0"),
        ({"chunked_prefill_size": 100, "page_size": 64}, "multiple of page_size 64"),
        ({"pp_max_micro_batch_size": 0}, "pp_max_micro_batch_size is 0"),
        ({"schedule_conservativeness": -1.0}, "schedule_conservativeness is -1.0"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], words: str) -> None:
    good = SglangSettings(stages=2, max_running_requests=8, num_tokens=1000)
    with pytest.raises(SpecError, match=words):
        replace(good, **change)


# Properties


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[Request], SglangSettings, LinearCosts, Overheads]:
    stages = draw(st.integers(1, 5))
    page = draw(st.sampled_from([1, 1, 4, 16]))
    tick = 2.0**-8
    requests = [
        Request(str(i), draw(st.integers(0, 2000)) * tick, draw(st.integers(1, 90)), draw(st.integers(1, 20)))
        for i in range(draw(st.integers(1, 14)))
    ]
    settings = SglangSettings(
        stages=stages,
        max_running_requests=draw(st.integers(1, 12)),
        num_tokens=draw(st.sampled_from([300, 600, 100_000])) // page * page,
        page_size=page,
        chunked_prefill_size=draw(st.sampled_from([None, 16, 32, 128])),
        max_prefill_tokens=draw(st.sampled_from([40, 16384])),
        pp_max_micro_batch_size=draw(st.sampled_from([None, 1, 2, 4])),
        pp_async_batch_depth=draw(st.integers(0, 2)),
        enable_mixed_chunk=draw(st.booleans()),
        prefill_decode_interval=draw(st.sampled_from([0, 0, 2])),
        radix_cache=draw(st.booleans()),
        ignore_eos=draw(st.booleans()),
        comm_overlap=draw(st.booleans()),
        skip_pure_chunked_output=draw(st.booleans()),
    )
    costs = LinearCosts(
        tuple(draw(st.integers(1, 3)) * 1.0 for _ in range(stages)),
        draw(st.integers(1, 8)) * tick * 8,
        tick,
        draw(st.sampled_from([0.0, 4 * tick])),
    )
    return requests, settings, costs, draw(st.sampled_from([FREE, Overheads(tick, tick, tick, tick, tick)]))


@given(workloads())
@hypothesis_settings(max_examples=150, deadline=None)
def test_invariants(workload: tuple[list[Request], SglangSettings, LinearCosts, Overheads]) -> None:
    requests, settings, costs, overheads = workload
    try:
        run = simulated(requests, settings, costs, overheads)
    except OutOfMemory:
        return
    computed = dict.fromkeys((request.id for request in requests), 0)
    for step in run.steps:
        assert len(step.tokens) <= settings.max_running_requests
        for name, tokens in step.tokens.items():
            computed[name] += tokens
    for request, times in zip(requests, run.requests, strict=True):
        least = request.prompt_tokens + request.output_tokens - 1
        assert computed[request.id] >= least
        assert run.preemptions or computed[request.id] == least
        assert request.arrival_s <= times.sent_s < times.first_token_s <= times.finish_s
    assert run.inter_token_s.size == sum(request.output_tokens - 1 for request in requests)
    assert all(busy <= run.makespan_s * (1 + 1e-12) for busy in run.compute_s)
    if not run.preemptions:
        assert_one_slot_for_life(run.steps, settings.slots, requests)


def assert_one_slot_for_life(steps: Sequence[Step], slots: int, requests: Sequence[Request]) -> None:
    """From the end of its prompt on a request runs in one slot, and no two prompts are unfinished at once."""
    read = dict.fromkeys((request.id for request in requests), 0)
    prompts = {request.id: request.prompt_tokens for request in requests}
    home: dict[str, int] = {}
    for number, step in enumerate(steps):
        for name, tokens in step.tokens.items():
            if read[name] < prompts[name]:
                read[name] += tokens
                assert read[name] <= prompts[name]
                home[name] = number % slots
            else:
                assert tokens == 1
                assert home[name] == number % slots
        assert sum(0 < read[name] < prompts[name] for name in read) <= 1


def test_a_closed_loop_sends_when_a_request_is_done() -> None:
    settings = SglangSettings(stages=2, max_running_requests=8, num_tokens=1 << 20, pp_max_micro_batch_size=2)
    run = simulate_sglang(burst(6, 20, 5), settings, equal(2), FREE, concurrency=2)
    finished = sorted(times.finish_s for times in run.requests)
    assert [times.sent_s for times in run.requests] == [0.0, 0.0, *finished[:4]]
