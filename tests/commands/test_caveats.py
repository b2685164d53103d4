"""Whatever prints a simulated figure says beside it what the figure leaves out, and what it rests on unchecked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partitune.cli import main

#: Newer than any release whose rules were read: the note is the engine's, whoever prints a figure.
NEWER = ("--set", "engine.version=9.1.0")
DOUBT = "vLLM 9.1.0 is newer than the rules known here"


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
    assert printed(capsys, *command).count(f"doubt: {DOUBT}") == 1
    answer = json.loads(printed(capsys, *command, "--json"))
    assert answer["doubts"][0].startswith(DOUBT)
    assert answer["not_modelled"] == []


@pytest.mark.parametrize("typed", ["show", "show --trial 1", "pareto"])
def test_what_a_study_found_says_what_it_leaves_out(
    typed: str, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (*typed.split(), "--db", database)
    assert printed(capsys, *command).count(f"doubt: {DOUBT}") == 1
    assert json.loads(printed(capsys, *command, "--json"))["doubts"][0].startswith(DOUBT)


def test_a_search_says_it_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "results.db")
    typed = ("search", "tiny", *NEWER, "--pool", "local", "--trials", "2", "--db", file)
    assert main([*typed]) == 0
    out, err = capsys.readouterr()
    assert f"doubt: {DOUBT}" in out
    assert f"doubt: {DOUBT}" in err
    assert json.loads(printed(capsys, *typed, "--json", "--quiet"))["doubts"][0].startswith(DOUBT)


def test_an_export_says_it_and_writes_it_into_the_file(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deploy.env"
    assert f"doubt: {DOUBT}" in printed(capsys, "export", "--db", database, "-o", str(file))
    assert f"# doubt: {DOUBT}" in file.read_text()


def test_status_says_it_in_its_object(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed(capsys, "status", "--db", database, "--json"))["doubts"][0].startswith(DOUBT)
