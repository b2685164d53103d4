"""`partitune export` from a stored study: the winner, a chosen trial, or the default where nothing beats it."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitune.cli import main

SPACE = """
kind: search_space
name: toy
model: qwen3-8b
cluster: {nodes: 1, gpus_per_node: 2, gpu: L40S, reserved_gib: [0, 12]}
engine: {flags: {gpu_memory_utilization: 0.95}}
parallel: {tp: 1, pp: 2}
workload: {kind: random, requests: 4, prompt_tokens: 64, output_tokens: 4, concurrency: 4}
seeds: ["22,14", "34,2"]
budget: {trials: 4}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with a study in which no partition beats the engine's 18,18."""
    monkeypatch.chdir(tmp_path)
    Path("toy.yaml").write_text(SPACE)
    assert main(["search", "./toy.yaml", "--pool", "local", "--quiet"]) == 0
    capsys.readouterr()
    return tmp_path


def test_where_nothing_beats_the_default_it_says_so_and_exports_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "-o", "deploy.env"]) == 0
    shown = capsys.readouterr()
    assert "nothing beats the engine's default" in shown.out
    written = (folder / "deploy.env").read_text()
    assert written.endswith("VLLM_PP_LAYER_PARTITION=18,18\n")
    assert "# nothing beats the engine's default" in written
    assert "set -a; . ./deploy.env; set +a; vllm serve --config deploy.yaml" in shown.out
    assert "simulated, not measured" in shown.out
    assert shown.err.startswith("partitune: warning: gpu_memory_utilization 0.95 does not start on stage 1; set 0.")


def test_a_trial_is_exported_by_its_number(folder: Path) -> None:
    for number in range(4):
        assert main(["export", "toy", "--trial", str(number), "-o", f"{number}.env"]) == 0
    written = [(folder / f"{number}.env").read_text() for number in range(4)]
    for partition, origin in (("18,18", "(default"), ("22,14", "seed-1"), ("34,2", "seed-2")):
        (one,) = [text for text in written if origin in text]
        assert one.endswith(f"={partition}\n")


@pytest.mark.parametrize("words", [["--trial", "4"], ["--trial", "-1"], ["absent"], ["--db", "absent.db"]])
def test_what_is_not_there_is_refused_and_nothing_is_written(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    assert main(["export", *words, "-o", "deploy.env"]) == 2
    assert capsys.readouterr().err.startswith("partitune: ")
    assert sorted(folder.iterdir()) == before
