"""What the scheduler's options do, in small cases worked out by hand from vLLM 0.33.0.

Every stage takes one second a batch and nothing else takes time, so a step's dispatch can be counted on the fingers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from partitune.costs.cost_model import Batch
from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.engine_core import simulate
from partitune.engines.vllm.scheduler.settings import PrefillCadence, SchedulerSettings, SchedulingPolicy
from partitune.errors import OutOfMemory, SpecError
from partitune.simulation.request import Request, SharedPrefix
from partitune.simulation.run import Overheads, Run


@dataclass
class Seconds:
    """One second a stage; remembers what it was asked."""

    stages: int
    asked: list[Batch] = field(default_factory=list)

    def compute_s(self, batch: Batch) -> Sequence[float]:
        self.asked.append(batch)
        return [1.0] * self.stages

    def transfer_s(self, tokens: int) -> Sequence[float]:
        return [0.0] * (self.stages - 1)


def settings(regime: Regime = Regime.SYNC_V1, stages: int = 1, **more: Any) -> SchedulerSettings:
    basic = {"max_num_batched_tokens": 1000, "max_num_seqs": 8, "num_blocks": 1000}
    return SchedulerSettings(regime, stages, **(basic | more))


def run(requests: Sequence[Request], config: SchedulerSettings) -> Run:
    return simulate(requests, config, Seconds(config.stages), Overheads(), record_steps=True)


def tokens(result: Run) -> list[dict[str, int]]:
    """Tokens of every step that has any."""
    return [dict(step.tokens) for step in result.steps if step.tokens]


class TestPriority:
    def test_less_is_admitted_first_and_equals_in_order_of_arrival(self) -> None:
        # v1/core/sched/request_queue.py PriorityRequestQueue, v1/request.py Request.__lt__
        load = [Request(name, 0.0, 4, 1, priority=p) for name, p in [("a", 2), ("b", 1), ("c", 0), ("d", 1)]]
        config = settings(max_num_seqs=1, scheduling_policy=SchedulingPolicy.PRIORITY)
        assert [next(iter(step)) for step in tokens(run(load, config))] == ["c", "b", "d", "a"]

    @pytest.mark.parametrize(("policy", "first"), [(SchedulingPolicy.FCFS, "old"), (SchedulingPolicy.PRIORITY, "new")])
    def test_the_least_important_is_preempted(self, policy: SchedulingPolicy, first: str) -> None:
        # v1/core/sched/scheduler.py schedule: max(running, key=(priority, arrival_time)) instead of running[-1]
        load = [Request("old", 0.0, 8, 16, priority=1), Request("new", 0.5, 8, 16, priority=0)]
        result = run(load, settings(num_blocks=9, block_size=4, scheduling_policy=policy))
        assert result.preemptions == 1
        assert min(result.requests, key=lambda times: times.finish_s).id == first


@pytest.mark.parametrize("cadence", PrefillCadence)
def test_prompts_wait_for_their_step(cadence: PrefillCadence) -> None:
    # v1/engine/core.py _should_throttle_prefills: only turns 0, 4, 8, ... while somebody decodes; v1/core/sched/
    # scheduler.py local_prefill_interval: the fourth executed step after the one that read a's prompt, here the same.
    load = [Request("a", 0.0, 4, 20), Request("b", 1.5, 4, 1)]
    dispatched = {}
    for interval in (1, 4):
        result = run(load, settings(prefill_schedule_interval=interval, prefill_cadence=cadence))
        dispatched[interval] = next(step.dispatch_s for step in result.steps if "b" in step.tokens)
    assert dispatched == {1: 2.0, 4: 4.0}


CACHED: dict[str, Any] = {"enable_prefix_caching": True}


class TestPrefixCache:
    """v1/core/kv_cache_manager.py get_computed_blocks and allocate_slots, v1/core/block_pool.py."""

    def load(self, *prompts: int, shared: int = 32, apart_s: float = 100.0) -> list[Request]:
        prefix = (SharedPrefix("g", shared),)
        return [Request(str(i), i * apart_s, prompt, 1, prefix=prefix) for i, prompt in enumerate(prompts)]

    @pytest.mark.parametrize(
        ("shared", "prompt", "read"),
        [
            (32, 40, 8),
            (31, 40, 24),  # full blocks only
            (32, 32, 16),  # the last token is computed in any case, and with it its block
            (32, 33, 1),
            (0, 40, 40),
        ],
    )
    def test_full_blocks_are_found_but_never_the_last_token(self, shared: int, prompt: int, read: int) -> None:
        result = run(self.load(prompt, prompt, shared=shared), settings(**CACHED))
        assert tokens(result) == [{"0": prompt}, {"1": read}]
        assert (result.prefix_cache_queries, result.prefix_cache_hits) == (2 * prompt, prompt - read)

    def test_blocks_are_found_in_the_step_that_computes_them(self) -> None:
        # allocate_slots ends with cache_blocks, before the next waiting request is looked at
        assert tokens(run(self.load(40, 40, apart_s=0.0), settings(**CACHED))) == [{"0": 40, "1": 8}]

    def test_off_by_default_and_only_within_a_group(self) -> None:
        assert run(self.load(40, 40), settings()).prefix_cache_queries == 0
        strangers = [Request(name, 0.0, 40, 1, prefix=(SharedPrefix(name, 32),)) for name in "ab"]
        assert run(strangers, settings(**CACHED)).prefix_cache_hits == 0

    def test_the_tail_is_forgotten_first(self) -> None:
        # Three blocks. "0" leaves its two full ones, in the queue behind the half-filled one; "x" needs two and so
        # overwrites the second half of the prefix; free_blocks got them in reverse for that purpose.
        load = self.load(33, 33)
        other = Request("x", 50.0, 20, 1)
        result = run([load[0], other, load[1]], settings(num_blocks=4, **CACHED))
        assert tokens(result) == [{"0": 33}, {"x": 20}, {"1": 17}]

    def test_a_preempted_request_finds_its_own_blocks(self) -> None:
        load = [Request("old", 0.0, 8, 16), Request("new", 0.5, 8, 16)]
        again = {}
        for caching in (False, True):
            result = run(load, settings(num_blocks=9, block_size=4, enable_prefix_caching=caching))
            assert result.preemptions == 1
            again[caching] = max(step.get("new", 0) for step in tokens(result)[2:])
            assert result.prefix_cache_hits == 0  # preempted requests are counted apart
        assert again[True] < again[False]

    def test_a_hybrid_finds_a_prefix_once_its_states_were_kept(self) -> None:
        # "align" mode, v1/core/single_type_kv_cache_manager.py MambaManager and scheduler.py
        # _mamba_block_aligned_split: states are kept at the prompt's last border (48) and, when the full-attention
        # blocks reach further than the states, at that junction (32), where the second request therefore stops.
        config = settings(state_groups=2, align_chunks=True, **CACHED)
        result = run(self.load(60, 60, 60), config)
        chunks = [[step[name] for step in tokens(result) if name in step] for name in "012"]
        assert chunks == [[48, 12], [32, 16, 12], [16, 12]]
        assert result.prefix_cache_hits == 32

    def test_states_nobody_keeps_are_never_found(self) -> None:
        assert run(self.load(60, 60, 60), settings(state_groups=1, **CACHED)).prefix_cache_hits == 0

    def test_a_prefix_longer_than_its_prompt_is_refused(self) -> None:
        with pytest.raises(SpecError, match="request 0: a prefix of 32 tokens"):
            run(self.load(20), settings(**CACHED))


@pytest.mark.parametrize(
    ("regime", "wasted"), [(Regime.ASYNC_V1, 3), (Regime.SYNC_V1, 0), (Regime.ASYNC_V2, 1), (Regime.SYNC_V2, 0)]
)
def test_a_stop_token_comes_too_late_for_what_is_in_flight(regime: Regime, wasted: int) -> None:
    # Four stages. When the last token comes back the queue holds slots - 1 younger steps: with async-v1 the request is
    # in each of the three, with async-v2 in one of the four (next_decode_eligible_step), without async it waits.
    result = run([Request("a", 0.0, 5, 6, stops_early=True)], settings(regime, 4))
    assert result.decode_tokens == 5 + wasted
    assert result.requests[0].finish_s == 24.0  # as ever: six times through four stages


def test_decodes_are_padded_to_the_next_graph() -> None:
    # config/vllm.py _set_cudagraph_sizes; a step with prompt tokens runs piecewise, beyond the largest none is used.
    costs = Seconds(1)
    load = [Request(str(i), 0.0, 4, 2 + i) for i in range(5)]
    result = simulate(load, settings(capture_sizes=(1, 2, 4)), costs, Overheads())
    assert [(batch.decode_tokens, batch.padding, batch.tokens) for batch in costs.asked] == [
        (0, 0, 20),
        (5, 0, 5),
        (4, 0, 4),
        (3, 1, 4),
        (2, 0, 2),
        (1, 0, 1),
    ]
    assert result.batch_tokens == 20 + 15  # padding is nobody's token


@pytest.mark.parametrize("sizes", [(4, 2), (2, 2), (0, 1)])
def test_capture_sizes_ascend(sizes: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match="capture_sizes"):
        settings(capture_sizes=sizes)


def test_an_interval_is_at_least_one_step() -> None:
    with pytest.raises(SpecError, match="prefill_schedule_interval is 0"):
        settings(prefill_schedule_interval=0)


def test_a_request_whose_chunks_in_flight_never_fit_is_refused_where_the_engine_would_go_round_for_ever() -> None:
    """Every chunk in flight keeps its state, so 160 tokens in chunks of 16 want some 10 + 3 x 9 blocks."""
    config = settings(
        stages=8,
        max_num_batched_tokens=16,
        max_num_seqs=8,
        block_size=16,
        num_blocks=18,
        max_model_len=400,
        state_groups=3,
        align_chunks=True,
        enable_prefix_caching=True,
    )
    load = [Request(name, 0.0, 160, 4) for name in "ab"]
    with pytest.raises(OutOfMemory, match="request a is preempted again and again"):
        run(load, config)
    assert len(run(load, replace(config, num_blocks=60)).requests) == 2
