"""Whatever shows one deployment says what it is held against: the default at its flags, then the engine's default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import partitune
from partitune.cli import main

AGAINST_DEFAULT = "against the engine's default 18,18 at its starting flags"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = str(tmp_path_factory.mktemp("compared") / "results.db")
    assert main(["search", "tiny", "--pool", "local", "--quiet", "--trials", "8", "--db", file]) == 0
    return file


def others(database: str, capsys: pytest.CaptureFixture[str]) -> list[int]:
    """Trials that ended ok and are neither the default nor the best."""
    assert main(["show", "--json", "--db", database]) == 0
    best = json.loads(capsys.readouterr().out)["best"]["trial"]
    rows = partitune.load_study("tiny", database)
    return [row["trial"] for row in rows if row["outcome"] == "ok" and row["trial"] not in (0, best)]


def test_every_trial_that_is_shown_or_exported_is_held_against_the_default(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in others(database, capsys):
        assert main(["show", "--trial", str(number), "--db", database]) == 0
        assert AGAINST_DEFAULT in capsys.readouterr().out
        file = tmp_path / f"{number}.env"
        assert main(["export", "--trial", str(number), "--db", database, "-o", str(file)]) == 0
        assert AGAINST_DEFAULT in capsys.readouterr().out
        assert f"# {AGAINST_DEFAULT}" in file.read_text()
    assert main(["show", "--trial", "0", "--db", database]) == 0
    assert "against" not in capsys.readouterr().out


def test_python_has_what_the_command_has(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ("--partition", "20,16", "--set", "max_num_batched_tokens=512", "--no-advice")
    assert main(["explain", "tiny", *typed, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    space = partitune.load_search_space("tiny")
    flags = {"max_num_batched_tokens": 512}
    explained = partitune.explain(space, [20, 16], flags, advice_seconds=0.0)
    assert json.loads(json.dumps(explained.to_json())) == printed
    assert printed["same_flags"]["partition"] == [18, 18]
    assert printed["same_flags"]["knobs"] == flags
    assert printed["default"]["knobs"] == {}
