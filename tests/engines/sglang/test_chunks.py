"""SGLang 0.5.23's chunk law, by hand from managers/scheduler_components/dynamic_chunk_sizer.py predict_next_chunk_size.

The recordings dynamic-chunks and dynamic-chunks-page hold it to the engine's own predictor.
"""

from __future__ import annotations

import pytest

from partitune.costs.cost_model import Batch
from partitune.engines.recordings import LinearCosts
from partitune.engines.sglang.scheduler.chunks import ChunkLaw


@pytest.mark.parametrize(
    ("history", "page", "most", "wanted"),
    [
        # a = 1e-6, b = 1e-3, base 512: T = 0.774144; L = 512: B = 2.024e-3, x* = 330.31, x = 375.7 -> 320 (64s)
        (512, 1, 16384, 320),
        (512, 128, 16384, 256),
        (100_000, 1, 16384, 128),  # never below base // 4
        (512, 1, 200, 192),  # max_prefill_tokens
        (512, 1, 60, None),
    ],
)
def test_chunk_law(history: int, page: int, most: int, wanted: int | None) -> None:
    law = ChunkLaw(1e-6, 1e-3, smooth=0.75)
    assert law.next_chunk(history, 512, page, 1 << 20, most) == wanted


def test_chunk_law_keeps_a_hundred_tokens_of_the_context() -> None:
    assert ChunkLaw(1e-6, 1e-3).next_chunk(900, 512, 1, 1200, 16384) == 192  # 1200 - 900 - 100 = 200


def test_profiled_law_is_the_parabola_of_stage_0() -> None:
    class Attention(LinearCosts):
        def compute_s(self, batch: Batch) -> list[float]:
            tokens = batch.prefill_tokens
            return [2e-8 * tokens**2 + 3e-5 * tokens + 0.5, 99.0]

    law = ChunkLaw.profiled(Attention((1.0, 1.0), 0.0, 0.0), base=4096, longest=100_000)
    assert law is not None
    assert (law.a, law.b) == pytest.approx((2e-8, 3e-5), rel=1e-6)
    assert (
        ChunkLaw.profiled(LinearCosts((1.0, 1.0), 1.0, 0.0), base=4096, longest=100_000) is None
    )  # flat: the engine turns it off
    assert ChunkLaw.profiled(Attention((1.0, 1.0), 0.0, 0.0), base=4096, longest=6) is None  # too few samples
