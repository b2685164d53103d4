"""A real vLLM on two cores of this machine: what partitune asked for is what ran, and nothing of it stays.

Expected figures come from outside: the size of the KV cache follows from the longest stage (in float32 a block of 128
tokens takes 262,144 bytes a layer of this model), and processes are counted by the kernel, not by partitune.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from partitune.execution.processes.node import LocalNodes

pytestmark = pytest.mark.engine
HERE = Path(__file__).parent
ENGINE = HERE.parent.parent / ".venv-engine"
SPACE = HERE / "moe16-pp2.yaml"
PARTITUNE = (sys.executable, "-m", "partitune")
TRIALS, ZONE = 5, 0.01
_KV_BYTES, _PAGE = 1 << 30, 2 * 128 * 4 * 64 * 4  # keys and values, tokens, heads, width, float32


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in an empty folder, the engine on the path, and demand that nothing is left."""
    state = tmp_path / "state"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{ENGINE / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")
    yield state
    assert not engines(state)
    assert list(state.glob("partitune/*/started/*")) == [], "the ledger names something that is not proved to be gone"


def engines(state: Path) -> dict[psutil.Process, str]:
    """Every process that was started below `state`, and what it calls itself."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(state):
                found[process] = process.name()
    return found


def partitune(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the object on stdout and what was said on stderr."""
    done = subprocess.run([*PARTITUNE, *arguments, "--json"], capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def kv_blocks(partition: list[int]) -> int:
    """What vLLM allocates: the stage with the most layers has room for the fewest blocks."""
    return min(_KV_BYTES // (layers * _PAGE) for layers in partition)


def test_a_search_on_real_servers(state: Path) -> None:
    code, found, said = partitune("search", str(SPACE), "--runner", "vllm-cpu", "--db", "results.db")
    assert code == 0, said
    assert found["trials"] == {**dict.fromkeys(found["trials"], 0), "ok": TRIALS}
    tried = [partitune("show", "--trial", str(number), "--db", "results.db")[1] for number in range(TRIALS)]
    assert {tuple(trial["partition"]) for trial in tried} >= {(8, 8), (7, 9), (6, 10), (10, 6)}
    for trial in tried:
        measured = trial["measurement"]
        assert not measured["simulated"]
        assert measured["regime"] == "sync-v1"
        assert measured["kv_blocks"] == kv_blocks(trial["partition"])
    final, gain = found["final"], found["final"]["gains"]["output_throughput_tok_s"]
    assert final["over"]
    assert gain["pairs"] == final["pairs"]
    is_better = gain["low"] > 0 and gain["gain"] > ZONE
    assert found["default"]["partition"] == [8, 8]
    assert (found["best"]["trial"] == found["default"]["trial"]) is not is_better
    assert gain["high"] > 0, "the best of the finalists is worse than the default"
    words = "better by" if is_better else "no significant difference: keep the default"
    assert words in found["verdict"]
    subprocess.run([*PARTITUNE, "show", "--db", "results.db"], check=True)  # the table, for whoever reads the log


def test_a_partition_that_is_not_the_one_asked_for_is_not_measured(state: Path) -> None:
    stale = 'engine_command: [env, "VLLM_PP_LAYER_PARTITION=9,7", vllm]'
    runner = (HERE.parent.parent / "runners" / "vllm-cpu.yaml").read_text()
    Path("stale.yaml").write_text(f"{runner}\n{stale}\n")
    code, found, said = partitune("launch", str(SPACE), "--runner", "stale.yaml", "--partition", "7,9")
    assert code == 1, said
    assert found["outcome"] == "failed"
    assert found["reason"].startswith("the engine does not run what was asked: the partition is 9,7, asked for was 7,9")


def test_a_kv_cache_that_is_too_small_is_graded(state: Path) -> None:
    small = 2 * 9 * _PAGE  # two blocks, 256 tokens
    code, found, _ = partitune(
        "launch", str(SPACE), "--runner", "vllm-cpu", "--partition", "7,9",
        "--set", f"engine.flags.kv_cache_memory_bytes={small}",
    )  # fmt: skip
    assert code == 1
    assert found["outcome"] == "infeasible"
    assert "max seq len (1024)" in found["reason"]


def test_nothing_is_left_when_partitune_is_killed(state: Path) -> None:
    killed = subprocess.Popen([*PARTITUNE, "launch", str(SPACE), "--runner", "vllm-cpu", "--json"])
    try:
        while sum("Worker" in name for name in engines(state).values()) < 2:  # until both stages run
            assert killed.poll() is None
            time.sleep(0.2)
    finally:
        killed.kill()
        killed.wait()
    _, alive = psutil.wait_procs(engines(state), timeout=60)
    assert not alive
    with LocalNodes().nodes(1) as (node,):  # whoever measures here next has the record of it cleaned up
        node.clean()
