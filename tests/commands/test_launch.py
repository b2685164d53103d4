"""`partitune launch`: what it prints is what it would start, and what it starts is measured; `search` does the same."""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from partitune.cli import main
from tests.fake_engine import PROGRAM
from tests.fake_setup import LIMITS, SPACE
from tests.ray_nodes import processes_with


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with a search space and a runner; what is started is recorded here too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write("fake.yaml", {**SPACE, "budget": {"trials": 3, "screen": 20, "finalists": 0}})
    write("runner.yaml", settings())
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield tmp_path
    for number, handler in before.items():
        signal.signal(number, handler)
    assert processes_with(str(tmp_path / "state")) == []


def settings(**given: object) -> dict[str, object]:
    tool = {"command": list(PROGRAM), "warmup_requests": 2}
    base = {"kind": "runner", "name": "runner", "driver": "vllm", "engine_command": list(PROGRAM)}
    return {**base, "limits_s": dict(LIMITS), "benchmark": tool, **given}


def write(name: str, content: dict[str, object]) -> None:
    Path(name).write_text(yaml.safe_dump(content))


def test_a_dry_run_prints_what_a_shell_would_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "fake.yaml", "--runner", "runner.yaml", "--partition", "20,16", "--dry-run"]) == 0
    text = capsys.readouterr().out
    commands = [shlex.split(part) for part in text.replace("\\\n", " ").splitlines() if part.startswith("env ")]
    assert len(commands) == 2  # the server, and the load generator
    assert main(["launch", "fake.yaml", "--runner", "runner.yaml", "--partition", "20,16", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["partition"] == [20, 16]
    (server,) = plan["processes"]
    assert server["env"]["VLLM_PP_LAYER_PARTITION"] == "20,16"
    assert commands[0][-len(server["argv"]) :] == server["argv"]
    assert "VLLM_PP_LAYER_PARTITION=20,16" in commands[0]
    assert commands[1][-len(plan["load"]["argv"]) :] == plan["load"]["argv"]
    assert "8000 stands for a free port" in plan["notes"]
    assert not Path("state").exists()  # nothing was started, nothing recorded


def test_a_secret_stands_by_name_in_a_dry_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abc123")
    monkeypatch.setenv("PROXY_PASSWORD", "hunter2")
    further = {"env": {"HTTP_PROXY": "http://me:hunter2@proxy"}, "engine_command": [*PROGRAM, "hunter2"]}
    write("runner.yaml", settings(forward_env=["HF_TOKEN"], **further))
    for form in ([], ["--json"]):
        assert main(["launch", "fake.yaml", "--runner", "runner.yaml", "--dry-run", *form]) == 0
        text = capsys.readouterr().out
        assert not re.search("hf_abc123|hunter2", text)
        assert ('"HF_TOKEN": "***"' if form else 'HF_TOKEN="$HF_TOKEN"') in text


def test_a_dry_run_over_nodes_stands_in_for_their_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "kimi-k3-pp8-tp2-h200", "--runner", "vllm-2node", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    # 192.0.2.0/24 is reserved for examples (RFC 5737).
    assert [process["host"] for process in plan["processes"]] == ["192.0.2.1", "192.0.2.2"]
    assert plan["stage_nodes"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert "192.0.2.1, 192.0.2.2 stand for the nodes that Ray will give" in plan["notes"]


def test_sglang_starts_on_two_nodes_as_it_was_studied(capsys: pytest.CaptureFixture[str]) -> None:
    """SGLang 0.5.23 `srt/entrypoints/engine.py`: the same words on every node but its rank, stages in rank order."""
    words = ("launch", "kimi-k3-pp8-tp2-sglang", "--runner", "sglang-2node", "--partition", "11,11,12,12,12,12,12,11")
    assert main([*words, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["stage_nodes"] == [0, 0, 0, 0, 1, 1, 1, 1]
    for node, process in enumerate(plan["processes"]):
        argv = process["argv"]
        assert argv[:3] == ["python", "-m", "sglang.launch_server"]
        sizes = ("--tp-size", "--pp-size", "--nnodes", "--node-rank")
        assert [argv[argv.index(word) + 1] for word in sizes] == ["2", "8", "2", str(node)]
        assert argv[argv.index("--dist-init-addr") + 1].startswith("192.0.2.1:")
        assert process["env"]["SGLANG_PP_LAYER_PARTITION"] == "11,11,12,12,12,12,12,11"


def test_a_dry_run_of_a_command_shows_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "llama-70b-pp4", "--runner", "slurm", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    files = {Path(name).name: text for name, text in plan["files"].items()}
    assert "VLLM_PP_LAYER_PARTITION=20,20,20,20" in files["deploy.env"].splitlines()
    assert plan["processes"][0]["argv"][:1] == ["bash"]


def test_one_candidate_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["launch", "fake.yaml", "--runner", "runner.yaml", "--partition", "20,16", "--set", "max_num_seqs=8"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["partition"], found["knobs"], found["outcome"]) == ([20, 16], {"max_num_seqs": 8}, "ok")
    assert found["measurement"]["simulated"] is False
    assert found["measurement"]["metrics"]["output_throughput_tok_s"] > 0


def test_a_candidate_that_fails_is_a_no(capsys: pytest.CaptureFixture[str]) -> None:
    write("runner.yaml", settings(env={"FAKE_ENGINE_ACT": "oom-load"}))
    assert main(["launch", "fake.yaml", "--runner", "runner.yaml"]) == 1
    assert capsys.readouterr().out.startswith("infeasible ")
    assert main(["launch", "fake.yaml", "--runner", "runner.yaml", "--set", "max_num_seqs=0", "--dry-run"]) == 2
    assert "max_num_seqs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("space", "runner", "message"),
    [
        ({}, {"driver": "simulator"}, "--runner: runner starts nothing; see `partitune explain`"),
        (
            {},
            {"engine_command": ["/nowhere/vllm"]},
            "engine_command: /nowhere/vllm serve --help=all on 127.0.0.1 ended with",
        ),
        ({"knobs": {"stream_interval": [1, 2]}}, {}, "it has no --stream-interval"),  # not a flag of the fake engine
    ],
)
def test_what_would_fail_every_trial_is_input(
    space: dict[str, object], runner: dict[str, object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write("fake.yaml", {**SPACE, **space})
    kept = {} if runner.get("driver") == "simulator" else settings()
    write("runner.yaml", {"kind": "runner", "name": "runner", **kept, **runner})
    assert main(["launch", "fake.yaml", "--runner", "runner.yaml"]) == 2
    assert message in capsys.readouterr().err


def test_a_search_measures_every_trial_and_stores_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abc123")
    write("runner.yaml", settings(forward_env=["HF_TOKEN"]))
    assert main(["search", "fake.yaml", "--runner", "runner.yaml", "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["trials"]["ok"] == 3, found["trials"]
    files = [path for path in Path().rglob("*") if path.is_file()]
    assert len(files) > 5  # the database, the trials' logs and results
    assert not [path for path in files if b"hf_abc123" in path.read_bytes()]


def test_item_19_what_every_start_fails_of_is_started_twice_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight of eight were started. What is stored stays, and a rerun tries what may have been mended."""
    write("fake.yaml", {**SPACE, "budget": {"trials": 8, "screen": 20, "finalists": 0}})
    write("runner.yaml", settings(env={"FAKE_ENGINE_ACT": "unsupported"}))
    words = ["search", "fake.yaml", "--runner", "runner.yaml", "--quiet", "--json"]
    assert main(words) == 1
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sum(found["trials"].values()) == 2, found["trials"]
    assert found["stopped"].startswith("every start fails alike, whatever varies: the engine cannot run this model")
    log = Path(found["stopped"].split("its log: ")[1])
    assert "the engine cannot run this model" in log.read_text()
    assert main(words) == 1
    assert sum(json.loads(capsys.readouterr().out.splitlines()[-1])["trials"].values()) == 3
    write("runner.yaml", settings())
    assert main(words) == 0  # mended: the same command goes on
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sum(found["trials"].values()) == 8
    assert found["trials"]["ok"] == 5


def test_a_secret_that_an_engine_quotes_is_masked_wherever_it_comes_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the database, the log, stdout, stderr, --csv and the logs of the trials; not only of `forward_env`."""
    monkeypatch.setenv("HF_TOKEN", "hf_abc123")
    monkeypatch.setenv("HUB_PASSWORD", "hunter/2 \u00fc")
    for name, forwarded in (("HF_TOKEN", ["HF_TOKEN"]), ("HUB_PASSWORD", []), ("VLLM_API_KEY", [])):
        write("runner.yaml", settings(forward_env=forwarded, env={"FAKE_ENGINE_ACT": f"quotes:{name}"}))
        assert main(["launch", "fake.yaml", "--runner", "runner.yaml"]) == 1
        assert main(["search", "fake.yaml", "--study", name.lower(), "--runner", "runner.yaml"]) == 1
        assert main(["pareto", name.lower(), "--csv"]) == 0
        said = "".join(capsys.readouterr())
        assert said.count("Authorization: *** is not valid") > 3
        logs = [path.read_text() for path in Path("state").rglob("*.log")]
        assert any("Authorization: **" in log for log in logs)
        key = {log.split("Authorization: ")[1].split(" is not")[0] for log in logs if "Authorization: " in log}
        assert all(set(quoted) == {"*"} for quoted in key), key
        assert not {"hf_abc123", "hunter/2"} & set(said.split())
    for path in Path().rglob("*"):
        assert not path.is_file() or not any(secret in path.read_bytes() for secret in (b"hf_abc123", b"hunter/2"))
