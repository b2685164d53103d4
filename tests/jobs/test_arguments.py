"""The command line of jobs: what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitune.cli import main
from partitune.jobs import submission
from partitune.jobs.package import Shipment, pack
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from tests.project_folder import make_project


@pytest.mark.parametrize(
    "command", [["submit"], ["jobs", "list"], ["jobs", "logs"], ["jobs", "stop"], ["jobs", "wait"]]
)
def test_every_command_explains_itself(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    assert "--address URL" in capsys.readouterr().out


def test_a_dry_run_shows_what_would_be_shipped_and_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = make_project(tmp_path)
    typed = ["--db", "/data/results.db", "--set", "max_num_seqs=64", "--trials", "3", "--dry-run"]
    assert main(["submit", str(space), "--address", "http://127.0.0.1:1", *typed]) == 0
    said = capsys.readouterr()
    assert said.out == (
        "python3 -m partitune search search_spaces/mine.yaml --runner runners/simulator.yaml --study mine "
        "--pool ray --ray-address auto --db /data/results.db\n"
    )
    shipped, largest = said.err.splitlines()
    for named in ("search_spaces/mine.yaml", "model/config.json", "load/trace.jsonl"):
        assert named in shipped
    for left in (".git", "safetensors", "results.db"):
        assert left not in said.err
    assert largest.count("KiB") == 5


def test_the_settings_of_the_command_line_reach_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[SearchSpace] = []

    def catch(space: SearchSpace, runner: Runner) -> Shipment:
        packed.append(space)
        return pack(space, runner)

    monkeypatch.setattr(submission, "pack", catch)
    typed = ["--set", "max_num_seqs=64", "--set", "workload.concurrency=4", "--trials", "3", "--seed", "5"]
    assert main(["submit", "tiny", "--db", "/d.db", "--dry-run", *typed]) == 0
    plain = packed[0].resolved()
    assert (plain["budget"]["trials"], plain["random_seed"]) == (3, 5)
    assert (plain["engine"]["flags"], plain["workload"]["concurrency"]) == ({"max_num_seqs": 64}, 4)


def test_input_that_is_wrong_is_refused_before_anything_is_contacted(capsys: pytest.CaptureFixture[str]) -> None:
    for typed, said in (
        (["tinny", "--db", "/d.db"], "did you mean tiny?"),
        (["tiny", "--db", "d.db"], "a relative path"),
        (["tiny", "--db", "/d.db", "--set", "cluster.gpu=H9"], "cluster.gpu"),
        (["tiny", "--db", "/d.db", "--runner", "nope"], "runner 'nope': not found"),
        (["tiny", "--db", "/d.db", "--trials", "0"], "budget.trials"),
    ):
        assert main(["submit", "--address", "http://127.0.0.1:1", *typed]) == 2
        assert said in capsys.readouterr().err
