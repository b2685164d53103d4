"""What a file and the form without one leave to the engine: the release, the flags that vary, and the layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from partitune.cli import main
from partitune.engines.registry import ENGINES
from partitune.planning.defaults import completed
from partitune.planning.resolve import resolve
from partitune.search.space import Space
from partitune.spec.overrides import from_flags, with_settings
from partitune.spec.search_space import SearchSpace

FLAGS = {"model": "qwen3-8b", "gpu": "L40S", "nodes": 1, "gpus_per_node": 4}
FILE: dict[str, Any] = {
    "name": "s",
    "model": "qwen3-8b",
    "cluster": {"nodes": 1, "gpus_per_node": 4, "gpu": "L40S"},
    "parallel": {"tp": 2, "pp": 2},
}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_without_knobs_varies_what_the_form_without_a_file_does(engine: str) -> None:
    file = completed(SearchSpace.from_mapping({**FILE, "engine": {"name": engine}}))
    form = completed(from_flags({**FLAGS, "tp": 2, "pp": 2, "engine": engine}))
    later = completed(with_settings(from_flags({**FLAGS, "tp": 2, "pp": 2}), {"engine.name": engine}))
    assert dict(file.knobs.flags) == dict(form.knobs.flags) == dict(later.knobs.flags)
    assert set(file.knobs.flags) == set(ENGINES[engine].default_knobs)
    assert file.engine.version == form.engine.version == str(ENGINES[engine].versions_read.newest)
    Space(resolve(file), file)  # the engine has every flag, and takes every value


@pytest.mark.parametrize("engine", ENGINES)
def test_knobs_that_are_written_are_all_that_varies(engine: str) -> None:
    for knobs in ({}, {"partition": {"min_layers": 2}}):
        spec = SearchSpace.from_mapping({**FILE, "engine": {"name": engine}, "knobs": knobs})
        assert dict(completed(spec).knobs.flags) == {}


def test_a_flag_that_is_fixed_elsewhere_does_not_vary() -> None:
    fixed = completed(SearchSpace.from_mapping({**FILE, "engine": {"flags": {"max_num_seqs": 100}}}))
    assert "max_num_seqs" not in fixed.knobs.flags
    usual = completed(SearchSpace.from_mapping({**FILE, "engine": {"flags": {"max_num_seqs": 64}}}))
    assert 64 in usual.knobs.flags["max_num_seqs"]


@pytest.mark.parametrize("typed", [("--engine", "sglang"), ("--set", "engine.name=sglang")])
def test_sglang_is_searched_without_a_file(
    typed: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [word for name, value in FLAGS.items() for word in ("--" + name.replace("_", "-"), str(value))]
    where = ("--pool", "local", "--quiet", "--json", "--db", str(tmp_path / "r.db"))
    assert main(["search", *model, "--tp", "2", "--pp", "2", *typed, "--trials", "9", *where]) == 0
    found = json.loads(capsys.readouterr().out)
    varied = {name for trial in found["pareto"] for name in trial["knobs"]}
    assert varied <= set(ENGINES["sglang"].default_knobs)
    assert "chunked_prefill_size" in varied
    assert found["trials"]["ok"] >= 9
    (doubt,) = found["doubts"]
    assert doubt.startswith("no times of SGLang 0.5.23 were measured")


def test_layouts_auto_needs_no_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = SearchSpace.from_mapping({**FILE, "parallel": {"layouts": "auto"}})
    assert resolve(spec).layout.name == "tp4-pp1"  # tensor ranks over the node, a stage a node
    two = SearchSpace.from_mapping(
        {**FILE, "cluster": {**FILE["cluster"], "nodes": 2}, "parallel": {"layouts": "auto"}}
    )
    assert resolve(two).layout.name == "tp4-pp2"
    listed = [{"tp": 1, "pp": 4}, {"tp": 2, "pp": 2}]
    assert resolve(SearchSpace.from_mapping({**FILE, "parallel": {"layouts": listed}})).layout.name == "tp1-pp4"
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps({"kind": "search_space", **spec.resolved()}))
    assert (
        main(["search", str(file), "--pool", "local", "--quiet", "--trials", "8", "--db", str(tmp_path / "r.db")]) == 0
    )
    assert "best output_throughput_tok_s of each layout" in capsys.readouterr().out


def test_sizes_are_all_there_or_none(capsys: pytest.CaptureFixture[str]) -> None:
    model = [word for name, value in FLAGS.items() for word in ("--" + name.replace("_", "-"), str(value))]
    assert main(["explain", *model, "--tp", "2"]) == 2
    assert "--pp: missing" in capsys.readouterr().err
    assert main(["explain", *model, "--no-advice"]) == 0


def test_where_no_layout_can_be_used_the_file_is_named_with_the_reasons() -> None:
    with pytest.raises(Exception, match=r"parallel\.layouts: no layout can be used here: .*GiB"):
        resolve(SearchSpace.from_mapping({**FILE, "model": "llama-3.1-405b", "parallel": {"layouts": "auto"}}))
