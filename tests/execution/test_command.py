"""A command as a driver: real scripts as processes, the shipped examples with stand-ins for Slurm and Kubernetes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from partitune.candidate import Candidate
from partitune.errors import BenchmarkFailed, LaunchFailed, NodeLost, OutOfMemory, SpecError, TimedOut
from partitune.execution.choice import choose_driver
from partitune.execution.command import CommandDriver
from partitune.execution.processes.node import LocalNodes
from partitune.execution.server.setup_checks import setup_for
from partitune.planning.resolve import resolve
from partitune.spec.catalog import Kind, shipped
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from tests.engine_output import vllm
from tests.fake_engine import PROGRAM
from tests.fake_setup import SPACE
from tests.ray_nodes import free_ports, processes_with
from tests.scripted_schedulers import ACCEPTED, REFUSED, Cluster, scripted

CANDIDATE = Candidate((20, 16), {"max_num_seqs": 8})
#: Reads what it is given and writes what `vllm bench serve` would.
SCRIPT = """
import json, os, sys
from pathlib import Path
partition, env_file, config, load_file, result = sys.argv[1:]
words = Path(load_file).read_text().splitlines()
number, prompt = (int(words[words.index(word) + 1]) for word in ("--num-prompts", "--random-input-len"))
Path(result + ".seen").write_text(json.dumps({
    "partition": partition, "env": Path(env_file).read_text(), "config": Path(config).read_text(), "words": words,
    "site": os.environ.get("SITE"), "marker": os.environ.get("PARTITUNE_TRIAL"), "argv": sys.argv[1:],
}))
tokens = number * 12
Path(result).write_text(json.dumps({
    "duration": 4.0, "completed": number, "failed": 0, "total_input_tokens": number * prompt,
    "total_output_tokens": tokens, "request_throughput": number / 4, "output_throughput": tokens / 4,
    "total_token_throughput": number * 7.0, "mean_ttft_ms": 10.0, "median_ttft_ms": 9.0, "p99_ttft_ms": 20.0,
    "mean_tpot_ms": 1.0, "median_tpot_ms": 1.0, "p99_tpot_ms": 2.0, "mean_itl_ms": 1.0, "median_itl_ms": 1.0,
    "p99_itl_ms": 2.0, "mean_e2el_ms": 30.0, "median_e2el_ms": 30.0, "p99_e2el_ms": 40.0,
}))
"""
WORDS = ["{partition}", "{env_file}", "{config}", "{load_file}", "{result}"]


def driver(folder: Path, command: list[str], **settings: object) -> CommandDriver:
    space = SearchSpace.from_mapping(SPACE, source="fake.yaml")
    given = {"name": "r", "driver": "command", "command": command, **settings}
    runner = Runner.from_mapping(given, source="r.yaml", folder=folder)
    return CommandDriver(setup_for(resolve(space), space, runner), LocalNodes(folder / "state"))


def python(folder: Path, text: str) -> list[str]:
    script = folder / "measure.py"
    script.write_text(text)
    return [sys.executable, "-S", "-E", str(script), *WORDS]


def test_the_command_gets_files_and_its_result_is_read(tmp_path: Path) -> None:
    measured = driver(tmp_path, python(tmp_path, SCRIPT), env={"SITE": "here $HOME; `id`"}).measure(CANDIDATE)
    assert measured.metrics["output_throughput_tok_s"] == 24 * 12 / 4
    assert not measured.simulated
    (seen,) = tmp_path.rglob("result.json.seen")
    told = json.loads(seen.read_text())
    assert told["partition"] == "20,16"
    assert "VLLM_PP_LAYER_PARTITION=20,16" in told["env"].splitlines()
    assert "max-num-seqs: 8" in told["config"]
    assert told["words"][:2] == ["bench", "serve"]
    assert told["words"][told["words"].index("--result-filename") + 1] == "result.json"
    assert told["site"] == "here $HOME; `id`"  # no shell came near it
    assert told["marker"].partition("/")[0] == Path(told["argv"][4]).parent.name
    assert processes_with(str(tmp_path)) == []


def test_a_result_that_cannot_be_trusted_is_no_measurement(tmp_path: Path) -> None:
    half = SCRIPT.replace('"completed": number,', '"completed": number // 2,')
    with pytest.raises(BenchmarkFailed, match="request_throughput is 6"):
        driver(tmp_path, python(tmp_path, half)).measure(CANDIDATE)
    with pytest.raises(BenchmarkFailed, match=r"result\.json"):
        driver(tmp_path, python(tmp_path, "pass")).measure(CANDIDATE)


def test_what_went_wrong_is_read_from_what_the_command_printed(tmp_path: Path) -> None:
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    printed = vllm(3, "Worker_PP1", f"{said}44.40 GiB of which 1.50 GiB is free.")
    with pytest.raises(OutOfMemory):
        driver(tmp_path, python(tmp_path, f"import sys; print({printed!r}); sys.exit(1)")).measure(CANDIDATE)
    printed = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
    with pytest.raises(NodeLost, match="the site failed, not the candidate, while its processes started"):
        driver(tmp_path, python(tmp_path, f"import sys; print({printed!r}); sys.exit(125)")).measure(CANDIDATE)
    with pytest.raises(LaunchFailed, match="ended with status 7") as caught:
        driver(tmp_path, python(tmp_path, "import sys; print('quota exceeded'); sys.exit(7)")).measure(CANDIDATE)
    assert "quota exceeded" in caught.value.detail


def test_a_command_that_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    text = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
    with pytest.raises(TimedOut, match=r"timeout_s \(1 s\)"):
        driver(tmp_path, python(tmp_path, text), timeout_s=1.0, limits_s={"stop": 1}).measure(CANDIDATE)
    assert processes_with(str(tmp_path)) == []


#: The fake engine takes flags, not --config; the site's `vllm`.
VLLM = f"""#!{sys.executable}
import os, sys, yaml
words = sys.argv[1:]
if "--config" in words:
    place = words.index("--config")
    entries = yaml.safe_load(open(words[place + 1]))
    flags = [word for name, value in entries.items() if name != "model" for word in ("--" + name, str(value))]
    words[place:place + 2] = [entries["model"], *flags]
program = {PROGRAM!r}
os.execv(program[0], [*program, *words])
"""


def site(name: str, cluster: Cluster, folder: Path, **given: object) -> CommandDriver:
    """A shipped example, with the stand-ins first in PATH."""
    (cluster.programs / "vllm").write_text(VLLM)
    (cluster.programs / "vllm").chmod(0o755)
    path = f"{cluster.programs}:{os.environ['PATH']}"
    env = {"PATH": path, "RETRY_PAUSES_S": "0.1 0.1", "POLL_S": "0.2", **dict(given.pop("env", {}))}  # type: ignore[call-overload]
    settings = {"port": free_ports(1)[0], "timeout_s": 60.0, "env": env, **given}
    example = {**Runner.load(name).resolved(), **settings}
    runner = Runner.from_mapping(example, source=f"{name}.yaml", folder=Path(str(shipped(Kind.RUNNER))))
    space = SearchSpace.from_mapping(SPACE, source="fake.yaml")
    return CommandDriver(setup_for(resolve(space), space, runner), LocalNodes(folder / "state"))


@pytest.mark.parametrize("name", ["slurm", "kubernetes"])
def test_the_examples_measure_and_leave_nothing(name: str, tmp_path: Path) -> None:
    with scripted(tmp_path / "cluster") as cluster:
        measured = site(name, cluster, tmp_path).measure(CANDIDATE)
        assert measured.metrics["request_throughput_req_s"] > 0
        assert measured.metrics["ttft_p99_ms"] > 0
        assert cluster.running() == []
        assert cluster.calls["scancel"] == 0
        if name == "kubernetes":
            job = (cluster.folder / "job.yaml").read_text()
            assert "vllm/vllm-openai:v0.32.0 " in job  # the engine version of the space
            assert 'nvidia.com/gpu: "2"' in job
    assert processes_with(str(tmp_path)) == []


#: Every command that an example calls on the way to a result.
CALLS = [
    *(("slurm", program) for program in ("sbatch", "squeue")),
    *(("kubernetes", f"kubectl {verb}") for verb in ("apply", "get", "logs")),
]


@pytest.mark.parametrize("how", [REFUSED, ACCEPTED])
@pytest.mark.parametrize(("name", "program"), CALLS)
def test_one_failing_call_is_tried_again(name: str, program: str, how: str, tmp_path: Path) -> None:
    faults = [{"program": program, "calls": [1], "how": how}]
    with scripted(tmp_path / "cluster", faults) as cluster:
        assert site(name, cluster, tmp_path).measure(CANDIDATE).metrics["request_throughput_req_s"] > 0
        assert cluster.calls[program] >= 2
        assert cluster.running() == []


@pytest.mark.parametrize(("name", "program"), CALLS)
def test_a_cluster_that_answers_no_more_loses_the_candidate_and_fails_it_not(
    name: str, program: str, tmp_path: Path
) -> None:
    faults = [{"program": program, "calls": "all", "how": REFUSED}]
    with scripted(tmp_path / "cluster", faults) as cluster:
        with pytest.raises(NodeLost, match="status 75: the site failed") as caught:
            site(name, cluster, tmp_path).measure(CANDIDATE)
        assert f"{program} failed" in caught.value.detail
        assert cluster.running() == []


def test_a_cluster_that_cannot_cancel_says_what_may_still_run(tmp_path: Path) -> None:
    for name, program, words in (
        ("slurm", "scancel", "scancel --user="),
        ("kubernetes", "kubectl delete", "kubectl delete job,configmap partitune-"),
    ):
        faults = [{"program": program, "calls": "all", "how": REFUSED}]
        with scripted(tmp_path / name, faults) as cluster:
            driver = site(name, cluster, tmp_path, env={"FAKE_ENGINE_ACT": "bench-hang"}, timeout_s=4.0)
            with pytest.raises(TimedOut):
                driver.measure(CANDIDATE)
            logs = "".join(file.read_text() for file in (tmp_path / "state").rglob("command.log"))
            assert f"may still run; end it with: {words}" in logs


@pytest.mark.parametrize("name", ["slurm", "kubernetes"])
def test_a_candidate_whose_engine_fails_is_no_fault_of_the_site(name: str, tmp_path: Path) -> None:
    with scripted(tmp_path / "cluster") as cluster:
        with pytest.raises(OutOfMemory):
            site(name, cluster, tmp_path, env={"FAKE_ENGINE_ACT": "oom-load"}).measure(CANDIDATE)
        assert cluster.running() == []


@pytest.mark.parametrize("name", ["slurm", "kubernetes"])
def test_the_job_ends_with_a_trial_that_takes_too_long(name: str, tmp_path: Path) -> None:
    with scripted(tmp_path / "cluster") as cluster:
        with pytest.raises(TimedOut):
            site(name, cluster, tmp_path, env={"FAKE_ENGINE_ACT": "bench-hang"}, timeout_s=4.0).measure(CANDIDATE)
        assert cluster.running() == []
    assert processes_with(str(tmp_path)) == []


@pytest.mark.parametrize("program", ["sbatch", "kubectl apply"])
def test_what_is_submitted_while_the_trial_ends_is_ended_too(program: str, tmp_path: Path) -> None:
    """The call is on its way when the script gets SIGTERM: the cluster starts the job after that."""
    faults = [{"program": program, "calls": [1], "delay_s": 3.0}]
    with scripted(tmp_path / "cluster", faults) as cluster:
        name = "slurm" if program == "sbatch" else "kubernetes"
        with pytest.raises(TimedOut):
            site(name, cluster, tmp_path, timeout_s=1.0).measure(CANDIDATE)
        time.sleep(3)
        assert cluster.running() == []


@pytest.mark.parametrize(
    ("state", "error"), [("NODE_FAIL", NodeLost), ("PREEMPTED", NodeLost), ("TIMEOUT", LaunchFailed)]
)
def test_a_job_of_slurm_that_was_ended_says_by_whom(state: str, error: type[Exception], tmp_path: Path) -> None:
    with scripted(tmp_path / "cluster", state=state) as cluster:
        driver = site("slurm", cluster, tmp_path, env={"FAKE_ENGINE_ACT": "bench-hang"})

        def kill() -> None:
            while not (jobs := cluster.running()):
                time.sleep(0.1)
            time.sleep(1)
            os.killpg(jobs[0], signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(error):
            driver.measure(CANDIDATE)
        killer.join()


def test_a_pod_that_was_evicted_loses_the_candidate(tmp_path: Path) -> None:
    with scripted(tmp_path / "cluster", disruption="EvictionByEvictionAPI") as cluster:
        with pytest.raises(NodeLost) as caught:
            site("kubernetes", cluster, tmp_path, env={"FAKE_ENGINE_ACT": "oom-load"}).measure(CANDIDATE)
        assert "the pod was taken: EvictionByEvictionAPI" in caught.value.detail


def test_a_job_of_slurm_ends_when_whoever_waited_was_killed(tmp_path: Path) -> None:
    with scripted(tmp_path / "cluster") as cluster:
        env = {"FAKE_ENGINE_ACT": "bench-hang", "AWAITED_S": "3"}
        driver = site("slurm", cluster, tmp_path, env=env)

        def kill() -> None:
            while not cluster.running():
                time.sleep(0.1)
            subprocess.run(["pkill", "-KILL", "-f", f"slurm/measure.sh.*{tmp_path}"], check=True)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(LaunchFailed):
            driver.measure(CANDIDATE)
        killer.join()
        for _ in range(100):
            if not cluster.running():
                break
            time.sleep(0.2)
        assert cluster.running() == []


def test_an_example_for_one_node_refuses_two_before_anything_starts() -> None:
    space = SearchSpace.load("kimi-k3-pp8-tp2")
    with pytest.raises(
        SpecError, match=r"kubernetes\.yaml:\d+: max_nodes: found 1, and kimi-k3-pp8-tp2 stands on 2 nodes"
    ):
        choose_driver(resolve(space), space, Runner.load("kubernetes"))
