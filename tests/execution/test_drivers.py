"""Which driver a runner means, and what is imported for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
#: Packages that only real servers and clusters need.
WITHOUT = """
import sys
for name in ("prometheus_client", "aiohttp"):
    sys.modules[name] = None  # an import raises ImportError
from partitune.cli import main
sys.exit(main(["search", "tiny", "--pool", "local", "--trials", "2", "--db", sys.argv[1], "--quiet"]))
"""


def test_a_simulated_search_needs_nothing_that_reads_servers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path / "r.db")],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
