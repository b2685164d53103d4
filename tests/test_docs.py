"""What the documents say is what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import partitune
from tests.readme import README, shown_and_printed

BLOCKS = shown_and_printed(README.read_text())


def test_the_readme_shows_several_commands() -> None:
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize(("arguments", "shown", "printed"), BLOCKS, ids=[block[0] for block in BLOCKS])
def test_the_readme_shows_what_the_program_prints(arguments: str, shown: str, printed: str) -> None:
    assert printed.strip(), f"partitune {arguments} printed nothing"
    assert shown == printed, "run `make docs`"


def test_the_two_commands_stand_at_the_top_of_the_readme() -> None:
    top = README.read_text().split("\n## ")[0]
    assert "make search" in top
    assert "make test" in top


def test_every_make_target_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (README.parent / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)`", README.read_text()))
    assert named <= targets


def test_every_module_opens_with_its_decision() -> None:
    for path in Path(partitune.__file__).parent.rglob("*.py"):
        assert path.read_text().startswith('"""'), path
