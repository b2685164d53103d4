"""A mix of loads on a started server and under a command of the site: the fake engine, real processes and streams."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from partitune.candidate import Outcome
from partitune.cli import main
from partitune.errors import SpecError
from partitune.execution.command import CommandDriver
from partitune.execution.driver import run
from partitune.execution.processes.node import LocalNodes
from partitune.execution.server.setup import Setup
from partitune.execution.server.setup_checks import setup_for
from partitune.planning.resolve import resolve
from partitune.spec.metrics import by_load
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from tests.execution.test_command import SCRIPT, WORDS
from tests.fake_engine import PROGRAM
from tests.fake_setup import LIMITS, SPACE, Bench, candidate

CHAT = {"kind": "random", "requests": 16, "prompt_tokens": 16, "output_tokens": 12, "concurrency": 8}
LONG = {"kind": "random", "requests": 8, "prompt_tokens": 64, "output_tokens": 30, "concurrency": 2}
RATE = "output_throughput_tok_s"


def mix(over: str = "mean") -> dict[str, object]:
    weight = {"weight": 3} if over == "mean" else {}
    return {"kind": "mix", "over": over, "parts": [{**CHAT, "name": "chat", **weight}, {**LONG, "name": "long"}]}


def setup_of(space: dict[str, object] | None = None, **settings: object) -> Setup:
    posed = SearchSpace.from_mapping({**SPACE, "workload": mix(), **(space or {})}, source="fake.yaml")
    given = {"name": "fake", "driver": "vllm", "engine_command": list(PROGRAM), "limits_s": LIMITS, **settings}
    return setup_for(resolve(posed), posed, Runner.from_mapping(given, source="runner.yaml"))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    assert made.orphans() == []


def sent(bench: Bench) -> list[tuple[int, int]]:
    """Requests and output tokens of every measured window, in the order of their end."""
    files = sorted((bench.folder / "trials").glob("*/window-*.json"), key=lambda path: path.stat().st_mtime_ns)
    return [
        (found["num_prompts"], found["total_output_tokens"]) for found in map(json.loads, map(Path.read_text, files))
    ]


def test_one_server_is_measured_under_every_load(bench: Bench) -> None:
    result = run(bench.driver(setup_of(benchmark={"windows": 2, "warmup_requests": 2})), candidate())
    assert result.outcome is Outcome.OK, result.reason
    assert len({path.parent for path in (bench.folder / "trials").glob("*/window-*.json")}) == 1
    assert sent(bench) == [(16, 192), (8, 240)] * 2  # both loads, and then both again
    assert result.measurement is not None
    whole, parts = by_load(result.measurement.metrics)
    assert set(parts) == {"chat", "long"}
    assert whole[RATE] == pytest.approx((3 * parts["chat"][RATE] + parts["long"][RATE]) / 4)
    assert whole["ttft_p99_ms"] == pytest.approx((3 * parts["chat"]["ttft_p99_ms"] + parts["long"]["ttft_p99_ms"]) / 4)
    assert whole["launch_s"] > 0
    assert "launch_s" not in parts["chat"]


@pytest.mark.parametrize(("over", "windows", "outcome"), [("mean", 4, Outcome.OK), ("worst", 2, Outcome.INFEASIBLE)])
def test_a_trial_ends_early_only_where_the_mix_cannot_be_saved(
    bench: Bench, over: str, windows: int, outcome: Outcome
) -> None:
    made = setup_of({"workload": mix(over)}, benchmark={"windows": 2, "warmup_requests": 0})
    first = run(bench.driver(made), candidate(partition=(18, 18)))
    assert first.measurement is not None
    done, (_, parts) = len(sent(bench)), by_load(first.measurement.metrics)
    rates = sorted(part["request_throughput_req_s"] for part in parts.values())
    assert rates[0] < rates[1] / 2  # fewer at once, and longer ones
    # Kept by the mean by far, and missed by the slower load by more than a factor of two.
    limit = {"request_throughput_req_s": 2.5 * rates[0] if over == "worst" else (3 * rates[1] + rates[0]) / 8}
    strict = replace(made, problem=replace(made.problem, limits=limit))
    assert run(bench.driver(strict), candidate()).outcome is outcome
    assert len(sent(bench)) - done == windows


def test_loads_have_seeds_that_never_meet() -> None:
    made = setup_of(benchmark={"windows": 3, "seed": 1})
    seeds = [seed for repeat in range(50) for part in made.repeated(repeat).loads for seed in part.window_seeds]
    seeds += [part.warmup_seed for repeat in range(50) for part in made.repeated(repeat).loads]
    assert len(seeds) == 50 * 2 * 4 == len(set(seeds[: 50 * 2 * 3])) + 50 * 2
    assert not set(seeds[: 50 * 2 * 3]) & set(seeds[50 * 2 * 3 :])
    assert made.repeated(2).loads[0].window_seeds == (7, 8, 9)  # as without a mix
    assert max(seeds) < 2**31


def test_a_command_runs_once_a_load(tmp_path: Path) -> None:
    script = tmp_path / "measure.py"
    script.write_text(SCRIPT)
    short = {
        "kind": "mix",
        "parts": [{**CHAT, "name": "chat", "weight": 3}, {**LONG, "name": "long", "output_tokens": 12}],
    }
    made = setup_of(
        {"workload": short},
        driver="command",
        engine_command=[],
        command=[sys.executable, "-S", "-E", str(script), *WORDS],
    )
    found = CommandDriver(made, LocalNodes(tmp_path / "state")).measure(candidate())
    assert len(list(tmp_path.rglob("result.json"))) == 2
    assert found.metrics[f"chat/{RATE}"] == 16 * 12 / 4  # the script takes four seconds for any load
    assert found.metrics[f"long/{RATE}"] == 8 * 12 / 4
    assert found.metrics[RATE] == (3 * 48 + 24) / 4


def test_a_tool_is_asked_about_every_load(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"timestamp": 0, "input_length": 4, "output_length": 4, "hash_ids": [1]}\n')
    parts = [{**CHAT, "name": "chat"}, {"kind": "trace", "file": str(tmp_path / "t.jsonl"), "name": "night"}]
    with pytest.raises(SpecError, match=r"sglang replays no trace; allowed: tool vllm \(load night of the mix\)"):
        setup_of({"workload": {"kind": "mix", "parts": parts}}, benchmark={"tool": "sglang"})


def test_a_dry_run_prints_every_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fake.yaml").write_text(json.dumps({**SPACE, "workload": mix()}))
    runner = {"kind": "runner", "name": "r", "driver": "vllm", "engine_command": list(PROGRAM)}
    (tmp_path / "r.yaml").write_text(json.dumps(runner))
    assert main(["launch", "fake.yaml", "--runner", "r.yaml", "--dry-run", "--json"]) == 0
    loads = [one["argv"] for one in json.loads(capsys.readouterr().out)["loads"]]
    assert [argv[argv.index("--num-prompts") + 1] for argv in loads] == ["16", "8"]
    assert main(["launch", "fake.yaml", "--runner", "r.yaml", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("# load generator, on node 0") == 2
