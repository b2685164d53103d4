"""Text from outside: whatever an engine, a name, a database or a job says, a terminal and a spreadsheet get text."""

from __future__ import annotations

import contextlib
import csv
import io
import sqlite3
from pathlib import Path

import pytest

from partitune.candidate import Candidate
from partitune.cli import main
from partitune.commands.job_arguments import print_log
from partitune.errors import SpecError, printable
from partitune.export.deploy import export
from partitune.jobs.home import Home
from partitune.planning.resolve import resolve
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from tests.fake_setup import SPACE

#: Clears a screen, changes a window's title, rings, goes back, writes from right to left, and looks like rich's markup.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x1b]8;;http://x\x1b\\link\x9b31m\b\r\u202eabc[/x][red]"
READERS = (
    ["studies"],
    ["show"],
    ["show", "--trial", "0"],
    ["show", "--trial", "1"],
    ["pareto"],
    ["pareto", "--csv"],
    ["status"],
    ["export", "-o", "deploy.env"],
    ["show", "nothing\x1b[2J"],
    ["gc", "--dry-run"],
)


def run(*typed: str) -> tuple[int, str]:
    """Exit code, and all that was printed; nothing of it may steer a terminal."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(typed)
    text = out.getvalue() + err.getvalue()
    assert [letter for letter in text if not (letter.isprintable() or letter in "\n\t")] == []
    assert "Traceback" not in text
    return code, text


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study whose every text is hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    file = folder / "results.db"
    assert main(["search", "tiny", "--pool", "local", "--trials", "4", "--quiet", "--db", str(file)]) == 0
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE partitune_studies SET name = name || ?, engine_version = ?", (HOSTILE, HOSTILE))
        connection.execute("UPDATE partitune_trials SET reason = ?, origin = ?", (HOSTILE, f"exact:{HOSTILE}"))
        connection.execute("UPDATE partitune_trials SET outcome = 'failed', metrics = NULL WHERE number = 1")
    return file


@pytest.mark.parametrize("typed", READERS, ids=" ".join)
def test_what_a_database_holds_steers_no_terminal(
    typed: list[str], database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = run(*typed, "--db", str(database))
    assert code in (0, 2)
    if code == 0 and typed[0] in ("studies", "show", "status"):
        assert "[/x][red]" in text or "deploy.env" in text  # told, and as it stands


@pytest.mark.parametrize("study", ["v1[/x]", "[bold]v1", "名前", "a=b", "-v1"])
def test_a_name_is_never_markup(study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--study", study] if study[0] != "-" else [f"--study={study}"]
    assert run("search", "tiny", "--pool", "local", "--trials", "2", *given)[0] == 0
    for typed in (["studies"], ["pareto"], ["show"], ["status"]):
        code, text = run(*typed)
        assert code == 0
        assert study in text


def test_a_cell_is_no_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("search", "tiny", "--pool", "local", "--trials", "2")[0] == 0
    with contextlib.closing(sqlite3.connect("results.db")) as connection, connection:
        for number, text in enumerate(["=1+1", "@SUM(1)"]):
            connection.execute("UPDATE partitune_trials SET reason = ? WHERE number = ?", (text, number))
    rows = list(csv.DictReader(io.StringIO(run("pareto", "--csv")[1])))
    assert [row["reason"] for row in rows] == ["'=1+1", "'@SUM(1)"]


def test_what_a_command_of_a_site_prints_steers_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(
        "kind: runner\nname: r\ndriver: command\n"
        "command: [bash, -c, 'printf \"\\033[2Jgone\\007 quota\\n\"; exit 7', '{result}']\n"
    )
    code, text = run("launch", "tiny", "--runner", "r.yaml")
    assert code == 1
    assert r"\x1b[2Jgone\x07 quota" in text or "gone" in text


def test_the_log_of_a_job_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_log([f"hello{HOSTILE}\n", "more\tof it\n"], Home())
    out = capsys.readouterr().out
    assert out.endswith("[/x][red]\nmore\tof it\n")
    assert "\x1b" not in out


def test_text_is_spelled_out_and_nothing_of_it_is_lost() -> None:
    assert printable("a\x1b[2Jb\n\u202ec") == r"a\x1b[2Jb\n\u202ec"
    assert printable("a\n\tb\r", lines=True) == "a\n\tb\\r"
    assert printable("Größe 名前 ×") == "Größe 名前 ×"


def test_a_link_out_of_a_runners_folder_is_not_shipped(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "measure").mkdir()
    (folder / "measure" / "run.sh").write_text("true")
    (folder / "measure" / "inside.sh").symlink_to("run.sh")
    text = "kind: runner\nname: r\ndriver: command\ncommand: ['{folder}/measure', '{result}']\n"
    (folder / "r.yaml").write_text(text)
    runner = Runner.load(str(folder / "r.yaml"))
    assert sorted(runner.named_files()) == ["measure/inside.sh", "measure/run.sh"]
    (folder / "measure" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(
        SpecError, match=r"r\.yaml:4: command: found .*link, a link to .*secret; allowed: files that lie"
    ):
        runner.named_files()


def test_an_export_points_out_what_decides_which_code_runs(tmp_path: Path) -> None:
    env = {"LD_PRELOAD": "/x/evil.so", "PATH": "/x", "NCCL_DEBUG": "WARN"}
    space = SearchSpace.from_mapping({**SPACE, "engine": {"name": "vllm", "env": env}}, source="fake.yaml")
    posed = resolve(space)
    exported = export(posed, Candidate((20, 16)), tmp_path / "deploy.env", ())
    assert [warning.split(",")[0] for warning in exported.warnings] == [
        "engine.env sets LD_PRELOAD=/x/evil.so",
        "engine.env sets PATH=/x",
    ]
    assert "# warning: engine.env sets LD_PRELOAD=/x/evil.so, which decides what code runs" in (
        (tmp_path / "deploy.env").read_text()
    )
