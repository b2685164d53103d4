"""Default splits against values computed by the engines' own functions or given in reports."""

from __future__ import annotations

import pytest

from partitune.engines.default_splits import SPLIT_RULES, remainder_first
from partitune.engines.registry import engine
from partitune.errors import InfeasibleSpace, SpecError
from partitune.partition import parse_partition


# Run in vLLM 0.33 and 0.32 get_pp_indices.
@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (93, "11,11,12,12,12,12,12,11"),
        (61, "7,7,8,8,8,8,8,7"),
        (61, "15,15,16,15"),
        (94, "11,12,12,12,12,12,12,11"),
        (95, "12,12,12,12,12,12,12,11"),
        (63, "16,16,16,15"),
        (3, "2,1"),
        (27, "7,7,7,6"),
        (61, "5,5,5,5,6,6,6,6,6,6,5"),
    ],
)
def test_vllm(layers: int, expected: str) -> None:
    partition = parse_partition(expected)
    assert engine("vllm").default_partition(layers, len(partition), "0.33.0") == partition
    assert engine("vllm").default_partition(layers, len(partition), "0.19.1") == partition


@pytest.mark.parametrize(
    ("name", "version", "rule", "layers", "expected"),
    [
        ("vllm", "0.7.3", None, 61, (5,) * 10 + (11,)),
        ("vllm", "0.7.3", None, 93, (11,) * 7 + (16,)),
        ("vllm", "0.33.0", "remainder-last", 61, (15, 15, 15, 16)),  # PR 46217
        ("vllm", "0.33.0", "remainder-last", 94, (23, 23, 24, 24)),  # PR 46217
        ("sglang", "0.5.5.post3", None, 61, (7,) * 7 + (12,)),  # read in the wheel
        ("sglang", "0.5.6", None, 61, (7, 7, 7, 8, 8, 8, 8, 8)),  # read in the wheel
        ("sglang", "0.5.23", None, 93, (11, 11, 11, 12, 12, 12, 12, 12)),
        ("sglang", "0.5.23", None, 93, (23, 23, 23, 24)),  # field report 16
        ("vllm", "0.33.0", None, 93, (23, 23, 24, 23)),  # field report 16
        ("sglang", "0.5.23", "remainder-first", 61, (8, 8, 8, 8, 8, 7, 7, 7)),  # PR 13282
    ],
)
def test_by_version_and_rule(name: str, version: str, rule: str | None, layers: int, expected: tuple[int, ...]) -> None:
    assert engine(name).default_partition(layers, len(expected), version, rule) == expected


def test_tensorrt_llm() -> None:
    assert remainder_first(93, 8) == (12, 12, 12, 12, 12, 11, 11, 11)


def test_the_engine_would_leave_stages_empty() -> None:
    assert SPLIT_RULES["middle-stages"](5, 8) == (0, 0, 1, 1, 1, 1, 1, 0)  # vLLM does this and then crashes
    with pytest.raises(InfeasibleSpace, match="5 layers cannot be divided over 8 stages"):
        engine("vllm").default_partition(5, 8, "0.33.0")


def test_unknown_rule_and_engine() -> None:
    with pytest.raises(SpecError, match="did you mean remainder-last"):
        engine("vllm").default_partition(61, 4, "0.33.0", "remainderlast")
    with pytest.raises(SpecError, match=r"engine\.name: 'vLMM' is not a known engine, did you mean vllm"):
        engine("vLMM")
