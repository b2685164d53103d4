"""Runners: the shipped ones load, wrong ones say what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitune.catalog import Kind, YamlText, shipped
from partitune.errors import SpecError
from partitune.spec.runner import Runner, load_runner
from partitune.spec.schema import json_schema

GOOD = "kind: runner\nname: here\ndriver: simulator\nworkers: 4\ntimeout_s: 30\n"


def read(text: str) -> Runner:
    return Runner.from_yaml(YamlText(text.encode(), "r.yaml", None))


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(str(shipped(Kind.RUNNER))).iterdir()))
def test_every_shipped_runner_loads_and_survives_storage(name: str) -> None:
    runner = load_runner(name)
    assert runner.name == name
    assert Runner.from_mapping(runner.resolved()).resolved() == runner.resolved()


def test_values_and_defaults() -> None:
    runner = read(GOOD)
    assert (runner.driver, runner.workers, runner.timeout_s) == ("simulator", 4, 30.0)
    assert runner.where("workers") == "r.yaml:4"
    assert read("kind: runner\nname: here\ndriver: simulator\n").workers == "auto"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "kind: runner",
            "kind: search_space",
            "r.yaml:1: kind: found a search space; allowed: runner, as a runner is wanted",
        ),
        ("driver: simulator", "driver: vlm", "r.yaml:3: driver: found the text 'vlm'; allowed: simulator"),
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


def test_the_schema_knows_the_keys() -> None:
    schema = json_schema(Kind.RUNNER)
    assert set(schema["properties"]) == {"kind", "name", "description", "driver", "workers", "timeout_s"}
    assert schema["additionalProperties"] is False
