"""What a person sees: commands in a terminal that is drawn here, with one or both streams led elsewhere.

Every combination of stdout and stderr is a way people use a search: both in the terminal, the answer in a file or a
pipe, the progress in a log, a reader of the progress that leaves, a disk that is full.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte
import pytest

from tests.commands.test_cli_processes import SLOW

#: Under a release whose rules were read and whose times were measured, so that no doubt stands above the trials.
_RELEASE = ("--set", "engine.version=0.24.0")
SEARCH = [sys.executable, "-m", "partitune", "search", "tiny", "--pool", "local", "--trials", "8", *_RELEASE]


class Window:
    """A terminal of some size, and what stands in it."""

    def __init__(self, columns: int) -> None:
        self._screen = pyte.HistoryScreen(columns, 40, history=1000)
        self._stream = pyte.ByteStream(self._screen)
        self._outer, self.inner = pty.openpty()
        fcntl.ioctl(self.inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def follow(self, process: subprocess.Popen[bytes], until: str = "") -> None:
        """Draw what comes until the process ends, or until a line holds `until`."""
        while process.poll() is None or select.select([self._outer], [], [], 0)[0]:
            if select.select([self._outer], [], [], 0.1)[0]:
                self._stream.feed(os.read(self._outer, 65536))
            if until and any(until in line for line in self.lines()):
                return

    def lines(self) -> list[str]:
        """Everything from the first line to the cursor."""
        columns = range(self._screen.columns)
        past = ["".join(row[column].data for column in columns) for row in self._screen.history.top]
        return "\n".join(line.rstrip() for line in [*past, *self._screen.display]).rstrip().split("\n")

    @property
    def shows_cursor(self) -> bool:
        return not self._screen.cursor.hidden

    def close(self) -> None:
        os.close(self._outer)
        os.close(self.inner)


@pytest.fixture(params=[80, 200])
def window(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Window]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")
    window = Window(request.param)
    yield window
    window.close()


@contextmanager
def started(command: list[str], stdout: int, stderr: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=stdout, stderr=stderr, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_answer_goes_where_stdout_leads_and_progress_stays_in_the_window(window: Window) -> None:
    with Path("out.json").open("wb") as answer, started([*SEARCH, "--json"], answer.fileno(), window.inner) as process:
        window.follow(process)
        assert process.returncode == 0
    assert json.loads(Path("out.json").read_text())["trials"]["ok"] == 8
    lines = window.lines()
    assert all(line.startswith("trial ") for line in lines), lines
    assert window.shows_cursor


def test_the_table_stands_below_the_progress_and_not_beside_it(window: Window) -> None:
    with started(SEARCH, window.inner, window.inner) as process:
        window.follow(process)
        assert process.returncode == 0
    lines = window.lines()
    first = next(place for place, line in enumerate(lines) if not line.startswith("trial "))
    assert lines[first] == "Pareto front of tiny (simulated)"
    assert not [line for line in lines if "running" in line]
    assert window.shows_cursor


def test_a_window_for_the_answer_alone_has_the_answer_alone(window: Window) -> None:
    with Path("log").open("wb") as log, started(SEARCH, window.inner, log.fileno()) as process:
        window.follow(process)
    assert window.lines()[0] == "Pareto front of tiny (simulated)"
    text = Path("log").read_text()
    assert text.startswith("trial 0 ")
    assert "\x1b" not in text


def test_without_a_window_nothing_is_drawn(window: Window) -> None:
    done = subprocess.run(SEARCH, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Pareto front of tiny (simulated)\n")
    assert "\x1b" not in done.stdout + done.stderr


def test_a_word_to_stop_is_a_line_of_its_own(window: Window) -> None:
    Path("slow.yaml").write_text(SLOW)
    command = [sys.executable, "-m", "partitune", "search", "slow.yaml", "--pool", "local"]
    with started(command, window.inner, window.inner) as process:
        window.follow(process, until="trial 1 ")
        os.killpg(process.pid, signal.SIGINT)
        window.follow(process)
        assert process.returncode == 130
    assert window.lines()[-2:] == [
        "partitune: stopping",
        "partitune: interrupted; every finished trial is stored, the same command goes on",
    ]
    assert window.shows_cursor


#: Ways of the shell to lead stderr to where nothing can be written, or nowhere.
DEAD = {"a reader that left": "2> >(head -n 1 > /dev/null)", "a full disk": "2> /dev/full", "closed": "2>&-"}


@pytest.mark.parametrize("redirection", DEAD.values(), ids=DEAD)
def test_a_dead_stderr_ends_no_search(redirection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = f"exec {' '.join(SEARCH)} --json {redirection}"
    done = subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["trials"]["ok"] == 8


@pytest.mark.parametrize("redirection", DEAD.values(), ids=DEAD)
def test_what_is_wrong_is_told_by_the_exit_code_where_nobody_hears_it(redirection: str) -> None:
    line = f"exec {sys.executable} -m partitune solve nowhere {redirection}"
    done = subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


def test_closed_streams_are_no_files_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database would get the number of a closed stream, and what is said with it."""
    monkeypatch.chdir(tmp_path)
    line = f"exec {' '.join(SEARCH)} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", line], check=False).returncode == 0
    shown = subprocess.run([*SEARCH[:3], "show", "--json"], capture_output=True, check=True)
    assert json.loads(shown.stdout)["trials"]["ok"] == 8


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
def test_signals_that_come_twice_end_it_as_one(
    numbers: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slow.yaml").write_text(SLOW)
    command = [sys.executable, "-m", "partitune", "search", "slow.yaml", "--pool", "local"]
    with started(command, subprocess.PIPE, subprocess.PIPE) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith(b"trial 1 "))
        for number in numbers:
            process.send_signal(number)
        _, err = process.communicate()
        assert process.returncode == 130
        lines = err.decode().splitlines()
        assert lines.count("partitune: stopping") == 1
        assert lines[-1].startswith("partitune: interrupted; every finished trial is stored")


def test_a_second_ctrl_c_after_a_while_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = """
import time
from partitune.commands.standard_streams import end_by_signals
end_by_signals()
try:
    print("ready", flush=True)
    time.sleep(600)
finally:
    while True:  # what is ended does not end
        time.sleep(1)
"""
    with started([sys.executable, "-c", script], subprocess.PIPE, subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        assert process.returncode == 130
        assert err.decode().splitlines()[-1] == (
            "partitune: stopped at once; what still runs is ended by its supervisors"
        )
