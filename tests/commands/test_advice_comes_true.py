"""Every command that `partitune explain` prints as advice, run again by a fresh process: the gain comes true."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from partitune.cli import main
from partitune.spec.catalog import Kind, list_catalog
from partitune.spec.metrics import METRICS
from partitune.spec.search_space import SearchSpace

SPACES = [entry.name for entry in list_catalog(Kind.SEARCH_SPACE, project=Path("/nonexistent"))]
SETTINGS: dict[str, tuple[tuple[str, ...], ...]] = {
    "vllm": ((), ("--set", "max_num_batched_tokens=1024"), ("--set", "async_scheduling=false")),
    "sglang": ((), ("--set", "pp_max_micro_batch_size=4"), ("--set", "chunked_prefill_size=1024")),
}
#: An advice and its command, as they are printed.
ADVICE = re.compile(
    r"^  .+?: (?P<gain>[+-][0-9.]+) % (?P<metric>\w+), .*\n    (?P<command>partitune explain .*)$", re.M
)
#: Runs the command lines of its input one after another, as a shell would.
FRESH = "import shlex, sys; from partitune.cli import main; [main(shlex.split(line)[1:]) for line in sys.stdin]"
#: What a printed gain may be off, as a share: it is rounded to a tenth of a per cent.
OFF = 0.005


def run_again(commands: list[str]) -> list[dict[str, float]]:
    """Metrics of every command line, each with `--json` and without further advice."""
    text = "".join(f"{command} --no-advice --json\n" for command in commands)
    done = subprocess.run([sys.executable, "-c", FRESH], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["metrics"] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("space", SPACES)
def test_the_gain_of_every_printed_command_comes_true(space: str, capsys: pytest.CaptureFixture[str]) -> None:
    claims: list[tuple[str, str, str, float]] = []
    for settings in SETTINGS[SearchSpace.load(space).engine.name]:
        words = ["explain", space, *settings]
        main([*words, "--advice-seconds", "0.6"])
        printed = capsys.readouterr().out
        assert "changes tried" in printed
        asked = shlex.join(["partitune", *words])
        found = [(asked, it["command"], it["metric"], float(it["gain"]) / 100) for it in ADVICE.finditer(printed)]
        assert len(found) == printed.count("    partitune explain "), printed
        claims += found
    commands = list(dict.fromkeys(command for claim in claims for command in claim[:2]))
    metrics = dict(zip(commands, run_again(commands), strict=True)) if commands else {}
    for before, after, metric, gain in claims:
        change = metrics[after][metric] / metrics[before][metric] - 1
        assert (change if METRICS[metric] == "maximize" else -change) == pytest.approx(gain, abs=OFF), after
