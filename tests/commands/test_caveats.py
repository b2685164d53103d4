"""Whatever prints a simulated figure says beside it what the figure leaves out, and what it rests on unchecked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from partitune.cli import main
from partitune.spec.search_space import SearchSpace

#: Newer than any release whose rules were read: the note is the engine's, whoever prints a figure.
NEWER = ("--set", "engine.version=9.1.0", "--set", "attention_backend=FLASHINFER")
DOUBT = "vLLM 9.1.0 is newer than the rules known here"
LEFT_OUT = "not modelled: attention_backend: kernels are those of the tables"


def printed(capsys: pytest.CaptureFixture[str], *typed: str) -> str:
    assert main(list(typed)) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = str(tmp_path_factory.mktemp("caveats") / "results.db")
    typed = ["search", "tiny", *NEWER, "--pool", "local", "--quiet", "--trials", "4", "--db", file]
    assert main(typed) == 0
    return file


@pytest.mark.parametrize("typed", ["explain tiny --no-advice", "solve tiny", "layouts tiny"])
def test_what_is_worked_out_now_says_what_it_leaves_out(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = (*typed.split(), *NEWER)
    shown = printed(capsys, *command)
    assert (shown.count(f"doubt: {DOUBT}"), shown.count(LEFT_OUT)) == (1, 1)
    answer = json.loads(printed(capsys, *command, "--json"))
    assert answer["doubts"][0].startswith(DOUBT)
    assert [entry["flag"] for entry in answer["not_modelled"]] == ["attention_backend"]


@pytest.mark.parametrize("typed", ["show", "show --trial 1", "pareto"])
def test_what_a_study_found_says_what_it_leaves_out(
    typed: str, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (*typed.split(), "--db", database)
    shown = printed(capsys, *command)
    assert (shown.count(f"doubt: {DOUBT}"), shown.count(LEFT_OUT)) == (1, 1)
    answer = json.loads(printed(capsys, *command, "--json"))
    assert answer["doubts"][0].startswith(DOUBT)
    assert answer["not_modelled"][0]["flag"] == "attention_backend"


def test_a_search_says_it_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "results.db")
    typed = ("search", "tiny", *NEWER, "--pool", "local", "--trials", "2", "--db", file)
    assert main([*typed]) == 0
    out, err = capsys.readouterr()
    assert f"doubt: {DOUBT}" in out
    assert f"doubt: {DOUBT}" in err
    assert LEFT_OUT in out
    assert LEFT_OUT in err
    assert json.loads(printed(capsys, *typed, "--json", "--quiet"))["doubts"][0].startswith(DOUBT)


def test_an_export_says_it_and_writes_it_into_the_file(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deploy.env"
    assert f"doubt: {DOUBT}" in printed(capsys, "export", "--db", database, "-o", str(file))
    assert f"# doubt: {DOUBT}" in file.read_text()
    assert f"# {LEFT_OUT}" in file.read_text()


def test_status_says_it(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not modelled: attention_backend" in printed(capsys, "status", "--db", database)
    assert json.loads(printed(capsys, "status", "--db", database, "--json"))["doubts"][0].startswith(DOUBT)


def test_a_knob_whose_values_tie_is_refused_where_nothing_is_launched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = SearchSpace.load("tiny").resolved()
    file, where = tmp_path / "s.yaml", ("--pool", "local", "--quiet", "--db", str(tmp_path / "r.db"))
    file.write_text(yaml.safe_dump({**plain, "knobs": {"attention_backend": ["auto", "FLASHINFER"]}}))
    assert main(["search", str(file), *where]) == 2
    assert "s.yaml:" in (said := capsys.readouterr().err)
    assert (
        "knobs.attention_backend: the simulator cannot tell its values apart (kernels are those of the tables" in said
    )
    assert "allowed: one value under engine.flags.attention_backend" in said
    assert not (tmp_path / "r.db").exists()
    file.write_text(yaml.safe_dump({**plain, "knobs": {"attention_backend": ["auto"], "max_num_seqs": [16, 32]}}))
    assert main(["search", str(file), "--trials", "2", *where]) == 0
