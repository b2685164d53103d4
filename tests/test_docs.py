"""What the documents say is what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import partitune
from partitune.candidate import Origin
from partitune.spec.catalog import Kind
from tests import shipped_spaces, yaml_reference
from tests.readme import README, printed, shown
from tests.test_import_order import ROOMS

TEXT = README.read_text()
BLOCKS = shown(TEXT)
ROOT = README.parent
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


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


@pytest.mark.parametrize("kind", yaml_reference.PAGES)
def test_every_key_of_a_file_has_its_row(kind: Kind) -> None:
    assert yaml_reference.PAGES[kind].read_text() == yaml_reference.page(kind), "run `make docs`"


def test_the_page_of_the_shipped_spaces_has_the_sentences_that_are_printed_now() -> None:
    assert shipped_spaces.PAGE.read_text() == shipped_spaces.page(), "run `make docs`"


def test_every_key_says_what_is_allowed() -> None:
    for kind in yaml_reference.PAGES:
        schema = yaml_reference.FILES[kind].json_schema()
        silent = [path for path, allowed, _ in yaml_reference.rows(schema, schema) if not allowed]
        assert [path for path in silent if not path.endswith(".kind")] == []


def test_the_architecture_has_the_rooms_of_the_import_order() -> None:
    table = re.findall(r"^\| `([a-z]+)` \| ", ARCHITECTURE.split("\n## ")[1], re.MULTILINE)
    assert [*table, "__main__"] == list(ROOMS)


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.name)
def test_every_file_a_document_names_exists(page: Path) -> None:
    """Links, and paths in code spans; names in capitals stand for something the reader chooses."""
    text = page.read_text()
    links = re.findall(r"\]\(([^)#:]+)\)", re.sub("`[^`]*`", "", text))
    missing = [link for link in links if not (page.parent / link).exists()]
    roots = {"partitune": ROOT / "partitune", **dict.fromkeys(("tests", "benchmarks", "docs"), ROOT)}
    for span in re.findall(r"`(?:partitune/)?([\w./*-]+)`", text):
        room = span.split("/")[0]
        base = roots.get(room, ROOT / "partitune" if room in ROOMS else None)
        if "/" in span and base is not None and not re.search("[A-Z]{3}", span) and not list(base.glob(span)):
            missing.append(span)
    assert missing == []


def test_the_table_of_origins_has_every_word() -> None:
    section = ARCHITECTURE.split("\n## Origins")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [*Origin]
