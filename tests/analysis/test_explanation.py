"""What `explain` says of the study that partitune starts from: Kimi-K3 over 8 stages of 2 GPUs."""

from __future__ import annotations

from functools import cache

import pytest

from partitune.analysis.explanation import Explained, candidate_of, explain
from partitune.candidate import FlagValue, Outcome
from partitune.errors import SpecError
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.spec.overrides import with_settings
from partitune.spec.search_space import SearchSpace

DEFAULT = (11, 11, 12, 12, 12, 12, 12, 11)
FEWEST_MLA = (12, 12, 12, 12, 12, 12, 12, 9)
#: The study's three vectors, made by hand.
HAND_MADE = ((10, 11, 12, 12, 12, 11, 13, 12), (7, 11, 11, 11, 11, 11, 15, 16), (14, 11, 12, 12, 12, 12, 11, 9))
#: vLLM as it was when the study was made: the V1 runner, scheduling ahead and waiting for the last stage (async-v1).
THEN: dict[str, FlagValue] = {"engine.version": "0.30.0", "engine.runner": "v1"}


@cache
def problem(*settings: tuple[str, FlagValue]) -> Problem:
    return resolve(with_settings(SearchSpace.load("kimi-k3-pp8-tp2"), dict(settings)))


def explained(partition: tuple[int, ...] | None, flags: dict[str, FlagValue], **settings: FlagValue) -> Explained:
    posed = problem(*settings.items())
    return explain(posed, candidate_of(posed, partition, flags))


def throughput(flags: dict[str, FlagValue], settings: dict[str, FlagValue]) -> float:
    value = explained(None, flags, **settings).result.metric("output_throughput_tok_s")
    assert value is not None
    return value


def test_the_default_is_vllms_own_split() -> None:
    assert explained(None, {}).candidate.partition == DEFAULT


@pytest.mark.parametrize(
    ("partition", "balance"), list(zip((DEFAULT, *HAND_MADE), (1.04, 1.13, 1.38, 1.16), strict=True))
)
def test_the_slowest_stage_over_the_mean_is_what_the_kernel_tables_say(
    partition: tuple[int, ...], balance: float
) -> None:
    """Stage sums of published kernel times, prefill of 2048 tokens (aiconfigurator-core 0.12.0, see NOTICE)."""
    assert explained(partition, {}).balance["prefill_2048"] == pytest.approx(balance, abs=0.03)


def test_blocks_stand_to_one_another_as_in_the_engine_when_memory_is_equal() -> None:
    """vLLM 0.32 `kv_cache_utils.py`, run on these layers with 20 GiB a stage: 4551, 6068, 4551, 3640, 4551 blocks."""
    recorded = (4551, 6068, 4551, 3640, 4551)
    blocks = []
    for partition in (DEFAULT, FEWEST_MLA, *HAND_MADE):
        measured = explained(partition, {"kv_cache_memory_bytes": 20 << 30}).result.measurement
        assert measured is not None
        blocks.append(measured.kv_blocks)
    assert [count / blocks[0] for count in blocks] == pytest.approx(
        [count / recorded[0] for count in recorded], rel=1e-3
    )


def test_in_r1_a_smaller_budget_does_not_help_and_switching_async_off_does() -> None:
    found = explained(None, {}, **THEN)
    assert found.resolved.flow.name == "async-v1"
    before = throughput({}, THEN)
    for tokens in (512, 1024, 2048):
        assert throughput({"max_num_batched_tokens": tokens}, THEN) <= before * 1.01
    small: dict[str, FlagValue] = {"max_num_batched_tokens": 512}
    assert throughput({**small, "async_scheduling": False}, THEN) > 1.5 * before


def test_the_study_is_shipped_as_it_was_run() -> None:
    """What was seen: a smaller budget changes nothing, --no-async-scheduling does; here only where both are set.

    All 16 prompts of the burst fit one step of 16384 tokens, so neither alone cuts it. A long prompt is cut anyway.
    """
    small: dict[str, FlagValue] = {"max_num_batched_tokens": 512}
    off: dict[str, FlagValue] = {"async_scheduling": False}

    def measured(space: str, flags: dict[str, FlagValue]) -> float:
        posed = resolve(SearchSpace.load(space))
        found = explain(posed, candidate_of(posed, None, flags))
        assert found.resolved.flow.name == ("sync-v1" if "async_scheduling" in flags else "async-v1")
        value = found.result.metric("total_throughput_tok_s")
        assert value is not None
        return value

    before = measured("kimi-k3-study", {})
    assert measured("kimi-k3-study", small) <= before
    assert measured("kimi-k3-study", off) <= before
    assert measured("kimi-k3-study", small | off) / before == pytest.approx(2.54, abs=0.1)
    assert measured("kimi-k3-study-prompt", off) > 3 * measured("kimi-k3-study-prompt", {})
    seeds = [seed.partition for seed in SearchSpace.load("kimi-k3-study").seeds]
    assert tuple(seeds) == HAND_MADE


def test_in_r3_the_budget_sets_the_number_of_cohorts() -> None:
    """16 prompts of 256 tokens: 4096 tokens are one batch, 2048 two, 1024 four, 512 eight."""
    in_flight = []
    for tokens in (16384, 4096, 2048, 1024, 512):
        found = explained(None, {"max_num_batched_tokens": tokens})
        assert found.resolved.flow.name == "async-v2"
        value = found.result.metric("mean_in_flight_batches")
        assert value is not None
        in_flight.append(value)
    assert in_flight == pytest.approx([1, 1, 2, 4, 8], rel=0.12)


def test_what_limits_is_said_in_words() -> None:
    measured = explained(HAND_MADE[1], {}).result.measurement
    assert measured is not None
    assert measured.limiting_stage == 7
    assert measured.limiting_reason.startswith("stage 7 computes longest")
    assert measured.limiting_reason.endswith("on average 1.0 batches are in flight over 8 stages")


def test_a_candidate_that_does_not_fit_is_explained_from_its_memory() -> None:
    posed = resolve(SearchSpace.load("kimi-k3-pp8-tp2-h200"))
    found = explain(posed, candidate_of(posed, HAND_MADE[1], {}))
    assert found.result.outcome is Outcome.INFEASIBLE
    assert (found.stages, found.limiting_stage) == ((), 7)
    stages = found.to_json()["stages"]
    assert [stage["fits"] for stage in stages] == [True] * 7 + [False]
    assert stages[7]["free_bytes"] < 0


@pytest.mark.parametrize(
    ("flags", "in_flight", "slowest_is_busy"),
    [
        ({}, 1, 1 / 8),  # the cap is 128 // 8 = 16: the 16 prompts share one slot
        ({"pp_max_micro_batch_size": 4}, 4, 1 / 2),
        ({"pp_max_micro_batch_size": 2}, 8, 1),
        ({"chunked_prefill_size": 512}, 8, 1),  # two prompts a chunk, and each chunk in the next slot
    ],
)
def test_in_sglang_the_cap_of_a_slot_decides_whether_the_pipe_fills(
    flags: dict[str, FlagValue], in_flight: float, slowest_is_busy: float
) -> None:
    posed = resolve(SearchSpace.load("kimi-k3-pp8-tp2-sglang"))
    found = explain(posed, candidate_of(posed, None, flags))
    assert (found.resolved.flow.name, found.candidate.partition) == ("slots", (11, 11, 11, 12, 12, 12, 12, 12))
    measured = found.result.measurement
    assert measured is not None
    assert measured.metrics["mean_in_flight_batches"] == pytest.approx(in_flight, rel=0.12)
    assert max(stage.busy_fraction for stage in found.stages) == pytest.approx(slowest_is_busy, rel=0.2)
    assert ("batches are in flight" in measured.limiting_reason) == (slowest_is_busy <= 0.5)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"max_num_seq": 8}, "did you mean max_num_seqs?"),
        ({"max_num_seqs": 0}, "out of range"),
        ({"VLLM_PP_LAYER_PARTITION": "1,92"}, "partitune writes it"),
    ],
)
def test_a_flag_that_means_nothing_is_refused(flags: dict[str, FlagValue], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        candidate_of(problem(), None, flags)


def test_every_stage_says_what_its_time_rests_on() -> None:
    """Kimi-K3 on B300: experts and KDA were measured there, latent attention over prompts is left to the roofline."""
    for stage in explained(None, {}).to_json()["stages"]:
        for batch, shares in stage["time_sources"].items():
            assert sum(shares.values()) == pytest.approx(1.0), batch
            assert shares["measured"] > 0.8
