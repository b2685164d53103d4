"""Items 14 and 16: what a search space states of a model's config reaches the plan, and is stored."""

from __future__ import annotations

from typing import Any

import pytest

from partitune.errors import SpecError
from partitune.planning.resolve import resolve
from partitune.spec.search_space import SearchSpace


def _space(**more: Any) -> SearchSpace:
    given = {"cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": "H100"}, "parallel": {"tp": 1, "pp": 2}}
    return SearchSpace.from_mapping({"name": "stated", "model": "llama-8b", **given, **more})


def test_16_a_stated_key_reaches_the_plan_and_is_stored() -> None:
    space = _space(config={"weight_bits": 4.5, "sliding_window": None})
    again = SearchSpace.from_mapping(space.resolved())
    assert again.config == {"weight_bits": 4.5, "sliding_window": None}
    assert resolve(again).architecture == resolve(space).architecture
    assert resolve(space).architecture.weight_bytes < 0.5 * resolve(_space()).architecture.weight_bytes
    assert "config" not in _space().resolved()  # a study from before the key is the same study


def test_16_a_stated_key_that_is_wrong_is_refused_at_the_model() -> None:
    with pytest.raises(SpecError, match=r"weight_bits: 40 given, allowed is a number from 1 to 16"):
        resolve(_space(config={"weight_bits": 40}))
    with pytest.raises(SpecError, match=r"config: found .*; allowed: a mapping of keys"):
        _space(config=[1])
