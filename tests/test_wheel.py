"""The real wheel and the real source distribution, installed outside the checkout and run there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

import partitune

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Built:
    """What `python -m build` made."""

    wheel: Path
    wheel_from_sdist: Path
    sdist: Path


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Stdout of a command that sees nothing of this checkout or of the user's settings."""
    kept = {key: os.environ[key] for key in ("PATH", "TMPDIR", "SYSTEMROOT") if key in os.environ}
    environment = {**kept, "HOME": str(cwd), **variables}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Without isolation: hatchling is one of the tools for developers, and nothing is downloaded."""
    out = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir")
    run(*build, out, ROOT, cwd=out)  # the sdist, and a wheel from it
    run(*build, out / "direct", "--wheel", ROOT, cwd=out)
    (sdist,), (from_sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl"), (out / "direct").glob("*.whl")
    return Built(wheel, from_sdist, sdist)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that sees the packages this test runs with, but not partitune."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    own = Path(sysconfig.get_path("purelib", "venv", paths))
    # A folder named in a .pth file is searched, but its own .pth files (an editable install of partitune) are not read.
    packages = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (own / "packages-of-the-tests.pth").write_text("\n".join(packages))
    return Path(sysconfig.get_path("scripts", "venv", paths)) / "python"


@pytest.fixture(scope="module")
def installed(built: Built, bare: Path) -> Path:
    """The `partitune` command of an environment in which the wheel was installed by pip."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", bare, "install", "--quiet")
    run(*pip, "--no-deps", "--no-index", built.wheel, cwd=bare.parent)
    return bare.parent / "partitune"


def listed(text: str) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in json.loads(text)["files"]}


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def test_only_partitune_is_installed_and_all_of_it(built: Built) -> None:
    metadata = f"partitune-{partitune.__version__}.dist-info"
    names = contents(built.wheel)
    assert {name.split("/")[0] for name in names} == {"partitune", metadata}
    package = {path.relative_to(ROOT) for path in (ROOT / "partitune").rglob("*") if path.suffix != ".pyc"}
    wanted = {str(path) for path in package if (ROOT / path).is_file()}
    for folder in ("search_spaces", "runners"):
        wanted |= {f"partitune/_catalog/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*.*")}
    assert {name for name in names if name.startswith("partitune/")} == wanted
    assert len([name for name in names if name.startswith("partitune/models/configs/")]) > 40
    assert {"partitune/py.typed", "partitune/costs/fitted_constants.json"} <= names
    assert {f"{metadata}/licenses/LICENSE", f"{metadata}/licenses/NOTICE"} <= names


def test_the_source_distribution_builds_the_same_wheel_and_holds_the_tests(built: Built) -> None:
    assert contents(built.wheel_from_sdist) == contents(built.wheel)
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "NOTICE",
        "Makefile",
        "pyproject.toml",
        "tests/test_wheel.py",
    } <= names
    assert not [name for name in names if name.startswith((".venv", "results.db", "deploy."))]


def test_the_wheel_brings_its_catalog_and_lists_it(installed: Path, tmp_path: Path) -> None:
    entries = listed(run(installed, "list", "--json", cwd=tmp_path))
    wanted = {path.stem for folder in ("search_spaces", "runners") for path in (ROOT / folder).glob("*.yaml")}
    assert set(entries) == wanted
    for name, entry in entries.items():
        assert entry["origin"] == "shipped", name
        assert "/partitune/_catalog/" in entry["file"], name
        assert Path(entry["file"]).is_relative_to(installed.parent.parent), name


def test_the_wheel_searches_and_exports_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    search = (installed, "search", "tiny", "--pool", "local", "--trials", "3", "--quiet", "--json")
    found = json.loads(run(*search, cwd=tmp_path).splitlines()[-1])
    assert found["trials"] == {"ok": 3, "infeasible": 0, "failed": 0, "invalid": 0, "lost": 0}
    run(installed, "export", "tiny", "-o", "deploy.env", cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"results.db", "deploy.env", "deploy.yaml"}
    assert "VLLM_PP_LAYER_PARTITION=" in (tmp_path / "deploy.env").read_text()


def test_the_wheel_is_used_from_python(installed: Path, bare: Path, tmp_path: Path) -> None:
    code = """
import partitune, json
space = partitune.load_search_space("tiny", {"budget.trials": 3})
explained, solved, compared = partitune.explain(space), partitune.solve(space), partitune.layouts(space)
summary = partitune.search(space)
exported = partitune.export("deploy.env")
rows = partitune.load_study()
print(json.dumps([partitune.__file__, sum(explained.candidate.partition), len(rows), exported.config.name]))
assert solved.best is not None and compared.running and summary.default.number == rows[0]["trial"] == 0
"""
    file, layers, trials, config = json.loads(run(bare, "-P", "-c", code, cwd=tmp_path))
    assert Path(file).is_relative_to(installed.parent.parent)
    assert (layers, trials, config) == (36, 3, "deploy.yaml")


def test_a_checkout_finds_its_own_files(bare: Path, tmp_path: Path) -> None:
    entries = listed(run(bare, "-P", "-m", "partitune", "list", "--json", cwd=tmp_path, PYTHONPATH=str(ROOT)))
    assert entries["tiny"]["file"] == str(ROOT / "search_spaces" / "tiny.yaml")


def test_an_editable_install_finds_the_files_of_its_checkout(tmp_path: Path) -> None:
    try:
        origin = json.loads(distribution("partitune").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    if not origin.get("dir_info", {}).get("editable"):
        pytest.skip("partitune is not installed editable here; `make test` does")
    entries = listed(run(sys.executable, "-m", "partitune", "list", "--json", cwd=tmp_path))
    assert entries["tiny"]["file"] == str(ROOT / "search_spaces" / "tiny.yaml")
