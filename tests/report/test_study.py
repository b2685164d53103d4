"""The last page of a search."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitune.cli import main


def test_the_commonest_reason_of_what_did_not_end_ok_stands_on_the_last_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    types = "knobs.kv_cache_dtype=[auto, fp8_ds_mla]"  # packed latents, and this model has keys and values
    search = ["search", "tiny", "--pool", "local", "--quiet", "--trials", "12", "--db", str(tmp_path / "r.db")]
    assert main([*search, "--set", types]) == 0
    said = capsys.readouterr().out
    assert " infeasible (the budget" in said
    (line,) = (line for line in said.splitlines() if line.startswith("infeasible: "))
    assert "the engine refuses this: kv_cache_dtype: 'fp8_ds_mla' cannot be planned" in line
    assert main([*search, "--set", "knobs.kv_cache_dtype=[auto, fp8]", "--study", "none"]) == 0
    assert "infeasible" not in capsys.readouterr().out
