"""`--set` and its kin over a file: a key found wrong later is looked for where a person wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitune.cli import main

FILE = """kind: search_space
name: s
model: kimi-k3
cluster: {nodes: 1, gpus_per_node: 2, gpu: RTX-4090}
parallel:
  layouts: auto
"""
SMALL = ("--set", "model=qwen3-8b")  # which fits


@pytest.mark.parametrize(
    ("typed", "place"),
    [
        (
            ("--trials", "3"),
            "s.yaml:6: parallel.layouts: no layout can be used here: not tp1-pp1-dp2, tp1-pp1-dp2-ep2: ",
        ),
        (("--seed", "3", "--set", "model=llama-3.1-405b"), "s.yaml:6: parallel.layouts: no layout can be used here"),
        ((*SMALL, "--set", "engine.flags.nosuch=3"), "--set: engine.flags.nosuch: vLLM 0.33.0 has no such flag"),
        (
            (*SMALL, "--set", "engine.flags.nosuch=3", "--trials", "3"),
            "--set: engine.flags.nosuch: vLLM 0.33.0 has no such",
        ),
        (("--trials", "0"), "--trials: budget.trials: "),
    ],
)
def test_a_fault_that_is_found_late_names_the_file_and_not_the_last_argument(
    typed: tuple[str, ...], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(FILE)
    assert main(["search", str(file), *typed, "--pool", "local", "--db", str(tmp_path / "r.db")]) == 2
    assert place in capsys.readouterr().err


def test_without_a_file_it_is_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = ("--model", "kimi-k3", "--gpu", "RTX-4090", "--nodes", "1", "--gpus-per-node", "2")
    assert main(["search", *space, "--trials", "3", "--pool", "local", "--db", str(tmp_path / "r.db")]) == 2
    assert "command line: parallel.layouts: no layout can be used here" in capsys.readouterr().err
