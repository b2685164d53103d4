"""Which recordings a file holds is seen from its records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partitune.errors import SpecError
from partitune.fidelity.verification import verify_kv, verify_schedules

DATA = Path(__file__).parent.parent / "data"
VLLM, OPTIONS, SGLANG = (
    str(DATA / name)
    for name in ("schedules_vllm_0_33_0.json", "schedules_options_vllm_0_32_0.json", "schedules_sglang_0_5_23.json")
)


def test_the_recordings_of_both_engines_agree() -> None:
    found = verify_schedules([VLLM, OPTIONS, SGLANG])
    assert [(one.file, one.records) for one in found] == [(VLLM, 82), (OPTIONS, len(read(OPTIONS))), (SGLANG, 60)]
    assert [one.first_difference for one in found] == ["", "", ""]
    assert all(one.agrees for one in found)


def read(file: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(Path(file).read_text())
    return found


def test_a_disagreement_names_the_record_the_engine_and_the_turn(tmp_path: Path) -> None:
    records = read(SGLANG)[:2]
    records[1]["makespan"] = 1.0
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(records))
    (found,) = verify_schedules([str(changed)])
    assert (found.records, found.agreeing) == (2, 1)
    assert found.first_difference.startswith(f"{records[1]['name']} (sglang 0.5.23): makespan recorded 1.0, simulated")


@pytest.mark.parametrize("text", ["", "[]", "{}", "[1]", '[{"engine": 3}]', '[{"engine": "sglang"}]', "[" * 9999])
def test_what_is_not_a_recording_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_text(text)
    with pytest.raises(SpecError, match=r"some\.json: "):
        verify_schedules([str(file)])


def test_a_file_of_one_kind_is_no_file_of_the_other() -> None:
    with pytest.raises(SpecError, match=r"schedules_sglang_0_5_23\.json: 0\.model: Field required"):
        verify_kv([SGLANG])


def test_the_sizes_of_both_engines_pools_agree() -> None:
    """kv_capacity_sglang_0_5_23.json: SGLang's own sizing, driven by benchmarks/record_sglang_kv.py."""
    files = [str(DATA / name) for name in ("kv_capacity_vllm_0_33_0.json", "kv_capacity_sglang_0_5_23.json")]
    found = verify_kv(files)
    assert [(one.records, one.first_difference) for one in found] == [(30, ""), (28, "")]
