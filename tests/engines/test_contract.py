"""Every engine keeps what the rest of partitune counts on."""

from __future__ import annotations

from partitune.engines.registry import ENGINES
from tests.contracts.engine import EngineContract
from tests.contracts.launch import LaunchContract


class TestVllm(EngineContract, LaunchContract):
    engine, version = ENGINES["vllm"], "0.33.0"


class TestVllmOfTheV1Runner(EngineContract):
    engine, version = ENGINES["vllm"], "0.20.0"
    later_models = frozenset({"kimi-k3"})  # 0.27.0


class TestSglang(EngineContract, LaunchContract):
    engine, version = ENGINES["sglang"], "0.5.23"


def test_every_engine_is_held_to_it() -> None:
    for contract in (EngineContract, LaunchContract):
        assert {held.engine.name for held in contract.__subclasses__()} == set(ENGINES)
