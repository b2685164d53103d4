"""From a name to a file: nearest place first, never out of the folder, never a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import partitune
from partitune.errors import SpecError
from partitune.spec.catalog import MAX_YAML_BYTES, Kind, find, list_catalog

PACKAGE = Path(partitune.__file__).parent
SHIPPED = {
    "kimi-k3-pp8-tp2", "kimi-k3-pp8-tp2-h200", "kimi-k3-pp8-tp2-long", "llama-70b-pp4", "deepseek-v3-pp4-tp8",
    "qwen3-235b-pp4-tp4", "kimi-k3-pp8-tp2-sglang", "kimi-k3-study",
    "kimi-k3-study-prompt", "tiny", "llama-70b-pp4-mix", "qwen3-235b-8xh100-layouts",
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "search_spaces").mkdir()
    (tmp_path / "search_spaces" / "mine.yaml").write_text("mine: 1\n")
    (tmp_path / "search_spaces" / "tiny.yml").write_text("tiny: 1\n")
    (tmp_path / "search_spaces" / "Not A Name.yaml").write_text("no: 1\n")
    (tmp_path / "search_spaces" / "notes.txt").write_text("no\n")
    (tmp_path / "outside.yaml").write_text("outside: 1\n")
    return tmp_path


def refusal(name: str, project: Path) -> str:
    with pytest.raises(SpecError) as caught:
        find(Kind.SEARCH_SPACE, name, project=project)
    return str(caught.value)


def test_the_project_comes_before_what_is_shipped(project: Path) -> None:
    entries = {entry.name: entry.origin for entry in list_catalog(Kind.SEARCH_SPACE, project=project)}
    assert entries == {**dict.fromkeys(SHIPPED, "shipped"), "tiny": "project", "mine": "project"}
    text = find(Kind.SEARCH_SPACE, "tiny", project=project)
    assert text.content == b"tiny: 1\n"
    assert text.source == str(project / "search_spaces" / "tiny.yml")
    assert text.folder == project / "search_spaces"


def test_runners_are_a_catalog_of_their_own(project: Path) -> None:
    names = [entry.name for entry in list_catalog(Kind.RUNNER, project=project)]
    assert {
        "simulator",
        "vllm-local",
        "vllm-cpu",
        "vllm-2node",
        "vllm-ray",
        "sglang-local",
        "sglang-2node",
        "slurm",
    } <= {*names}
    assert "tiny" not in names
    with pytest.raises(SpecError, match="runner 'mine': not found"):
        find(Kind.RUNNER, "mine", project=project)


def test_a_path_is_taken_as_it_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (project / "outside.yaml", project / "search_spaces" / ".." / "outside.yaml"):
        assert find(Kind.SEARCH_SPACE, str(path)).content == b"outside: 1\n"
    monkeypatch.chdir(project)
    assert find(Kind.SEARCH_SPACE, "outside.yaml").source == "outside.yaml"
    (project / "plain").write_text("plain: 1\n")
    assert find(Kind.SEARCH_SPACE, "plain").content == b"plain: 1\n"
    (project / "mine").mkdir()  # a folder of that name does not hide the space
    assert find(Kind.SEARCH_SPACE, "mine").content == b"mine: 1\n"


def test_an_unknown_name_says_what_there_is_and_where_it_looked(project: Path) -> None:
    message = refusal("kimi-k3-pp8tp2", project)
    assert message.startswith("search space 'kimi-k3-pp8tp2': not found, did you mean kimi-k3-pp8-tp2?; allowed: ")
    for name in SHIPPED | {"mine", str(project / "search_spaces")}:
        assert name in message
    assert "did you mean tiny?" in refusal("Tiny", project)


@pytest.mark.parametrize("name", ["", ".", "..", "a\0b", "-", "x" * 5000, "mine;rm", "../outside", "*", "Ünïcode"])
def test_no_name_leaves_the_catalog(name: str, project: Path) -> None:
    message = refusal(name, project)
    assert "not found" in message or "no such file" in message or "a folder" in message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing.yaml", "nothing.yaml: no such file; allowed: a YAML file"),
        ("~nobody/x.yaml", "no such file"),
        ("sub/nothing", "sub/nothing: no such file"),
        (f"{'x' * 5000}.yaml", "cannot be read: File name too long"),
    ],
)
def test_paths_that_cannot_be_read(name: str, message: str, project: Path) -> None:
    assert message in refusal(name, project)


def test_folders_pipes_and_links_to_nowhere(project: Path) -> None:
    (project / "d.yaml").mkdir()
    os.mkfifo(project / "pipe.yaml")
    (project / "loop.yaml").symlink_to(project / "loop.yaml")
    assert "a folder; allowed: a YAML file" in refusal(str(project / "d.yaml"), project)
    assert "no such file" in refusal(str(project / "pipe.yaml"), project)  # and does not wait for a writer
    assert "loop.yaml: " in refusal(str(project / "loop.yaml"), project)


def test_no_more_is_read_than_can_be_allowed(project: Path) -> None:
    path = project / "big.yaml"
    with path.open("wb") as stream:
        stream.truncate(1 << 34)  # sparse: 16 GiB that would fill the memory
    assert len(find(Kind.SEARCH_SPACE, str(path)).content) == MAX_YAML_BYTES + 1


LOAD = "from partitune.spec.search_space import SearchSpace; print(SearchSpace.load('tiny').error('model', text=''))"


def load_in(folder: Path, place: Path) -> str:
    """Load `tiny` in a new process that finds the package at `place` only."""
    env = {**os.environ, "PYTHONPATH": str(place), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_catalog_is_found_inside_an_installed_package_and_an_archive(tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(PACKAGE, site / "partitune", ignore=shutil.ignore_patterns("__pycache__", "_catalog"))
    shutil.copytree(PACKAGE.parent / "search_spaces", site / "partitune" / "_catalog" / "search_spaces")
    assert load_in(elsewhere, site).startswith(
        str(site / "partitune" / "_catalog" / "search_spaces" / "tiny.yaml") + ":"
    )
    archive = tmp_path / "partitune.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in site.rglob("*.*"):
            if "__pycache__" not in file.parts:
                packed.write(file, file.relative_to(site))
    assert load_in(elsewhere, archive).startswith(f"{archive}/partitune/_catalog/search_spaces/tiny.yaml:")
