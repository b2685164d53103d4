"""Files that partitune makes: its user's alone whatever the umask, shared where `--mode` says so, kept as they were."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from partitune.cli import main
from partitune.spec.own_file import mode_of, own_file
from tests.commands.test_export import SPACE


@pytest.fixture(params=[0o000, 0o022, 0o077], ids="{:03o}".format)
def here(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, under a umask."""
    monkeypatch.chdir(tmp_path)
    before = os.umask(request.param)
    (tmp_path / "toy.yaml").write_text(SPACE)
    yield tmp_path
    os.umask(before)


def search(*words: str) -> None:
    assert main(["search", "./toy.yaml", "--pool", "local", "--quiet", *words]) == 0


def modes(folder: Path) -> dict[str, str]:
    made = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.name != "toy.yaml"}
    return {name: f"{mode_of(path):o}" for name, path in made.items()}


def test_what_is_new_is_its_users_alone(here: Path) -> None:
    search()
    assert main(["export", "-o", "deploy.env"]) == 0
    assert main(["explain", "./toy.yaml", "--trace", "trace.json"]) == 0
    assert modes(here) == {
        "results.db": "600", "results.db.lock": "600", "results.db.logs": "700", "results.db.logs/toy.jsonl": "600",
        "deploy.env": "600", "deploy.yaml": "600", "trace.json": "600",
    }  # fmt: skip


def test_it_is_shared_where_that_is_asked_for(here: Path) -> None:
    search("--mode", "640")
    assert main(["export", "-o", "deploy.env", "--mode", "644"]) == 0
    assert modes(here) == {
        "results.db": "640", "results.db.lock": "640", "results.db.logs": "750", "results.db.logs/toy.jsonl": "640",
        "deploy.env": "644", "deploy.yaml": "644",
    }  # fmt: skip


def test_what_is_there_keeps_its_mode_and_a_log_has_that_of_its_database(here: Path) -> None:
    own_file(here / "results.db", 0o664)
    search()
    assert main(["export", "-o", "deploy.env"]) == 0
    (here / "deploy.env").chmod(0o604)
    assert main(["export", "-o", "deploy.env", "--mode", "640"]) == 0
    assert modes(here)["deploy.env"] == "604"
    assert modes(here)["results.db"] == modes(here)["results.db.logs/toy.jsonl"] == "664"
    assert modes(here)["results.db.logs"] == "775"


def test_the_files_beside_an_open_database_are_no_wider(here: Path) -> None:
    from partitune.store import Store

    with Store.open("results.db"):
        assert set(modes(here)) >= {"results.db", "results.db-wal", "results.db-shm"}
        assert set(modes(here).values()) == {"600"}


@pytest.mark.parametrize("mode", ["0", "640x", "777", "200", "9", ""])
def test_a_mode_that_is_none_is_refused(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        assert main(["export", "-o", "deploy.env", "--mode", mode]) == 2
    assert f"argument --mode: found {mode!r}; allowed: 600 to 666" in capsys.readouterr().err
