from __future__ import annotations

import json
from importlib import resources

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fit_costs import Row, fit
from partitune.costs.blocks import at_most
from partitune.costs.fitted import Curve, curve, distinct_experts, fits
from partitune.hardware.gpus import GPUS, gpu

SIZES = st.floats(1.0, 1e13)


@given(SIZES, SIZES, st.floats(1.0, 4.0), st.floats(0.5, 8.0))
def test_a_curve_rises_with_both_and_never_beats_the_roofline(
    read: float, flops: float, factor: float, knee: float
) -> None:
    found = Curve(1e-6, 1e-12, 1e-14, knee)
    here = found(read, flops)
    assert here >= 1e-6 + max(read * 1e-12, flops * 1e-14) * (1 - 1e-9)
    assert found(read * factor, flops) >= here * (1 - 1e-9)
    assert found(read, flops * factor) >= here * (1 - 1e-9)


def test_distinct_experts_counts_what_drawing_gives() -> None:
    draws = np.random.default_rng(0)
    hit = np.mean([len({e for _ in range(32) for e in draws.choice(896, 16, replace=False)}) for _ in range(200)])
    assert distinct_experts(896, 16, 32) == pytest.approx(hit, rel=0.01)
    assert distinct_experts(8, 8, 1) == 8


@given(st.floats(1.0, 1e9), st.floats(1.0, 1e9))
def test_at_most_is_below_both(value: float, limit: float) -> None:
    assert 0.84 * min(value, limit) <= at_most(value, limit) <= min(value, limit) * (1 + 1e-9)


def test_the_fit_finds_constants_it_was_not_told() -> None:
    h200 = gpu("H200")
    truth = Curve(7e-6, 1 / (0.8 * h200.bandwidth_bytes_s), 1 / (0.5 * h200.bf16_flops_s), 3.0)
    shapes = [(1e7 * 4**i, 1e9 * 4**j) for i in range(5) for j in range(8)]
    rows = [Row(read, flops, 1e6 * truth(read, flops)) for read, flops in shapes]
    found = fit(rows, "bf16", h200, None)
    assert found.bandwidth == pytest.approx(0.8, rel=0.02)
    assert found.compute == pytest.approx(0.5, rel=0.02)
    assert found.fixed_us == pytest.approx(7, rel=0.05)
    assert found.median_error < 0.01


def test_fitted_constants_are_physical_and_their_errors_are_known() -> None:
    file = json.loads(resources.files("partitune.costs").joinpath("fitted_constants.json").read_text("utf-8"))
    for operation, systems in fits().items():
        for system, found in systems.items():
            assert file["operations"][operation][system]["median_error"] <= 0.21, (operation, system)
            assert found.fixed_us > 0
            assert 0 < found.compute <= 1 or not found.peak, (operation, system)
            # Skewed routing hits fewer experts than the even formula counts: their reads may look faster than memory.
            highest = 1.3 if operation.startswith("moe/") else 7.0 if system == "l40s" else 1.05
            assert 0 < found.bandwidth <= highest or not found.peak, (operation, system)


def test_every_gpu_gets_every_operation_and_extrapolation_is_visible() -> None:
    for found in GPUS.values():
        for operation in fits():
            assert curve(operation, found)[0](1e6, 1e6) > 0
    assert curve("gemm/bf16", gpu("H200"))[1].measured
    borrowed = curve("gemm/bf16", gpu("B300"))[1]
    assert (borrowed.system, borrowed.measured) == ("b200_sxm", False)
    assert curve("all_reduce/graph/8", gpu("B300"))[1].measured
