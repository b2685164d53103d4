"""The batches a load turns into: counted by hand from how vLLM fills a step."""

from __future__ import annotations

import pytest

from partitune.engines.regimes import Regime
from partitune.load import typical_batches
from partitune.result import Knob
from partitune.sim.inputs import Request
from partitune.sim.workload import RandomWorkload


def requests(count: int, prompt: int, output: int) -> tuple[Request, ...]:
    return tuple(RandomWorkload(count=count, prompt_tokens=prompt, output_tokens=output).requests())


def settings(tokens: int, seqs: int = 128) -> dict[str, Knob]:
    return {"max_num_batched_tokens": tokens, "max_num_seqs": seqs}


def test_a_burst_that_fits_one_step_is_one_batch() -> None:
    """The profile study: 16 prompts of 256 tokens under a budget of 16384 travel as one batch of 4096 (report 29)."""
    (prefill, prefills), (decode, decodes) = typical_batches(requests(16, 256, 32), 16, 8, Regime.R3, settings(16384))
    assert (prefill.prefill_tokens, prefills) == (4096, 1)
    assert prefill.sampled == 16
    assert (decode.decode_tokens, decodes) == (16, 31)
    assert decode.decode_context == 16 * (256 + 16)


def test_a_smaller_budget_makes_cohorts_where_batches_overlap() -> None:
    """512 tokens are two prompts: eight steps, and eight cohorts of two that decode apart."""
    (prefill, prefills), (decode, decodes) = typical_batches(requests(16, 256, 32), 16, 8, Regime.R3, settings(512))
    assert (prefill.prefill_tokens, prefills) == (512, 8)
    assert (decode.decode_tokens, decodes) == (2, 8 * 31)


def test_in_r1_all_that_decode_are_one_batch_whatever_the_budget() -> None:
    _, (decode, decodes) = typical_batches(requests(16, 256, 32), 16, 8, Regime.R1, settings(512))
    assert (decode.decode_tokens, decodes) == (16, 31)


@pytest.mark.parametrize(("concurrency", "seqs", "outstanding"), [(4, 128, 4), (None, 8, 8), (None, 128, 16)])
def test_no_more_decode_together_than_are_admitted(concurrency: int | None, seqs: int, outstanding: int) -> None:
    load = requests(16, 256, 32)
    _, (decode, _) = typical_batches(load, concurrency, 8, Regime.R1, settings(16384, seqs))
    assert decode.decode_tokens == outstanding


def test_work_is_kept_whatever_the_flags() -> None:
    load = requests(64, 300, 50)
    for tokens in (256, 1000, 4096, 65536):
        for regime in (Regime.R1, Regime.R3):
            (prefill, prefills), (decode, decodes) = typical_batches(load, 32, 4, regime, settings(tokens))
            assert prefill.prefill_tokens * prefills == pytest.approx(64 * 300)
            assert decode.decode_tokens * decodes == pytest.approx(64 * 49)


def test_one_output_token_has_no_decode() -> None:
    assert len(typical_batches(requests(8, 100, 1), 8, 4, Regime.R3, settings(2048))) == 1
