"""A command as a driver: real scripts as processes, the shipped Slurm example with a stand-in for Slurm itself."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from partitune.candidate import Candidate
from partitune.errors import BenchmarkFailed, LaunchFailed, OutOfMemory, TimedOut
from partitune.execution.command import CommandDriver
from partitune.execution.processes.node import LocalNodes
from partitune.execution.server.setup_checks import setup_for
from partitune.planning.resolve import resolve
from partitune.spec.catalog import Kind, shipped
from partitune.spec.runner import Runner, load_runner
from partitune.spec.search_space import SearchSpace
from tests.engine_output import vllm
from tests.fake_engine import PROGRAM
from tests.fake_setup import SPACE
from tests.ray_nodes import free_ports, processes_with

CANDIDATE = Candidate((20, 16), {"max_num_seqs": 8})
#: Reads what it is given and writes what `vllm bench serve` would.
SCRIPT = """
import json, os, sys
from pathlib import Path
partition, env_file, config, load_file, result = sys.argv[1:]
words = Path(load_file).read_text().splitlines()
number = int(words[words.index("--num-prompts") + 1])
Path(result + ".seen").write_text(json.dumps({
    "partition": partition, "env": Path(env_file).read_text(), "config": Path(config).read_text(), "words": words,
    "site": os.environ.get("SITE"), "marker": os.environ.get("PARTITUNE_TRIAL"), "argv": sys.argv[1:],
}))
tokens = number * 12
Path(result).write_text(json.dumps({
    "duration": 4.0, "completed": number, "failed": 0, "total_input_tokens": number * 16,
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
    with pytest.raises(LaunchFailed, match="ended with status 7") as caught:
        driver(tmp_path, python(tmp_path, "import sys; print('quota exceeded'); sys.exit(7)")).measure(CANDIDATE)
    assert "quota exceeded" in caught.value.detail


def test_a_command_that_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    text = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
    with pytest.raises(TimedOut, match=r"timeout_s \(1 s\)"):
        driver(tmp_path, python(tmp_path, text), timeout_s=1.0, limits_s={"stop": 1}).measure(CANDIDATE)
    assert processes_with(str(tmp_path)) == []


#: In place of Slurm's programs: a job is a child process, a step runs here.
STAND_INS = {
    "sbatch": """#!/bin/bash
while [[ $1 == --* ]]; do [[ $1 == --output=* ]] && log=${1#--output=}; shift; done
SLURM_JOB_NODELIST=here SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 setsid bash "$@" > "$log" 2>&1 < /dev/null &
echo "$!;cluster"
""",
    "squeue": """#!/bin/bash
for word; do [[ $word == --jobs=* ]] && job=${word#--jobs=}; done
kill -0 "$job" 2>/dev/null && echo RUNNING; exit 0
""",
    "scancel": """#!/bin/bash
touch "$0.was-called"
kill -- "-$1"
""",
    "scontrol": """#!/bin/bash
echo 127.0.0.1
""",
    "srun": """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
""",
}
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


def slurm(folder: Path, **given: object) -> CommandDriver:
    """The shipped example, with the stand-ins first in PATH."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in {**STAND_INS, "vllm": VLLM}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    env = {"PATH": f"{programs}:{os.environ['PATH']}", **dict(given.pop("env", {}))}  # type: ignore[call-overload]
    settings = {"port": free_ports(1)[0], "timeout_s": 60.0, "env": env, **given}
    example = {**load_runner("slurm").resolved(), **settings}
    runner = Runner.from_mapping(example, source="slurm.yaml", folder=Path(str(shipped(Kind.RUNNER))))
    space = SearchSpace.from_mapping(SPACE, source="fake.yaml")
    return CommandDriver(setup_for(resolve(space), space, runner), LocalNodes(folder / "state"))


def test_the_slurm_example_measures_and_leaves_nothing(tmp_path: Path) -> None:
    measured = slurm(tmp_path).measure(CANDIDATE)
    assert measured.metrics["request_throughput_req_s"] > 0
    assert measured.metrics["ttft_p99_ms"] > 0
    assert processes_with(str(tmp_path)) == []
    assert not (tmp_path / "bin" / "scancel.was-called").exists()


def test_the_slurm_example_cancels_its_job_when_it_is_ended(tmp_path: Path) -> None:
    with pytest.raises(TimedOut):
        slurm(tmp_path, env={"FAKE_ENGINE_ACT": "bench-hang"}, timeout_s=4.0, limits_s={"stop": 10}).measure(CANDIDATE)
    assert (tmp_path / "bin" / "scancel.was-called").exists()
    assert processes_with(str(tmp_path)) == []
