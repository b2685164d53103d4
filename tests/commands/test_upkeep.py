"""status, gc and the trial logs, as a person meets them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from partitune.analysis.trial import Trial
from partitune.candidate import Candidate, Objective
from partitune.cli import main
from partitune.errors import StoreError
from partitune.execution.driver import run
from partitune.execution.processes.ledger import Ledger, state_folder
from partitune.store import Store, StudyState, trial_log
from partitune.store.status import look
from partitune.store.trial_log import log_file, log_trial
from tests.scripted import ScriptedDriver
from tests.store.test_migrations import first_database
from tests.store.test_processes import writer
from tests.store_examples import filled, ok, start

OBJECTIVES = (Objective("output_throughput_tok_s", "maximize"),)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def search(*arguments: str) -> int:
    return main(["search", "tiny", "--pool", "local", "--quiet", "--json", *arguments])


def test_status_of_a_study_somebody_writes_to_and_after_he_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    with writer(path) as child, Store.open(path, read_only=True) as store:
        assert child.stdout is not None
        child.stdout.readline()
        first = look(store, "k3", OBJECTIVES, 1000)
        assert (first.running, first.state) == (True, StudyState.RUNNING)
        assert first.writer.startswith(f"process {child.pid} on ")
        assert first.finished >= 1
        for _ in range(20):
            child.stdout.readline()
        later = look(store, "k3", OBJECTIVES, 1000)
        assert later.finished > first.finished
        assert later.per_minute is not None
        assert later.minutes_left == pytest.approx((1000 - later.finished) / later.per_minute)
        assert "a minute, about" in later.to_text()
        child.kill()
        child.wait()
        gone = look(store, "k3", OBJECTIVES, 1000)
        assert (gone.running, gone.minutes_left) == (False, None)
        assert "its process is gone; the same search command goes on" in gone.to_text()


def test_looking_for_the_writer_never_lets_another_one_in(tmp_path: Path) -> None:
    path = filled(tmp_path / "results.db")
    with Store.open(path) as store:
        assert store.writer() == f"this process ({os.getpid()})"
        script = f"from partitune.store import Store; Store.open({str(path)!r})"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "only one process may" in done.stderr
    with Store.open(path, read_only=True) as store:
        assert store.writer() == ""


def test_status_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search("--trials", "3")
    capsys.readouterr()
    assert main(["status", "--watch"]) == 0  # it ended: one look is all
    said = capsys.readouterr().out
    assert said.startswith("tiny: finished, 3/3 trials (3 ok), best output_throughput_tok_s ")
    assert main(["status", "tiny", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["study"], found["state"], found["running"], found["trials"]["ok"]) == ("tiny", "finished", False, 3)
    assert main(["status", "tinny"]) == 2
    assert "Did you mean tiny?" in capsys.readouterr().err


def test_every_trial_has_its_line_and_a_bug_its_traceback(tmp_path: Path) -> None:
    for number, act in enumerate(["ok", "oom", "bug"]):
        result = run(ScriptedDriver(), Candidate((4,), {"act": act}))
        log_trial(tmp_path / "results.db", Trial("k3", number, "sampler:front-0", datetime.now(UTC), result))
    file = log_file(tmp_path / "results.db", "k3")
    assert file is not None
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["trial"], line["outcome"]) for line in lines] == [(0, "ok"), (1, "infeasible"), (2, "failed")]
    assert "detail" not in lines[1]
    assert 'raise KeyError("pages")' in lines[2]["detail"]
    assert lines[2]["reason"].startswith("internal error in the driver: KeyError")


def test_logs_do_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_log, "LARGEST_FILE", 2000)
    for number in range(100):
        log_trial(tmp_path / "results.db", Trial("k3", number, "sampler", datetime.now(UTC), ok()))
    files = sorted((tmp_path / "results.db.logs").iterdir())
    assert [file.name for file in files] == ["k3.jsonl", "k3.jsonl.1"]
    assert all(file.stat().st_size < 2500 for file in files)
    assert json.loads(files[0].read_text().splitlines()[-1])["trial"] == 99


def test_a_log_that_cannot_be_written_ends_no_search(here: Path) -> None:
    (here / "results.db.logs").write_text("in the way")
    assert search("--trials", "2") == 0


def test_gc_takes_old_logs_and_those_of_no_study_and_leaves_results(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search("--trials", "2")
    search("--trials", "2", "--study", "old")
    logs = here / "results.db.logs"
    (logs / "gone.jsonl").write_text("{}\n")
    (logs / "notes.txt").write_text("mine")
    (here / "elsewhere.jsonl").write_text("mine")
    (logs / "link.jsonl").symlink_to(here / "elsewhere.jsonl")
    long_ago = time.time() - 40 * 86_400
    os.utime(logs / "old.jsonl", (long_ago, long_ago))
    capsys.readouterr()
    assert main(["gc", "--dry-run"]) == 0
    would = capsys.readouterr().out
    assert "would remove" in would
    assert sorted(file.name for file in logs.iterdir()) == [
        "gone.jsonl", "link.jsonl", "notes.txt", "old.jsonl", "tiny.jsonl"
    ]  # fmt: skip
    assert main(["gc"]) == 0
    assert capsys.readouterr().out == would.replace("would remove", "removed")
    assert sorted(file.name for file in logs.iterdir()) == ["link.jsonl", "notes.txt", "tiny.jsonl"]
    assert (here / "elsewhere.jsonl").read_text() == "mine"
    with Store.open("results.db", read_only=True) as store:
        assert {study.name: len(store.trials(study.name)) for study in store.studies()} == {"tiny": 2, "old": 2}


def test_gc_deletes_a_study_only_by_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search("--trials", "2")
    search("--trials", "2", "--study", "other")
    assert main(["gc", "--delete-study", "tinny"]) == 2
    assert "no study tinny" in capsys.readouterr().err
    assert main(["gc", "--delete-study", "other"]) == 0
    with Store.open("results.db", read_only=True) as store:
        assert [study.name for study in store.studies()] == ["tiny"]
        assert len(store.trials("tiny")) == 2
    assert not (here / "results.db.logs" / "other.jsonl").exists()


def trial(state: Path, name: str, days: float, files: tuple[str, ...] = ("node0.log",)) -> Path:
    """A start's folder whose newest file is that old."""
    folder = state / "trials" / name
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("x" * 100)
    then = time.time() - days * 86_400
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (then, then))
    return folder


def test_gc_takes_the_files_of_old_starts_on_this_machine_but_never_of_one_that_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "state"))
    state = state_folder()
    old, nested = trial(state, "old", 40), trial(state, "nested", 40, ("node0.log", "deep/er/window-1.json"))
    busy = trial(state, "busy", 31)
    (busy / "new.log").write_text("")  # of today, though its folder is old
    os.utime(busy, (0, 0))
    other = state.parent / "another-host" / "trials" / "old"
    shutil.copytree(old, other)
    (nested / "link").symlink_to(other)
    (state / "trials" / "linked").symlink_to(other)
    trial(state, "runs", 40)
    running = Ledger(state / "started").open("runs", "node0", None, {})
    settled, fresh = trial(state, "settled", 0.1), trial(state, "fresh", 0)
    os.utime(nested, (0, 0))
    os.utime(nested / "link", (0, 0), follow_symlinks=False)
    everything = sorted(state.rglob("*"))

    assert main(["gc", "--no-db", "--dry-run"]) == 0
    would = capsys.readouterr().out
    assert would.splitlines() == [
        f"would remove {nested} (of a start that is over, 40 days old)",
        f"would remove {old} (of a start that is over, 40 days old)",
        would.splitlines()[-1],
    ]
    link_and_folders = sum(
        path.lstat().st_size for path in nested.rglob("*") if not path.is_file() or path.is_symlink()
    )
    assert would.splitlines()[-1] == (f"would remove files of 2 starts on this machine, {300 + link_and_folders} bytes")
    assert sorted(state.rglob("*")) == everything

    search("--trials", "1")
    capsys.readouterr()
    assert main(["gc"]) == 0
    assert capsys.readouterr().out.endswith(would.replace("would remove", "removed"))
    left = ["busy", "fresh", "linked", "runs", "settled"]
    assert sorted(path.name for path in (state / "trials").iterdir()) == left
    assert (other / "node0.log").exists()

    Ledger(state / "started").close(running)
    assert main(["gc", "--no-db", "--older-than", "0"]) == 0
    assert f"removed {settled} (" in capsys.readouterr().out
    # `fresh` was written to within the hour: its record may be about to come.
    assert sorted(path.name for path in (state / "trials").iterdir()) == ["busy", "fresh", "linked"]
    assert fresh.exists()


def test_gc_without_a_database_deletes_no_study(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gc", "--no-db", "--delete-study", "tiny"]) == 2
    assert "--delete-study: found beside --no-db" in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("days", ["-1", "nan", "soon"])
def test_gc_refuses_an_age_that_is_none(days: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["gc", "--older-than", days])
    assert f"found '{days}'; allowed: a number of days, such as 30, not below 0" in capsys.readouterr().err


def test_gc_brings_an_older_database_up_to_date(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first_database(here / "results.db")
    assert main(["studies"]) == 2
    assert "`partitune gc` or the next search into it brings it up to date" in capsys.readouterr().err
    assert main(["gc"]) == 0
    assert main(["studies"]) == 0


def test_gc_makes_no_database_and_waits_for_nobody(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gc"]) == 2
    assert "no such file" in capsys.readouterr().err
    assert list(here.iterdir()) == []
    with Store.open("results.db") as store:
        start(store)
        assert main(["gc"]) == 2
    assert "only one process may" in capsys.readouterr().err


def test_compacting_gives_space_back(tmp_path: Path) -> None:
    path = filled(tmp_path / "results.db", 300)
    with Store.open(path) as store:
        before = path.stat().st_size
        store.delete_study("k3")
        store.compact()
    assert path.stat().st_size < before / 2
    with Store.open(path) as store, pytest.raises(StoreError, match="no study k3"):
        store.delete_study("k3")


class TestResume:
    def test_by_name_without_the_search_space(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        whole = search("--trials", "9", "--db", "whole.db")
        assert whole == 0
        wanted = json.loads(capsys.readouterr().out)
        search("--trials", "4", "--seed", "0")
        capsys.readouterr()
        assert main(["search", "--resume", "tiny", "--pool", "local", "--quiet", "--json", "--trials", "9"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["trials"] == wanted["trials"]
        assert found["best"]["partition"] == wanted["best"]["partition"]
        with Store.open("results.db", read_only=True) as one, Store.open("whole.db", read_only=True) as other:
            digests = [[t.result.candidate.digest for t in store.trials("tiny")] for store in (one, other)]
        assert digests[0] == digests[1]  # the same seed, the same proposals

    def test_a_line_means_better_than_everything_stored(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for trials in ("10", "16"):
            capsys.readouterr()
            assert main(["search", "tiny", "--pool", "local", "--trials", trials]) == 0
        told = [int(line.split()[1]) for line in capsys.readouterr().err.splitlines() if line.startswith("trial ")]
        with Store.open("results.db", read_only=True) as store:
            values = [trial.result.metric("output_throughput_tok_s") or 0 for trial in store.trials("tiny")]
        assert told == [number for number in range(10, 16) if values[number] > max(values[:number])]

    def test_of_what_is_not_there_names_what_is(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for study in ("alpha", "beta", "gamma", "delta"):
            search("--trials", "1", "--study", study)
        assert main(["search", "--resume", "quite-another"]) == 2
        assert "It holds alpha, beta, gamma, delta" in capsys.readouterr().err

    def test_beside_a_search_space_is_refused(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        search("--trials", "1")
        assert main(["search", "tiny", "--resume", "tiny"]) == 2
        assert "--resume: found beside a search space" in capsys.readouterr().err

    def test_a_wider_study_is_shown_and_goes_on_when_asked_for(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        search("--trials", "3")
        text = (Path(__file__).parent.parent.parent / "search_spaces" / "tiny.yaml").read_text()
        Path("wide.yaml").write_text(text.replace("[256, 512,", "[256, 384, 512,"))
        command = ["search", "wide.yaml", "--pool", "local", "--quiet", "--json", "--trials", "1000"]
        capsys.readouterr()
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "knobs.max_num_batched_tokens: [256, 512, 1024, 2048] -> [256, 384, 512, 1024, 2048]" in said
        assert "or extend this one: --extend" in said
        assert main([*command, "--extend"]) == 0
        with Store.open("results.db", read_only=True) as store:
            trials = store.trials("tiny")
        assert len({trial.result.candidate.digest for trial in trials}) == len(trials)
        assert {384, 512} <= {trial.result.candidate.flags["max_num_batched_tokens"] for trial in trials}
        capsys.readouterr()
        assert main([*command, "--extend", "--set", "workload.requests=20"]) == 2  # not the same trials any more
        said = capsys.readouterr().err
        assert "workload.requests: 16 -> 20" in said
        assert "--extend" not in said
        assert "go on and set its " in said

    def test_a_changed_study_goes_on_when_asked_for_as_if_it_were_new(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        changed = ["--set", "workload.requests=20", "--seed", "3", "--trials", "6"]
        search(*changed, "--db", "new.db")
        search("--trials", "4")
        capsys.readouterr()
        resume = ["search", "--resume", "tiny", "--pool", "local", *changed]
        assert main([*resume, "--extend"]) == 2
        said = capsys.readouterr().err
        assert "\n  random_seed: 0 -> 3\n  workload.requests: 16 -> 20\nUndo that" in said
        assert said.endswith("or go on and set its 4 trials aside: --accept-changes\n")
        assert main([*resume, "--accept-changes"]) == 0
        done = capsys.readouterr()
        assert (
            "tiny goes on under a changed spec:\n  random_seed: 0 -> 3\n  workload.requests: 16 -> 20\n4 tr" in done.err
        )
        assert "trials: 7 ok (the budget of 6 trials is spent; 1 more to close)" in done.out
        assert "4 trials measured under an earlier spec of the study are set aside" in done.out
        with Store.open("results.db", read_only=True) as one, Store.open("new.db", read_only=True) as other:
            trials, wanted = one.trials("tiny"), other.trials("tiny")
        assert [trial.number for trial in trials] == [4, 5, 6, 7, 8, 9, 10]
        figures = [[(t.origin, t.result.candidate, t.result.measurement) for t in found] for found in (trials, wanted)]
        assert figures[0] == figures[1]  # neither taught by what came before, nor kept from trying it again
        assert main([*resume, "--trials", "8"]) == 0  # what was accepted is the study now

    def test_what_was_set_aside_is_shown_and_never_deployed(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        search("--trials", "3")
        search("--trials", "2", "--set", "workload.requests=20", "--accept-changes")
        capsys.readouterr()
        main(["status"])
        assert "2/2 trials (2 ok), 3 of an earlier spec set aside, best" in capsys.readouterr().out
        main(["pareto", "--json"])
        front = json.loads(capsys.readouterr().out)
        assert front["set_aside"] == 3
        assert {trial["trial"] for trial in front["pareto"]} <= {3, 4}
        assert main(["show", "--trial", "0"]) == 0
        assert capsys.readouterr().out.startswith("set aside: measured under an earlier spec of the study\n")
        assert main(["show", "--trial", "9"]) == 2
        assert main(["export", "--trial", "0", "-o", "deploy.env"]) == 2
        assert "--trial 0: was measured under an earlier spec of study tiny and is set aside" in capsys.readouterr().err
        assert not (here / "deploy.env").exists()
        assert main(["export", "-o", "deploy.env"]) == 0
        assert "3 trials measured under an earlier spec" in capsys.readouterr().out
        search("--trials", "3", "--accept-changes")  # back to the first spec, which is measured already
        assert json.loads(capsys.readouterr().out)["set_aside"] == 2

    def test_a_budget_of_gpu_hours_that_never_ends_a_simulation_is_said(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        main(["search", "tiny", "--pool", "local", "--trials", "2", "--set", "budget.gpu_hours=0.5"])
        said = capsys.readouterr().err
        assert "simulated trials use no GPU: the budget of 0.5 GPU-hours does not end this search" in said
