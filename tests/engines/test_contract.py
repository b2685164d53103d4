"""Every engine keeps what the rest of partitune counts on."""

from __future__ import annotations

from partitune.engines.registry import ENGINES
from tests.contracts.engine import EngineContract


class TestVllm(EngineContract):
    engine, version = ENGINES["vllm"], "0.33.0"


class TestVllmOfTheV1Runner(EngineContract):
    engine, version = ENGINES["vllm"], "0.20.0"


class TestSglang(EngineContract):
    engine, version = ENGINES["sglang"], "0.5.23"


def test_every_engine_is_held_to_it() -> None:
    held = {contract.engine.name for contract in EngineContract.__subclasses__()}
    assert held == set(ENGINES)
