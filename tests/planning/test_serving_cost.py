"""Dollars and kilowatt-hours a million tokens."""

from __future__ import annotations

import pytest

from partitune.planning.serving_cost import Tariff
from partitune.spec.objectives import COST, ENERGY


def test_a_million_tokens_of_eight_gpus() -> None:
    # 8 GPUs at 1,000 tokens/s need 1,000 s for a million: 8000/3600 GPU-hours; at 3 $ and 0.7 kW each.
    found = Tariff(gpu_hour_usd=3.0, gpu_power_w=700.0).metrics(1000.0, gpus=8)
    assert found == {COST: pytest.approx(6.6667, abs=1e-4), ENERGY: pytest.approx(1.5556, abs=1e-4)}


def test_what_is_not_given_is_not_guessed() -> None:
    assert Tariff().metrics(1000.0, gpus=8) == {}
    assert list(Tariff(gpu_hour_usd=3.0).metrics(1000.0, gpus=8)) == [COST]
    assert Tariff(gpu_hour_usd=3.0).metrics(0.0, gpus=8) == {}
