"""Commands that read a table load what reading takes: of what simulates, plans, launches and samples, nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from partitune.cli import main

#: Each costs a tenth of a second or more; together they were two thirds of what such a command took.
SLOW = ("numpy", "scipy", "optuna", "ray", "yaml", "sqlalchemy.orm")
WORKING = (
    *("costs", "engines", "execution", "fidelity", "hardware.gpus", "models.reader", "planning", "simulation"),
    *("search.study", "search.loop", "spec.search_space", "analysis.limits", "analysis.explanation"),
)
LOADED = """
import json, sys
from partitune.cli import main
code = main(sys.argv[1:])
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
sys.exit(code)
"""
READERS = [
    *("studies", "studies --json", "status", "status --json", "show", "show --json", "show --trial 1"),
    *("pareto", "pareto --csv", "pareto --json", "list"),
]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("read") / "results.db"
    assert main(["search", "tiny", "--pool", "local", "--quiet", "--trials", "4", "--db", str(file)]) == 0
    return file


@pytest.mark.parametrize("typed", READERS)
def test_what_a_reading_command_loads(typed: str, database: Path) -> None:
    where = [] if typed == "list" else ["--db", str(database)]
    command = [sys.executable, "-c", LOADED, *typed.split(), *where]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = json.loads(done.stderr)
    assert "partitune.cli" in loaded
    unwanted = {*SLOW, *(f"partitune.{name}" for name in WORKING)}
    assert unwanted.isdisjoint(loaded)


def test_the_distance_to_the_limit_is_simulated_when_it_is_asked_for(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "--json", "--db", str(database)]) == 0
    assert json.loads(capsys.readouterr().out)["distance"] is None
    assert main(["show", "--json", "--distance", "--db", str(database)]) == 0
    assert json.loads(capsys.readouterr().out)["distance"]["factors"]
