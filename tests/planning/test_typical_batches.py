"""The batches a load turns into: counted by hand from how vLLM fills a step and SGLang a slot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.registry import engine
from partitune.engines.scheduling import Flow
from partitune.hardware.parallelism import Layout
from partitune.planning.workload_mix import Load
from partitune.simulation.request import SharedPrefix
from tests.builders import burst
from tests.small_models import H200, architecture


def load(count: int, prompt: int, output: int, concurrency: int | None) -> Load:
    return Load(tuple(burst(count, prompt, output)), concurrency)


def vllm(tokens: int, seqs: int = 128, stages: int = 8, *, merges: bool = False, **more: FlagValue) -> Flow:
    """A start of vLLM: the V1 runner of 0.30 (async-v1) merges all that decode, later ones (async-v2) do not."""
    flags: dict[str, FlagValue] = {"max_num_batched_tokens": tokens, "max_num_seqs": seqs, **more}
    version, runner = ("0.30.0", "v1") if merges else ("0.33.0", "auto")
    start = Deployment(version, architecture("f" * 16), layout=Layout(pp=stages), gpu=H200, flags=flags, runner=runner)
    return engine("vllm").flow(start)


def sglang(**flags: FlagValue) -> Flow:
    return engine("sglang").flow(
        Deployment("0.5.23", architecture("f" * 16), layout=Layout(pp=8), gpu=H200, flags=flags)
    )


def test_a_burst_that_fits_one_step_is_one_batch() -> None:
    """The profile study: 16 prompts of 256 tokens under a budget of 16384 travel as one batch of 4096 (report 29)."""
    (prefill, prefills), (decode, decodes) = load(16, 256, 32, 16).typical_batches(vllm(16384))
    assert (prefill.prefill_tokens, prefills) == (4096, 1)
    assert prefill.sampled == 16
    assert (decode.decode_tokens, decodes) == (16, 31)
    assert decode.decode_context == 16 * (256 + 16)


def test_a_smaller_budget_makes_cohorts_where_batches_overlap() -> None:
    """512 tokens are two prompts: eight steps, and eight cohorts of two that decode apart."""
    (prefill, prefills), (decode, decodes) = load(16, 256, 32, 16).typical_batches(vllm(512))
    assert (prefill.prefill_tokens, prefills) == (512, 8)
    assert (decode.decode_tokens, decodes) == (2, 8 * 31)


def test_in_r1_all_that_decode_are_one_batch_whatever_the_budget() -> None:
    _, (decode, decodes) = load(16, 256, 32, 16).typical_batches(vllm(512, merges=True))
    assert (decode.decode_tokens, decodes) == (16, 31)


@pytest.mark.parametrize(("concurrency", "seqs", "outstanding"), [(4, 128, 4), (None, 8, 8), (None, 128, 16)])
def test_no_more_decode_together_than_are_admitted(concurrency: int | None, seqs: int, outstanding: int) -> None:
    _, (decode, _) = load(16, 256, 32, concurrency).typical_batches(vllm(16384, seqs, merges=True))
    assert decode.decode_tokens == outstanding


def test_work_is_kept_whatever_the_flags() -> None:
    many = load(64, 300, 50, 32)
    for tokens in (256, 1000, 4096, 65536):
        for flow in (vllm(tokens, stages=4, merges=True), vllm(tokens, stages=4), sglang(chunked_prefill_size=tokens)):
            (prefill, prefills), (decode, decodes) = many.typical_batches(flow)
            assert prefill.prefill_tokens * prefills == pytest.approx(64 * 300)
            assert decode.decode_tokens * decodes == pytest.approx(64 * 49)


def test_one_output_token_has_no_decode() -> None:
    assert len(load(8, 100, 1, 8).typical_batches(vllm(2048))) == 1


@pytest.mark.parametrize(
    ("flags", "together"),
    [
        ({}, 16),  # 2048 running requests or more over 8 stages: no limit for a burst of 16
        ({"max_running_requests": 32}, 4),
        ({"pp_max_micro_batch_size": 2}, 2),
        ({"pp_max_micro_batch_size": 1}, 2),  # eight slots and no more
        ({"pp_max_micro_batch_size": 2, "chunked_prefill_size": 256}, 2),
        ({"chunked_prefill_size": 1024}, 4),  # a chunk fills a slot, the next one goes to the next slot
        ({"chunked_prefill_size": -1}, 16),
    ],
)
def test_a_slot_of_sglang_takes_so_many(flags: dict[str, FlagValue], together: int) -> None:
    _, (decode, decodes) = load(16, 256, 32, 16).typical_batches(sglang(**flags))
    assert (decode.decode_tokens, decodes) == (together, 16 * 31 / together)


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_what_prompts_share_is_computed_once_by_an_engine_that_caches_it(name: str, caches: bool) -> None:
    """16 prompts of 256 under one system prompt of 240: 240 + 16 x 16 tokens, each of a prompt's own behind 240."""
    flow = vllm(16384, enable_prefix_caching=caches) if name == "vllm" else sglang(disable_radix_cache=not caches)
    shared = replace(
        load(16, 256, 32, 16),
        requests=tuple(replace(each, prefix=(SharedPrefix("s", 240),)) for each in burst(16, 256, 32)),
    )
    (prefill, prefills), *_ = shared.typical_batches(flow)
    assert prefill.prefill_tokens * prefills == (240 + 16 * 16 if caches else 16 * 256)
    mean = 256 - (31 - 1) / 2 if caches else 257 / 2
    assert prefill.prefill_pairs == pytest.approx(prefill.prefill_tokens * mean)
