"""Runners: the shipped ones load, wrong ones say what is allowed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from partitune.errors import SpecError
from partitune.spec.catalog import Kind, YamlText, shipped
from partitune.spec.runner import Runner, fields_of_text, filled

GOOD = "kind: runner\nname: here\ndriver: simulator\nworkers: 4\ntimeout_s: 30\n"


def read(text: str) -> Runner:
    return Runner.from_yaml(YamlText(text.encode(), "r.yaml", None))


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(str(shipped(Kind.RUNNER))).glob("*.yaml")))
def test_every_shipped_runner_loads_and_survives_storage(name: str) -> None:
    runner = Runner.load(name)
    assert runner.name == name
    assert Runner.from_mapping(runner.resolved()).resolved() == runner.resolved()


def test_what_the_examples_bring_along_is_well_formed() -> None:
    folder = Path(str(shipped(Kind.RUNNER)))
    manifest = (folder / "kubernetes" / "job.yaml").read_text()
    for name, value in (("NAME", "partitune-1"), ("PORT", "8000"), ("GPUS", "4")):  # as measure.sh does
        manifest = manifest.replace(name, value)
    job = yaml.safe_load(manifest)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert (job["metadata"]["name"], job["spec"]["backoffLimit"]) == ("partitune-1", 0)
    assert container["command"] == ["bash", "/trial/pod.sh", "partitune-1", "8000"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    scripts = sorted(folder.rglob("*.sh"))
    assert [script.name for script in scripts] == ["measure.sh", "pod.sh", "job.sh", "measure.sh"]
    for script in scripts:
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_values_and_defaults() -> None:
    runner = read(GOOD)
    assert (runner.driver, runner.workers, runner.timeout_s) == ("simulator", 4, 30.0)
    assert str(runner.error("workers", text="x")) == "r.yaml:4: workers: x"
    assert read("kind: runner\nname: here\ndriver: simulator\n").workers == "auto"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "kind: runner",
            "kind: search_space",
            "r.yaml:1: kind: found a search space; allowed: runner, as a runner is wanted",
        ),
        (
            "driver: simulator",
            "driver: site.txt:Mine",
            "r.yaml:3: driver: found the text 'site.txt:Mine'; allowed: sim",
        ),
        (
            "driver: simulator",
            "driver: simulator\nport: 3",
            "r.yaml:4: port: found beside driver simulator, which does",
        ),
        ("driver: simulator", "driver: command", "r.yaml:1: command: missing; allowed: the words that measure one"),
        (
            "driver: simulator",
            "driver: command\ncommand: [run]",
            "r.yaml:4: command: found no {result}; allowed: words",
        ),
        (
            "driver: simulator",
            "driver: command\ncommand: [run, '{resul}']",
            "r.yaml:4: command: found {resul}, did you mean result?; allowed: {partition}, {env_file}",
        ),
        (
            "driver: simulator",
            "driver: command\ncommand: run it",
            "r.yaml:4: command: found the text 'run it'; allowed:",
        ),
        ("driver: simulator", "driver: vllm\nenv: {HF_TOKEN: hf_x}", "r.yaml:4: env.HF_TOKEN: holds a secret, and"),
        (
            "driver: simulator",
            "driver: vllm\nenv: {A: x}\nforward_env: [A]",
            "r.yaml:5: forward_env: found A, which env sets as well; allowed: one of the two",
        ),
        ("driver: simulator", "driver: vllm\nport: 0", "r.yaml:4: port: found the number 0; allowed: a port from 1 to"),
        (
            "driver: simulator",
            "driver: vllm\nlimits_s: {lod: 3}",
            "r.yaml:4: limits_s.lod: unknown key, did you mean load",
        ),
        (
            "workers: 4",
            "workers: 0",
            "r.yaml:4: workers: found the number 0; allowed: a whole number from 1 to 1024, or auto",
        ),
        ("workers: 4", "workers: '4'", "r.yaml:4: workers: found the text '4' (remove the quotes); allowed"),
        ("workers: 4", "worker: 4", "r.yaml:4: worker: unknown key, did you mean workers?; allowed: kind, name,"),
        ("timeout_s: 30", "timeout_s: 0", "r.yaml:5: timeout_s: found the number 0; allowed: a number more than 0"),
    ],
)
def test_faults(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(GOOD.replace(old, new))
    assert str(caught.value).startswith(message)


def test_words_are_filled_in_and_stay_words() -> None:
    words = ("{partition}", "--x={port}{{a}}", "plain")
    assert filled(words, {"partition": "1,2 ; rm -rf $HOME", "port": "8000"}) == (
        "1,2 ; rm -rf $HOME",
        "--x=8000{a}",
        "plain",
    )
    assert fields_of_text("{a} {{b}} {") == ("a", "")


def test_the_schema_knows_the_keys() -> None:
    schema = Runner.json_schema()
    assert set(schema["properties"]) == set(Runner.model_fields)
    assert schema["additionalProperties"] is False
