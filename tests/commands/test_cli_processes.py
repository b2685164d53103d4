"""The command line as real processes: signals, kills, two at once, odd terminals and locales, closed pipes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from partitune.candidate import Result
from partitune.store import Store

PARTITUNE = [sys.executable, "-m", "partitune"]
#: Takes some seconds after its first trials, so that a signal comes while it runs.
SLOW = """
kind: search_space
name: slow
model: qwen3-8b
cluster: {nodes: 1, gpus_per_node: 2, gpu: L40S}
parallel: {tp: 1, pp: 2}
workload: {kind: random, requests: 600, prompt_tokens: 128, output_tokens: 200, range_ratio: 0.5, concurrency: 8}
knobs:
  max_num_batched_tokens: {low: 256, high: 4096, step: 1}
  async_scheduling: [true, false]
seeds: ["18,18", "19,17"]
budget: {trials: 25}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.yaml").write_text(SLOW)
    return tmp_path


def run(
    *arguments: str, stdout: int | IO[str] = subprocess.PIPE, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PARTITUNE, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        timeout=300,
        check=False,
        env={**os.environ, **(env or {})},
    )


def trials(study: str = "slow") -> list[tuple[int, str, Result]]:
    """The stored trials, without how long they took."""
    with Store.open("results.db", read_only=True) as store:
        return [(one.number, one.origin, replace(one.result, duration_s=0.0)) for one in store.trials(study)]


def state(study: str = "slow") -> str:
    with Store.open("results.db", read_only=True) as store:
        return store.study(study).state.value


def start(*arguments: str) -> subprocess.Popen[str]:
    """A search in a session of its own, waited for until two trials are stored."""
    process = subprocess.Popen(
        [*PARTITUNE, "search", "slow.yaml", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("trial 1 "):
            return process
    raise AssertionError(f"ended early with {process.wait()}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly_and_the_same_command_goes_on(here: Path, number: signal.Signals) -> None:
    process = start("--pool", "local")
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-2:] == [
        "partitune: stopping",
        "partitune: interrupted; every finished trial is stored, the same command goes on",
    ]
    assert "Traceback" not in err
    stored = trials()
    assert 2 <= len(stored) < 25
    assert state() == "interrupted"
    resumed = json.loads(run("search", "slow.yaml", "--pool", "local", "--quiet", "--json").stdout)
    assert resumed["trials"]["ok"] == 25
    assert trials()[: len(stored)] == stored


def test_a_killed_search_loses_nothing_measures_nothing_twice_and_ends_as_if_nothing_had_been(here: Path) -> None:
    process = start("--pool", "local")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    stored = trials()
    assert len(stored) >= 2
    assert run("search", "slow.yaml", "--pool", "local", "--quiet").returncode == 0
    interrupted = trials()
    assert interrupted[: len(stored)] == stored
    assert len({result.candidate.digest for *_, result in interrupted}) == len(interrupted) == 25
    assert run("search", "slow.yaml", "--pool", "local", "--quiet", "--study", "whole").returncode == 0
    assert trials("whole") == interrupted


def test_a_second_search_is_turned_away_while_one_runs_and_readers_are_not(here: Path) -> None:
    process = start("--pool", "local")
    second = run("search", "tiny", "--pool", "local", "--quiet")
    assert second.returncode == 2
    assert second.stdout == ""
    assert "results.db: " in second.stderr
    assert str(process.pid) in second.stderr
    assert len(trials()) >= 2
    assert state() == "running"
    other = run("search", "tiny", "--pool", "local", "--quiet", "--trials", "1", "--db", "other.db")
    assert other.returncode == 0
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)


@pytest.mark.ray
def test_ray_workers_end_with_the_search(here: Path) -> None:
    process = start()
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert len(trials()) >= 2


def test_a_reader_that_leaves_ends_the_program_without_a_word(here: Path) -> None:
    for arguments in (("explain", "tiny"), ("list", "--json"), ("search", "tiny", "--pool", "local", "--quiet")):
        reader, writer = os.pipe()
        os.close(reader)
        done = run(*arguments, stdout=writer)
        os.close(writer)
        assert (done.returncode, done.stderr) == (0, "")
    assert len(trials("tiny")) == 12


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_message(here: Path) -> None:
    for arguments in (("explain", "tiny"), ("list", "--json")):
        with Path("/dev/full").open("w") as full:
            done = run(*arguments, stdout=full)
        assert (done.returncode, done.stderr) == (2, "partitune: No space left on device\n")


def test_a_closed_stdout_is_nobody_reading(here: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m partitune list >&-", shell=True, stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"COLUMNS": "20"},
        {"COLUMNS": "wide", "TERM": "unheard-of"},
        {"TERM": ""},
        {"HOME": "/nonexistent"},
        {"HOME": ""},
    ],
    ids=str,
)
def test_any_environment_will_do(here: Path, environment: dict[str, str]) -> None:
    done = run("explain", "tiny", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "18 full+dense" in done.stdout
    refused = run("explain", "tiny", "--partition", "18;18", env=environment)
    assert refused.returncode == 2
    assert "character ';'" in refused.stderr


def test_an_empty_environment_will_do(here: Path) -> None:
    done = subprocess.run([*PARTITUNE, "explain", "tiny", "--json"], env={}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["partition"] == [18, 18]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_folder(here: Path) -> None:
    here.chmod(0o555)
    done = run("search", "tiny", "--pool", "local")
    here.chmod(0o755)
    assert done.returncode == 2
    assert "is read-only" in done.stderr


def shown(columns: int, *arguments: str) -> str:
    """What a terminal of so many columns shows, without its colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [*PARTITUNE, *arguments], stdout=theirs, stderr=subprocess.DEVNULL, env={**environment, "TERM": "xterm"}
    )
    os.close(theirs)
    read = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # Linux says so at the end
            break
        if not part:
            break
        read += part
    os.close(ours)
    assert process.wait() == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", read.decode().replace("\r\n", "\n"))


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_a_terminal_shows_every_figure_unbroken(here: Path, columns: int) -> None:
    text = shown(columns, "explain", "kimi-k3-pp8-tp2", "--partition", "7,11,11,11,11,11,15,16")
    lines = text.splitlines()
    assert max(map(len, lines)) <= columns
    for heading in ("layers", "kinds", "compute s", "transfer s", "wait s", "busy %", "weights GiB", "free GiB"):
        assert heading in text
    assert "KV blocks  stranded GiB" in text
    assert sum(line.endswith("<- limits") for line in lines) == 1
    assert "11 kda+moe 5 mla+moe" in text
    assert "limit: stage 7" in text


def test_a_very_narrow_terminal_gets_sentences(here: Path) -> None:
    text = " ".join(shown(20, "explain", "tiny").split())
    assert "- stage 0, layers 18, kinds 18 full+dense, compute s" in text


def test_a_pipe_gets_one_line_a_row_and_no_trailing_blanks(here: Path) -> None:
    assert run("search", "tiny", "--pool", "local", "--quiet").returncode == 0
    for arguments in (("explain", "kimi-k3-pp8-tp2"), ("show", "tiny"), ("pareto",), ("studies",), ("list",)):
        done = run(*arguments, env={"COLUMNS": "40"})
        assert not [line for line in done.stdout.splitlines() if line != line.rstrip()], arguments
    rows = [line for line in run("show", env={"COLUMNS": "40"}).stdout.splitlines() if re.match(r"\d", line)]
    assert [row.split()[0] for row in rows[:12]] == [str(number) for number in range(12)]


def test_progress_on_a_terminal_does_not_reach_stdout(here: Path) -> None:
    text = shown(100, "search", "tiny", "--pool", "local", "--json")
    assert json.loads(text)["study"] == "tiny"
