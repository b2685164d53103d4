"""What a job is shipped: this partitune and the files that the study names, whatever else lies around."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from partitune.errors import SpecError
from partitune.jobs import package
from partitune.jobs.package import FILES, Shipment, as_yaml, digest_of, pack, package_files
from partitune.planning.resolve import resolve
from partitune.spec.catalog import SHIPPED_FILES, Kind, list_catalog
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from tests.project_folder import make_project


@pytest.fixture
def space_file(tmp_path: Path) -> Path:
    return make_project(tmp_path / "venv" / "home")  # `venv`: a name that Ray leaves out of folders it packs


def packed(space_file: Path) -> Shipment:
    return pack(SearchSpace.load(str(space_file)), Runner.load("simulator"))


def test_only_named_files_travel_and_ignore_files_do_not_matter(space_file: Path) -> None:
    shipment = packed(space_file)
    home = f"{FILES}{space_file.parent}"
    assert set(shipment.files) == {
        "search_spaces/mine.yaml",
        "runners/simulator.yaml",
        f"{home}/model/config.json",
        f"{home}/load/trace.jsonl",
    }
    with zipfile.ZipFile(io.BytesIO(shipment.archive())) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == shipment.files
    assert len(shipment.archive()) + sum(map(len, shipment.package.values())) < 5 * 2**20
    content = [*shipment.files.values(), *shipment.package.values()]
    assert list(shipment.sizes.values()) == sorted(map(len, content), reverse=True)


def test_what_a_runner_names_beside_it_travels_to_the_same_place(space_file: Path, tmp_path: Path) -> None:
    (tmp_path / "step").mkdir()
    for name in ("mine.py", "step/run.sh", "step/node.sh", "other.py"):
        (tmp_path / name).write_text(name)
    words = ["bash", "{folder}/step/run.sh", "{folder}/step", "{result}", "{folder}/../outside", "{folder}"]
    for settings, expected in (
        ({"driver": "mine.py:Mine"}, {"runners/mine.py"}),
        ({"driver": "command", "command": words}, {"runners/step/run.sh", "runners/step/node.sh"}),
    ):
        runner = Runner.from_mapping({"name": "mine", **settings}, folder=tmp_path)
        found = pack(SearchSpace.load(str(space_file)), runner).files
        assert {path for path in found if path.startswith("runners/")} == {"runners/mine.yaml", *expected}
    assert found["runners/step/run.sh"] == b"step/run.sh"


def test_equal_files_give_an_equal_archive(space_file: Path) -> None:
    assert packed(space_file).archive() == packed(space_file).archive()


def test_what_the_quantisation_file_says_travels_with_the_config(space_file: Path) -> None:
    (space_file.parent / "model" / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    assert f"{FILES}{space_file.parent}/model/hf_quant_config.json" in packed(space_file).files


def test_in_the_job_a_shipped_file_stands_for_the_one_at_home(
    space_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = SearchSpace.load(str(space_file))
    at_home, shipment = resolve(space), packed(space_file)
    space_file.parent.rename(tmp_path / "elsewhere")
    with pytest.raises(SpecError):
        resolve(space)

    job = tmp_path / "job"
    with zipfile.ZipFile(io.BytesIO(shipment.archive())) as archive:
        archive.extractall(job)
    monkeypatch.chdir(job)
    monkeypatch.setenv(SHIPPED_FILES, FILES)
    in_job = SearchSpace.load(shipment.space)
    assert in_job.resolved() == space.resolved()  # so a study can be gone on with from either side
    there = resolve(in_job)
    assert there.architecture.layers == at_home.architecture.layers
    assert there.architecture.name == at_home.architecture.name == "model"
    assert there.load.requests == at_home.load.requests
    assert there.model == at_home.model


@pytest.mark.parametrize("name", [entry.name for entry in list_catalog(Kind.SEARCH_SPACE)])
def test_a_shipped_search_space_reads_as_the_one_at_home(name: str, tmp_path: Path) -> None:
    space = SearchSpace.load(name)
    file = tmp_path / "space.yaml"
    file.write_bytes(as_yaml(space.resolved()))
    assert SearchSpace.load(str(file)).resolved() == space.resolved()


def test_values_that_look_like_others_survive(tmp_path: Path) -> None:
    plain = SearchSpace.load("tiny").resolved()
    description = 'yes: 010 # "quoted" \\n\nsecond line é 全'
    plain |= {"description": description, "slo": {"ttft_p99_ms": 1e-06}}
    plain["engine"]["flags"] = {"a": "1e3", "b": "0o17", "c": "yes", "d": "null", "e": "12:30", "f": 1e22, "g": True}
    file = tmp_path / "space.yaml"
    file.write_bytes(as_yaml(SearchSpace.from_mapping(plain).resolved()))
    read = SearchSpace.load(str(file))
    assert read.resolved() == SearchSpace.from_mapping(plain).resolved()
    assert read.description == description


def test_the_shipped_package_runs_by_itself_and_knows_what_it_is(tmp_path: Path) -> None:
    shipment = pack(SearchSpace.load("tiny"), Runner.from_mapping({"name": "r", "driver": "simulator"}))
    shipment.unpack_package(tmp_path)
    version, _, digest = shipment.label.partition("+")
    script = (
        "import partitune, partitune.jobs.package as p; print(partitune.__version__, p.digest_of(p.package_files()))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def run(*command: str) -> str:
        return subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert run("-c", script).split() == [version, digest]
    assert "kimi-k3-pp8-tp2" in run("-m", "partitune", "list")
    assert not [path for path in shipment.package if "__pycache__" in path]


def test_the_digest_changes_with_any_byte_and_any_name() -> None:
    files = package_files()
    changed = {**files, "cli.py": files["cli.py"] + b"\n"}
    renamed = {("cli2.py" if path == "cli.py" else path): content for path, content in files.items()}
    assert len({digest_of(files), digest_of(changed), digest_of(renamed)}) == 3


def test_too_much_for_ray_is_refused_by_name(space_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "MAX_BYTES", 100)
    with pytest.raises(SpecError, match=r"load/trace.jsonl alone .* at most 0 MiB"):
        packed(space_file)
