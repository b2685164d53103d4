"""What becomes of layers that a cut parts: of each kind, under each engine, in the releases in which it changed.

Every outcome was read in the wheels of the releases that are named here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from partitune.engines.registry import ENGINES
from partitune.models.architecture import Architecture, CutKind
from partitune.models.reader import load_architecture, read_architecture
from partitune.planning.resolve import resolve
from partitune.search.exact_front import solve
from partitune.search.space import Space
from partitune.spec.search_space import SearchSpace
from tests.small_models import architecture, kimi_k3

TOWER = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "deepstack_visual_indexes": [8, 16, 24]}
TEXT = {
    "model_type": "qwen3_vl_text",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}


def vision() -> Architecture:
    config = {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "text_config": TEXT}
    return read_architecture({**config, "vision_config": TOWER}, name="x", source="config.json")


MODELS: dict[CutKind, Callable[[], tuple[Architecture, tuple[int, ...]]]] = {
    CutKind.INDEX: lambda: (load_architecture("glm-5.2"), (39, 39)),
    CutKind.SHARED_KV: lambda: (architecture("ffffff", shared_kv_cuts=frozenset({3})), (3, 3)),
    CutKind.VISION: lambda: (vision(), (2, 34)),
}
READ: list[tuple[str, str, CutKind, str]] = [
    # engine, release, kind, what happens; empty: it works
    ("vllm", "0.20.2", CutKind.INDEX, ""),  # no index_topk_freq in model_executor/models/deepseek_v2.py
    ("vllm", "0.21.0", CutKind.INDEX, "wrong text without a word"),
    ("vllm", "0.26.0", CutKind.INDEX, "wrong text without a word"),
    ("vllm", "0.33.0", CutKind.INDEX, "wrong text without a word"),
    ("sglang", "0.5.13", CutKind.INDEX, "a stage begins without them"),
    ("sglang", "0.5.14", CutKind.INDEX, ""),  # pp_proxy_tensors.tensors["topk_indices"]
    ("sglang", "0.5.23", CutKind.INDEX, ""),
    ("vllm", "0.33.0", CutKind.SHARED_KV, "refuses to start"),
    ("sglang", "0.5.23", CutKind.SHARED_KV, "breaks at the first step"),
    ("vllm", "0.33.0", CutKind.VISION, "refuses to start"),
    ("sglang", "0.5.23", CutKind.VISION, "refuses to start"),
]


@pytest.mark.parametrize(("engine", "version", "kind", "outcome"), READ)
def test_what_an_engine_does_with_parted_layers(engine: str, version: str, kind: CutKind, outcome: str) -> None:
    model, partition = MODELS[kind]()
    reasons = ENGINES[engine].cut_limits(model, version).reasons(model, partition)
    assert bool(reasons) == bool(outcome)
    for reason in reasons:
        assert outcome in reason
        assert kind.meaning in reason
        assert reason.endswith("]")  # says where it was read


def test_every_kind_has_been_read_for_every_engine() -> None:
    for engine in ENGINES.values():
        assert set(engine.cut_rules) == set(CutKind), engine.name


def space(engine: str, version: str, **changes: Any) -> SearchSpace:
    return SearchSpace.from_mapping(
        {
            "name": "s",
            "model": "glm-5.2",
            "cluster": {"nodes": 2, "gpus_per_node": 8, "gpu": "B200"},
            "engine": {"name": engine, "version": version},
            "parallel": {"tp": 8, "pp": 2},
            **changes,
        }
    )


def test_sglang_runs_its_default_split_of_an_index_sharing_model() -> None:
    spec = space("sglang", "0.5.23")
    solved = solve(spec, {})
    assert solved.rows[0].partition == (39, 39)
    assert solved.rows[0].reasons == ()
    (vllm,) = (row for row in solve(space("vllm", "0.33.0"), {}).rows if "default" in row.names)
    assert any("wrong text" in reason for reason in vllm.reasons)
    first = list(Space(resolve(spec), spec).first_proposals())
    assert first[0].candidate.partition == (39, 39)


@pytest.mark.parametrize(
    ("engine", "version", "legal"),
    [("vllm", "0.33.0", False), ("sglang", "0.5.16", False), ("sglang", "0.5.17", True), ("sglang", "0.5.23", True)],
)
def test_a_stage_of_states_alone(engine: str, version: str, legal: bool) -> None:
    # SGLang 0.5.17 model_executor/pool_configurator.py: has_kv_on_another_pp_stage; 0.5.16 divides by zero there.
    model = kimi_k3()
    reasons = ENGINES[engine].cut_limits(model, version).reasons(model, (3, 13, 13, 13, 13, 13, 13, 12))
    assert (reasons == ()) == legal
