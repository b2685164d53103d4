"""How a search space is named on the command line, wherever the process that asks stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitune.spec.commands import words_of
from partitune.spec.search_space import SearchSpace


def test_a_process_whose_folder_was_removed_names_no_space_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray removes the folder of a job that still runs; the search in it ended without its last page."""
    shipped = SearchSpace.load("tiny")
    mine = SearchSpace.from_mapping({**shipped.resolved(), "name": "mine"}, source="mine.yaml")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert words_of(shipped) == ("tiny",)
    gone.rmdir()
    assert words_of(mine) is None
