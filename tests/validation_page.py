"""docs/validation.md shows what the program prints: `make validation` runs its commands and rewrites it.

Some five minutes of CPU, which is why neither `make docs` nor a test does it.
"""

from __future__ import annotations

from pathlib import Path

from tests.readme import rewritten

PAGE = Path(__file__).parent.parent / "docs" / "validation.md"

if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
