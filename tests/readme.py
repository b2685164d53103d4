"""The README shows what the program prints: `make docs` rewrites it, a test compares.

A block to keep true is preceded by `<!-- runs: partitune … -->`; everything in the fence below it is that command's
stdout, run in a folder with nothing but the tests' data in it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests import flag_reference, shipped_spaces, yaml_reference

README = Path(__file__).parent.parent / "README.md"
BLOCK = re.compile(r"(<!-- runs: partitune (?P<arguments>[^\n]*) -->\n```[a-z]*\n)(?P<shown>.*?)(```\n)", re.DOTALL)


def shown(text: str) -> list[tuple[str, str]]:
    """Arguments of every command in the README, and what it shows for them."""
    return [(block["arguments"], block["shown"]) for block in BLOCK.finditer(text)]


@cache
def printed(text: str) -> list[str]:
    """What the program prints now for every command; run in one folder, in order."""
    outputs = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tests").symlink_to(README.parent / "tests")
        for arguments, _ in shown(text):
            command = [sys.executable, "-m", "partitune", *_expanded(arguments)]
            environment = {**os.environ, "PYTHONPATH": str(README.parent), "COLUMNS": "100"}
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
            output = done.stdout.replace(str(README.parent) + "/", "")
            outputs.append("\n".join(line.rstrip() for line in output.splitlines()) + "\n")
    return outputs


def _expanded(arguments: str) -> list[str]:
    """Words, as a shell in the project's folder would hand them over."""
    words = []
    for word in shlex.split(arguments):
        found = sorted(README.parent.glob(word)) if "*" in word else []
        words += [str(path.relative_to(README.parent)) for path in found] or [word]
    return words


def rewritten(text: str) -> str:
    """The README with every block as the program prints it."""
    outputs = iter(printed(text))
    return BLOCK.sub(lambda block: block[1] + next(outputs) + block[4], text)


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text()))
    yaml_reference.write()
    flag_reference.write()
    shipped_spaces.write()
