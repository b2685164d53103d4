"""Against SGLang's own sizing of its pool.

tests/data/kv_capacity_sglang_0_5_23.json: 28 starts of ten models put through the real 0.5.23 `KVCacheConfigurator` by
benchmarks/record_sglang_kv.py (the project's own recording of the engine).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from partitune.engines.sglang.kv_recording import KvRecord
from partitune.errors import SpecError

RECORDED = Path(__file__).parent.parent.parent / "data" / "kv_capacity_sglang_0_5_23.json"


def test_every_recorded_pool_has_the_size_of_the_engines() -> None:
    agreements = KvRecord.verify(RECORDED)
    assert [each for each in agreements if not each.agrees] == []
    records = KvRecord.read(RECORDED)
    assert len({record.model for record in records}) == 10
    assert {len(record.partition) for record in records} == {1, 2, 3, 4, 8}


@pytest.mark.parametrize(
    ("model", "change", "words"),
    [
        ("qwen3-32b", {"available_bytes_per_stage": [50 << 30]}, "max_total_num_tokens is 245760 in the engine"),
        ("qwen3-next-80b", {"flags": {"mamba_ssm_dtype": "bfloat16"}}, "max_total_num_tokens"),
        ("gpt-oss-120b", {"flags": {"disable_hybrid_swa_memory": True}}, "max_total_num_tokens"),
        ("kimi-k3", {"max_mamba_cache_size": 7}, "max_mamba_cache_size is 7 in the engine"),
        ("kimi-k3", {"max_running_requests": 2048}, "max_running_requests is 2048 in the engine and 172 here"),
        ("qwen3-32b", {"cell_bytes_per_stage": [1.0]}, "bytes of a page is"),
        ("qwen3-32b", {"available_bytes_per_stage": [1]}, "we refuse: the tightest stage has 0.00 GiB"),
    ],
)
def test_the_first_difference_is_named(model: str, change: dict[str, Any], words: str) -> None:
    record = next(one for one in KvRecord.read(RECORDED) if one.model == model)
    difference = record.model_copy(update=change).difference()
    assert difference is not None
    assert words in difference, difference


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"partition": [63]}, "0: partition: has 63 layers, qwen3-32b has 64"),
        ({"cell_bytes_per_stage": []}, "0: cell_bytes_per_stage: must have one entry a stage, 1 of them"),
        ({"model": "qwen-32"}, "0: model 'qwen-32' is not in the catalog"),
        ({"slots": 1}, "0.slots: Extra inputs"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    file = tmp_path / "recording.json"
    file.write_text(json.dumps([json.loads(RECORDED.read_text())[0] | change]))
    with pytest.raises(SpecError) as refused:
        KvRecord.read(file)
    assert words in str(refused.value)
