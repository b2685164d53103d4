"""A damaged config.json is either read or refused with a SpecError; nothing else comes out."""

from __future__ import annotations

import copy
import json
import math
from importlib.resources import files
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partitune.errors import SpecError
from partitune.models.reader import read_architecture
from tests.models.test_unknown_classes import PUBLISHED

#: One shipped config a reader; those that ship none are drawn from their published sizes.
FILES = (
    "Qwen--Qwen3-8B.json",
    "zai-org--GLM-4.5-Air.json",
    "MiniMaxAI--MiniMax-M1.json",
    "MiniMaxAI--MiniMax-M3.json",
    "deepseek-ai--DeepSeek-V3.2.json",
    "deepseek-ai--DeepSeek-V4-Flash.json",
    "zai-org--GLM-5.2.json",
    "moonshotai--Kimi-K2.5.json",
    "moonshotai--Kimi-K3.json",
    "Qwen--Qwen3.5-27B.json",
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-BF16.json",
    "openai--gpt-oss-20b.json",
    "ai21labs--AI21-Jamba-1.5-Mini.json",
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct.json",
    "XiaomiMiMo--MiMo-V2-Flash.json",
    "stepfun-ai--Step-3.7-Flash.json",
    "mistralai--Mistral-Large-4-1T-A52B.json",
)
CONFIGS = {name: json.loads(files("partitune.models").joinpath("configs", name).read_text()) for name in FILES}
CONFIGS |= {name: config for name, (config, _, _) in PUBLISHED.items()}

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from([10**6, 2**24, 2**63, 10**40, -(10**40), math.nan, math.inf, -math.inf, 0.5, 64.0]),
    st.sampled_from(["", "auto", "64", "float32", "SFSF", "MEM*E-", "re:(", "x" * 500]),
    st.sampled_from([[], {}, [None], [1], [True], [[]], {"a": 1}, ["full_attention"] * 500, [0, 1] * 300, ["re:.*"]]),
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, inner in items:
        found += _places(inner, (*path, key))
    return found


PLACES = {name: _places(config) for name, config in CONFIGS.items()}


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(sorted(CONFIGS)))
    config: dict[str, Any] = copy.deepcopy(CONFIGS[name])
    for path in draw(st.lists(st.sampled_from(PLACES[name]), min_size=1, max_size=4)):
        target: Any = config
        try:
            for key in path[:-1]:
                target = target[key]
            if draw(st.booleans()) and isinstance(target, dict):
                target.pop(path[-1], None)
            else:
                target[path[-1]] = draw(ODD)
        except (KeyError, IndexError, TypeError):  # an earlier change removed the place
            continue
    return config


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damaged())
def test_damaged_configs_are_read_or_refused(config: dict[str, Any]) -> None:
    refusal = ""
    try:
        architecture = read_architecture(config, name="damaged", source="config.json")
    except SpecError as error:
        refusal = str(error)
    if refusal:
        assert refusal.startswith("config.json: ")
        assert len(refusal) < 1500
        return
    assert architecture.layers
    assert architecture.params > 0
    assert 0 < architecture.weight_bytes < math.inf
    boundaries = [boundary for cuts in architecture.bound_cuts.values() for boundary in cuts]
    assert all(0 < boundary < len(architecture.layers) for boundary in boundaries)
    assert [layer.index for layer in architecture.layers] == list(range(len(architecture.layers)))
    for layer in architecture.layers:
        assert layer.params >= 0
        assert layer.attention.kv_bytes_per_token >= 0
        assert layer.attention.shards >= 1
