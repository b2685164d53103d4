"""`make` on a fresh machine: what is missing is said in one line, and the environment follows pyproject.toml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the Makefile, in a path with a blank."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def make(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    command = ["make", "--no-print-directory", *words]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def refused(done: subprocess.CompletedProcess[str], project: Path) -> str:
    """What make says before its own last line; nothing was set up."""
    assert done.returncode != 0
    assert not (project / ".venv").exists()
    message, own = done.stderr.splitlines()
    assert own.startswith("make: ***")
    return message


def test_an_older_python_is_named(project: Path) -> None:
    pretend = "import sys; sys.version_info = (3, 10, 4); sys.version = '3.10.4 (x)'"
    old = script(project / "old", f'exec {sys.executable} -c "{pretend}; $2"')
    assert refused(make(project, f"PYTHON=./{old.name}", "test"), project) == (
        "partitune needs Python 3.11 or newer; ./old is 3.10.4. Or name another one: make PYTHON=python3.12 test"
    )


def test_a_python_that_is_not_there_is_named(project: Path) -> None:
    message = refused(make(project, "PYTHON=python3.99"), project)
    assert message == "python3.99 was not found; make PYTHON=... names another one"


def test_a_python_without_environments_is_told_which_package_to_install(project: Path) -> None:
    (project / "ensurepip.py").write_text("raise ImportError('No module named ensurepip')")  # as Debian's python3
    bare = script(project / "bare", f'PYTHONPATH=. exec {sys.executable} "$@"')
    message = refused(make(project, f"PYTHON=./{bare.name}"), project)
    assert message.startswith("./bare cannot make environments (No module named ensurepip); on Debian and Ubuntu: apt")


def test_an_environment_that_cannot_be_made_is_not_left_half_done(project: Path) -> None:
    half = script(project / "half", f'[ "$1" = -c ] && exec {sys.executable} "$@"; mkdir -p .venv/bin; exit 3')
    done = make(project, f"PYTHON=./{half.name}", "test")
    assert done.returncode != 0
    assert not (project / ".venv").exists()


def test_the_environment_follows_pyproject_and_search_needs_no_tools_for_developers(project: Path) -> None:
    script(project / ".venv" / "bin" / "python", 'echo "$@" >> log')

    def ran(*words: str) -> list[str]:
        (project / "log").write_text("")
        assert make(project, *words).returncode == 0
        return [line.removeprefix("-m ") for line in (project / "log").read_text().splitlines()]

    install = "pip --disable-pip-version-check install --quiet --editable"
    search = ["partitune search kimi-k3-pp8-tp2", "partitune export kimi-k3-pp8-tp2 -o deploy.env"]
    assert ran("search") == [f"{install} .[silicon]", *search]
    assert ran("search") == search
    assert ran("test") == [f"{install} .[dev]", "pytest --numprocesses 2"]
    assert ran("check") == ["ruff format --check .", "ruff check .", "mypy"]
    assert ran("search") == search
    later = (project / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(project / "pyproject.toml", (later, later))
    assert ran("test") == [f"{install} .[dev]", "pytest --numprocesses 2"]


@pytest.mark.parametrize("failing", ["check", "test"])
def test_ci_fails_when_a_target_fails_and_runs_from_anywhere(failing: str, tmp_path: Path) -> None:
    script(tmp_path / "make", f'pwd >> "{tmp_path}/log"; echo "$@" >> "{tmp_path}/log"; [ "$1" != {failing} ]')
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([ROOT / ".ci" / "run"], cwd=tmp_path, env=environment, check=False)
    assert done.returncode != 0
    targets = ["check", "test"][: ["check", "test"].index(failing) + 1]
    assert (tmp_path / "log").read_text().splitlines() == [line for target in targets for line in (str(ROOT), target)]
