"""What every shipped space says, and what follows from its first advice, as docs/shipped-spaces.md has it.

Decision: the page holds only lines that compare, advise or leave something out, as the program prints them, so that a
change of any such sentence shows in a diff. `make docs` writes it and a test compares.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

from partitune.cli import main
from partitune.spec.catalog import Kind, list_catalog

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "shipped-spaces.md"
#: How a line that is kept begins.
_KEPT = ("limit: ", "distance to the limit", "most is lost to", "advice", "  ", "not modelled:", "doubt:", "against ")
_METRIC = "output_throughput_tok_s"


def names() -> list[str]:
    """The search spaces that ship."""
    return sorted(entry.name for entry in list_catalog(Kind.SEARCH_SPACE, project=ROOT))


def explained(*typed: str) -> list[str]:
    """What `partitune explain` prints."""
    with redirect_stdout(io.StringIO()) as out:
        main(["explain", *typed])
    return out.getvalue().replace(str(ROOT) + "/", "").splitlines()


def lines_of(name: str) -> Iterator[str]:
    """The kept lines of one space, then those of the comparison that its first advice leads to."""
    shown = explained(name, "--advice-seconds", "600")  # all changes, however slow the machine is
    yield f"$ partitune explain {name}"
    yield from (line for line in shown if line.startswith(_KEPT))
    command = next((line.strip() for line in shown if line.strip().startswith("partitune explain")), "")
    if not command:
        return
    yield f"$ {command}"
    below = explained(*shlex.split(command)[2:], "--no-advice")
    for index, line in enumerate(below):
        if line.startswith("against "):
            yield line
            yield next(row for row in below[index:] if row.startswith(_METRIC))
        elif re.match(rf"{_METRIC}: flags|not modelled:|doubt:", line):
            yield line


def page() -> str:
    """The page."""
    text = (
        "# What the shipped search spaces say\n\nEverything is simulated. Lines of `explain`, as it prints them now; "
    )
    text += "[how to read them](reading-explain.md).\n"
    for name in names():
        text += f"\n## {name}\n\n```\n" + "\n".join(lines_of(name)) + "\n```\n"
    return text + "\nMade by `make docs`; a test holds this page to what the program prints.\n"


def write() -> None:
    """Write the page."""
    PAGE.write_text(page())
