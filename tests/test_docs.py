"""What the documents say is what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import partitune
from tests.readme import README, printed, shown

TEXT = README.read_text()
BLOCKS = shown(TEXT)


def test_the_readme_shows_several_commands() -> None:
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("index", range(len(BLOCKS)), ids=[arguments for arguments, _ in BLOCKS])
def test_the_readme_shows_what_the_program_prints(index: int) -> None:
    assert printed(TEXT)[index].strip(), f"partitune {BLOCKS[index][0]} printed nothing"
    assert printed(TEXT)[index] == BLOCKS[index][1], "run `make docs`"


def test_the_two_commands_stand_at_the_top_of_the_readme() -> None:
    top = TEXT.split("\n## ")[0]
    assert "make search" in top
    assert "make test" in top


def test_every_make_target_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (README.parent / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)`", TEXT))
    assert named <= targets


def test_every_module_opens_with_its_decision() -> None:
    for path in Path(partitune.__file__).parent.rglob("*.py"):
        assert path.read_text().startswith('"""'), path
