"""A third engine takes its folder and one line: `docs/adding-an-engine.md` was followed, and every command knows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import partitune

ROOT = Path(partitune.__file__).parent.parent
TOY = ROOT / "tests" / "toy_engine"
PROGRAM = [sys.executable, "-S", "-E", str(TOY / "program.py")]
#: The one line of the registry, and the line that it stands behind.
LINE, BEHIND = '    "toy",\n', '    "sglang",\n'
CONTRACT = """

class TestToy(EngineContract, LaunchContract):
    engine, version = ENGINES["toy"], "1.2.0"
"""
SPACE: dict[str, Any] = {
    "kind": "search_space",
    "name": "served-by-toy",
    "model": "qwen3-8b",
    "cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": "L40S"},
    "parallel": {"tp": 1, "pp": 2},
    "engine": {"name": "toy", "version": "1.2.0", "flags": {"memory_share": 0.8}},
    "workload": {"kind": "random", "requests": 24, "prompt_tokens": 16, "output_tokens": 12, "concurrency": 8},
    "knobs": {"batch_tokens": [64, 128], "running_requests": [8, 16]},
    "budget": {"trials": 3},
}
RUNNER = {
    "kind": "runner",
    "name": "toy-here",
    "driver": "toy",
    "engine_command": PROGRAM,
    "limits_s": {"stop": 3},
    "benchmark": {"tool": "toy", "command": PROGRAM, "warmup_requests": 2},
}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which the engine was added."""
    checkout = tmp_path_factory.mktemp("checkout")
    compiled = shutil.ignore_patterns("__pycache__")
    for folder in ("partitune", "search_spaces", "runners", "tests/contracts"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=compiled)
    for file in ("pyproject.toml", "tests/__init__.py", "tests/test_import_order.py"):
        shutil.copy(ROOT / file, checkout / file)
    (checkout / "tests" / "engines").mkdir()
    for name in ("__init__.py", "test_closed.py"):
        shutil.copy(ROOT / "tests" / "engines" / name, checkout / "tests" / "engines" / name)
    held = (ROOT / "tests" / "engines" / "test_contract.py").read_text()
    (checkout / "tests" / "engines" / "test_contract.py").write_text(held + CONTRACT)
    shutil.copytree(TOY / "toy", checkout / "partitune" / "engines" / "toy", ignore=compiled)
    registry = checkout / "partitune" / "engines" / "registry.py"
    text = registry.read_text()
    assert text.count(BEHIND) == 1
    registry.write_text(text.replace(BEHIND, BEHIND + LINE))
    return checkout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of somebody who serves with it."""
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
    (tmp_path / "runner.yaml").write_text(yaml.safe_dump(RUNNER))
    return tmp_path


def run(checkout: Path, cwd: Path, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """A Python process that sees the copy and nothing of this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "XDG_STATE_HOME": str(cwd / "state")}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, f"{words}:\n{done.stdout}{done.stderr}"
    return done


def sources(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*.*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files if path.suffix != ".pyc"}


def test_its_folder_and_one_line_are_all_that_was_touched(copied: Path) -> None:
    before, after = sources(ROOT / "partitune"), sources(copied / "partitune")
    assert {name.rpartition("/")[0] for name in after.keys() - before.keys()} == {"engines/toy"}
    changed = [name for name, text in before.items() if after[name] != text]
    assert changed == ["engines/registry.py"]
    lines = before["engines/registry.py"].splitlines(keepends=True)
    added = after["engines/registry.py"].splitlines(keepends=True)
    added.remove(LINE)
    assert added == lines


def test_it_keeps_the_contracts_and_the_order_of_imports(copied: Path) -> None:
    tests = ("tests/engines", "tests/test_import_order.py")
    done = run(copied, copied, "pytest", "-q", "-p", "no:cacheprovider", "-k", "not Vllm and not Sglang", *tests)
    assert "failed" not in done.stdout
    assert int(done.stdout.split(" passed")[0].split()[-1]) > 40


def test_it_checks_flags(copied: Path, project: Path) -> None:
    wrong = run(copied, project, "partitune", "explain", "space.yaml", "--set", "running_request=8", status=2)
    assert "running_request: Toy 1.2.0 has no such flag, did you mean running_requests?" in wrong.stderr
    assert wrong.stdout == ""
    wrong = run(copied, project, "partitune", "explain", "space.yaml", "--set", "memory_share=1.5", status=2)
    assert "memory_share: 1.5 is out of range, allowed is > 0 and <= 1 [Toy 1.2 program.py]" in wrong.stderr
    wrong = run(copied, project, "partitune", "explain", "space.yaml", "--set", "engine.name=toyy", status=2)
    assert "'toyy' is not a known engine, did you mean toy?; known are vllm, sglang, toy" in wrong.stderr


def test_it_plans_memory_and_schedules(copied: Path, project: Path) -> None:
    shown = json.loads(run(copied, project, "partitune", "explain", "space.yaml", "--json").stdout)
    assert (shown["outcome"], shown["regime"], shown["partition"]) == ("ok", "groups", [18, 18])
    assert shown["notes"][0] == "groups: as many groups of requests as stages, each on its way through them"
    page_bytes = 16 * 18 * 2 * 8 * 128 * 2  # tokens, layers, keys and values, KV heads, their width, 16 bits
    free = [stage["free_bytes"] // page_bytes for stage in shown["stages"]]
    assert [stage["kv_blocks"] for stage in shown["stages"]] == free
    assert shown["kv"] == {"num_blocks": min(free), "tokens": 16 * min(free)}
    # 24 requests, 8 at a time: each round reads 8 prompts of 16 tokens in one step, then decodes 11 times.
    assert (shown["metrics"]["batches"], shown["metrics"]["mean_decode_batch"]) == (36, 8)
    held_by_others = {**SPACE["cluster"], "reserved_gib": [8, 0]}
    (project / "shared.yaml").write_text(yaml.safe_dump({**SPACE, "cluster": held_by_others}))
    shared = json.loads(run(copied, project, "partitune", "explain", "shared.yaml", "--json").stdout)
    assert "; starts only with memory_share 0." in shared["stages"][0]["verdict"]


def test_it_is_searched_and_exported(copied: Path, project: Path) -> None:
    words = ("search", "space.yaml", "--pool", "local", "--trials", "3", "--quiet", "--json")
    found = json.loads(run(copied, project, "partitune", *words).stdout.splitlines()[-1])
    assert found["trials"] == {"ok": 3, "infeasible": 0, "failed": 0, "invalid": 0, "lost": 0}
    exported = run(copied, project, "partitune", "export", "served-by-toy", "-o", "deploy.env")
    assert "toy serve --config deploy.yaml" in exported.stdout
    assert "TOY_STAGE_LAYERS=" in (project / "deploy.env").read_text()
    config = yaml.safe_load((project / "deploy.yaml").read_text())
    assert (config["model"], config["stages"], config["memory-share"]) == ("Qwen/Qwen3-8B", 2, 0.8)


def test_it_is_launched_and_measured(copied: Path, project: Path) -> None:
    words = ("launch", "space.yaml", "--runner", "runner.yaml", "--partition", "20,16", "--json")
    done = run(copied, project, "partitune", *words)
    result = json.loads(done.stdout)
    assert (result["outcome"], result["reason"], result["partition"]) == ("ok", "", [20, 16])
    measured = result["measurement"]
    assert measured["simulated"] is False
    assert measured["metrics"]["output_throughput_tok_s"] > 0
    assert (measured["regime"], measured["kv_blocks"]) == ("groups", 4096)
