"""Which driver a runner means, and what is imported for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from partitune.errors import SpecError
from partitune.execution.choice import check_runner
from partitune.spec.catalog import YamlText
from partitune.spec.runner import Runner

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


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            "driver: vlm",
            "driver: found the text 'vlm', did you mean vllm?; allowed: simulator, vllm, sglang, command, or FILE.py:",
        ),
        (
            "driver: sglang\nbenchmark: {tool: ab}",
            "benchmark.tool: found the text 'ab'; allowed: vllm (vllm bench serve), sglang (sglang.benchmark.serving)",
        ),
        (
            "driver: sglang\nlayer_report: false",
            "layer_report: found beside driver sglang, which does not use it; allowed with: vllm, site",
        ),
    ],
)
def test_a_name_that_is_no_engines_is_refused_with_its_line(keys: str, message: str) -> None:
    text = f"kind: runner\nname: here\n{keys}\n"
    line = text.splitlines().index(keys.splitlines()[-1]) + 1
    with pytest.raises(SpecError) as caught:
        check_runner(Runner.from_yaml(YamlText(text.encode(), "r.yaml", None)))
    assert str(caught.value).startswith(f"r.yaml:{line}: {message}")
