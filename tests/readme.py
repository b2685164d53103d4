"""The README shows what the program prints: `make docs` rewrites it, a test compares.

A block to keep true is preceded by `<!-- runs: partitune … -->`; everything in the fence below it is that command's
stdout, run in an empty folder.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
BLOCK = re.compile(r"(<!-- runs: partitune (?P<arguments>[^\n]*) -->\n```[a-z]*\n)(?P<shown>.*?)(```\n)", re.DOTALL)


def shown_and_printed(text: str) -> list[tuple[str, str, str]]:
    """Arguments, what the README shows, what the program prints now; in one folder, in order."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for block in BLOCK.finditer(text):
            command = [sys.executable, "-m", "partitune", *shlex.split(block["arguments"])]
            environment = {**os.environ, "PYTHONPATH": str(README.parent), "COLUMNS": "100"}
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
            printed = done.stdout.replace(str(README.parent) + "/", "")
            found.append(
                (block["arguments"], block["shown"], "\n".join(line.rstrip() for line in printed.splitlines()) + "\n")
            )
    return found


def rewritten(text: str) -> str:
    """The README with every block as the program prints it."""
    printed = iter(shown_and_printed(text))
    return BLOCK.sub(lambda block: block[1] + next(printed)[2] + block[4], text)


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text()))
