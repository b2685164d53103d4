"""What was published, set up as its users would: data that ship, a problem, and one figure of its simulation.

Decision: a published set-up goes the way of a search space, from the reader of its keys to the simulator's driver, so
that nothing is held against a measurement which a user could not ask for.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from partitune.candidate import Candidate, FlagValue
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.models.published import find_model
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.spec.search_space import SearchSpace


def shipped(name: str) -> str:
    """Text of a data file that ships with the package."""
    return resources.files("partitune.fidelity").joinpath("data", name).read_text("utf-8")


def shipped_rows(name: str) -> Iterator[dict[str, str]]:
    """Rows of a CSV file that ships with the package; lines that start with # say where it comes from."""
    yield from csv.DictReader(line for line in shipped(name).splitlines() if not line.startswith("#"))


def published_problem(space: Mapping[str, Any]) -> Problem:
    """The problem that the keys of a search space pose, kind and name left out.

    Raises:
        SpecError: keys that no search space may have.
    """
    return resolve(SearchSpace.from_mapping({"kind": "search_space", "name": "validation", **space}))


def simulated(
    problem: Problem, partition: tuple[int, ...] | None = None, environment: Mapping[str, FlagValue] | None = None
) -> Mapping[str, float]:
    """Figures of the simulated run by metric, of the engine's own partition unless one is given.

    Raises:
        RunError: the candidate cannot run.
    """
    candidate = Candidate(partition or problem.default_partition, environment or {})
    return SimulatorDriver(problem).measure(candidate).metrics


def model_with(name: str, changes: Mapping[str, object], path: Path) -> str:
    """What a search space calls a model: its catalog name, or where there are `changes` the path of a config with them.

    Args:
        name: a catalog name or repository; one that no catalog has is left to the reader.
        changes: keys of the config, or of the text model inside a multimodal one.
        path: where the changed config is written.
    """
    known = find_model(name)
    if known is None or not changes:
        return known.name if known else name
    config = json.loads(known.config_text())
    config.get("text_config", config).update(changes)
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)
