"""Jobs on real heads: two nodes without partitune, then one that wants a token. Commands run from other folders."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from partitune.cli import main
from partitune.jobs.client import JobServer
from partitune.jobs.package import pack
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from partitune.store import Store, StudyState
from tests.project_folder import make_project
from tests.ray_nodes import environment_without_partitune, head, processes_with, run_partitune, worker_node

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning"),  # Ray's client to aiohttp 3.13
]
OPEN = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that runs Ray and cannot import partitune."""
    folder = tmp_path_factory.mktemp("cluster")
    found = environment_without_partitune(folder / "environment")
    check = "import ray, importlib.util; print(importlib.util.find_spec('partitune'))"
    done = subprocess.run([found, "-c", check], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
    return found


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where jobs put temporary files."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def address(python: Path, scratch: Path) -> Iterator[str]:
    """Two nodes: a head that takes no tasks, and one that does."""
    env = {**OPEN, "TMPDIR": str(scratch)}
    with head(python, 0, env) as (address, port), worker_node(python, port, 2, env):
        yield address


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run commands from."""
    folder = tmp_path / "away"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


SECOND_NODE = """
import ray
from pathlib import Path
from partitune.errors import LaunchFailed
from partitune.jobs.package import digest_of, package_files
from partitune.jobs.sending import Sender
from partitune.execution.pools.ray import RayPool
from partitune.execution.ray.address import named_cluster
from partitune.candidate import Submission
from partitune.candidate import Candidate
from partitune.store import Store, StudyTerms

class Where:
    def measure(self, candidate):
        raise LaunchFailed(f"{ray.get_runtime_context().get_node_id()} {digest_of(package_files())}")

with RayPool(Where(), named_cluster("auto")[0]) as pool:
    pool.submit(Submission(Candidate((1,))))
    result = pool.next_done(120)
    print("driver", ray.get_runtime_context().get_node_id(), digest_of(package_files()), flush=True)
    print("task", result.reason, flush=True)

import random, shutil, string, sys, tempfile
database = Path(tempfile.mkdtemp(), "big.db")  # Ray unpacks the folder of a job anew when a node of the same host joins
from datetime import UTC, datetime
from partitune.analysis.trial import Trial
from partitune.candidate import Outcome, Result
with Store.open(database) as store:
    store.create_study(StudyTerms("big", {}, "e", "0", "r", 0, None))
    for number in range(10):
        text = "".join(random.choices(string.ascii_letters, k=1 << 20))
        failed = Result(Candidate((1,), {"n": number}), Outcome.FAILED, text)
        store.record(Trial("big", number, "seed:0", datetime.now(UTC), failed))
sender = Sender(database, sys.stdout.write)
sender.send_new()
sender.send_ends()
shutil.rmtree(database.parent)
print("sent", flush=True)
"""


def test_tasks_on_a_second_node_run_the_shipped_partitune_and_ten_megabytes_come_home(
    address: str, python: Path, away: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipment = pack(SearchSpace.load("tiny"), Runner.load("simulator"))
    entrypoint = shlex.join([str(python), "-c", SECOND_NODE])
    job = JobServer(address).submit(entrypoint, shipment, study="nodes", results="", env={})
    assert main(["jobs", "wait", job, "--address", address, "--fetch-results", "home.db"]) == 0
    capsys.readouterr()
    assert main(["jobs", "logs", job, "--address", address]) == 0
    log = capsys.readouterr().out
    [(driver_node, driver_digest)] = re.findall(r"^driver (\w+) (\w+)$", log, re.MULTILINE)
    [(task_node, task_digest)] = re.findall(r"^task (\w+) (\w+)$", log, re.MULTILINE)
    assert driver_node != task_node
    assert shipment.label.endswith(f"+{driver_digest}")
    assert task_digest == driver_digest
    assert "@partitune" not in log
    assert log.endswith("sent\n")
    with Store.open("home.db", read_only=True) as store:
        assert [len(trial.result.reason) for trial in store.trials("big")] == [1 << 20] * 10


def test_a_submitted_search_ends_with_its_results_here(
    address: str, python: Path, away: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submit = ["submit", "tiny", "--address", address, "--python", str(python), "--fetch-results", "home.db"]
    assert main([*submit, "--follow"]) == 0
    said = capsys.readouterr()
    assert "trial 0 (default:default) 18,18 ok" in said.out
    assert "trials: 12 ok" in said.out
    assert "@partitune" not in said.out
    assert re.search(r"ships \d+\.\d [KM]iB: partitune 0\.1\.0\+\w{12} .*\nlargest: partitune/", said.err)
    assert "home.db: 12 trials of tiny" in said.err
    here = ["search", "tiny", "--pool", "local", "--quiet", "--db", "local.db"]
    subprocess.run([sys.executable, "-m", "partitune", *here], check=True, capture_output=True)
    with Store.open("home.db", read_only=True) as there, Store.open("local.db", read_only=True) as local:
        assert there.study("tiny").state is StudyState.FINISHED
        assert there.study("tiny").spec == local.study("tiny").spec
        same = {trial.result.candidate.digest: trial.result.measurement for trial in local.trials("tiny")}
        shared = [trial for trial in there.trials("tiny") if trial.result.candidate.digest in same]
        assert len(shared) >= 4  # the default, the exact plan and the seeds, whoever else is asked in between
        assert all(trial.result.measurement == same[trial.result.candidate.digest] for trial in shared)
    assert main(submit) == 2
    assert "home.db holds a study of that name; allowed: a new name, such as tiny-2" in capsys.readouterr().err


def test_jobs_are_listed_waited_for_and_explained(
    address: str, python: Path, tmp_path: Path, away: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space, database = make_project(tmp_path / "home"), tmp_path / "on-the-head.db"
    submit = ["submit", "--address", address]
    assert main([*submit, str(space), "--db", str(database), "--python", str(python), "--trials", "3"]) == 0
    job = capsys.readouterr().out.strip()
    assert main([*submit, "tiny", "--db", str(database), "--python", f"{python} -S", "--study", "broken"]) == 0
    broken = capsys.readouterr().out.strip()
    assert main(["jobs", "wait", job, "--address", address]) == 0
    capsys.readouterr()
    assert main(["jobs", "wait", broken, "--address", address]) == 1
    assert "has no module" in capsys.readouterr().err
    assert main(["jobs", "list", "--address", address, "--json"]) == 0
    listed = {one["job"]: one for one in json.loads(capsys.readouterr().out)}
    assert listed[job]["status"] == "SUCCEEDED"
    assert (listed[job]["study"], listed[job]["results"]) == ("mine", f"{database} on the head node")
    assert (listed[broken]["status"], listed[broken]["exit_code"]) == ("FAILED", 1)
    with Store.open(database, read_only=True) as store:
        assert store.study("mine").spec["model"] == str(space.parent / "model")
        assert sum(store.counts("mine").values()) == 3
    assert main(["jobs", "stop", job, "--address", address]) == 0
    assert "SUCCEEDED, had ended before" in capsys.readouterr().out


def test_a_stopped_job_leaves_its_results_here_and_nothing_there(
    address: str, python: Path, scratch: Path, away: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, home = "kimi-k3-pp8-tp2", "home.db"
    # A free partition: a space of millions of vectors, so that the search is surely running when it is stopped.
    endless = ["--trials", "100000", "--set", "knobs.partition.search=free"]
    submit = ["submit", study, *endless, "--address", address, "--python", str(python), "--follow"]
    root = Path(__file__).parent.parent.parent
    following = subprocess.Popen(
        [sys.executable, "-m", "partitune", *submit, "--fetch-results", home],
        env={**OPEN, "PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    job = ""
    assert following.stdout is not None
    for line in following.stdout:
        job = line.strip() if line.startswith("partitune-") else job
        if "(seed:seed-3)" in line:  # the last seed, which is always told
            break
    following.send_signal(signal.SIGINT)
    said, _ = following.communicate(timeout=60)
    assert following.returncode == 130
    assert f"{job} goes on. Come back: partitune jobs wait {job} --fetch-results {home}" in said

    assert processes_with(job)
    assert list(scratch.glob("partitune-*"))
    assert main(["jobs", "stop", job, "--address", address]) == 0
    assert capsys.readouterr().out == f"{job}: STOPPED\n"
    assert list(scratch.glob("partitune-*")) == []
    deadline = time.monotonic() + 20  # the raylet ends its idle workers
    while (left := processes_with(job)) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert left == []

    assert main(["jobs", "wait", job, "--address", address, "--fetch-results", home]) == 130
    with Store.open(home, read_only=True) as store:
        assert store.study(study).state is StudyState.INTERRUPTED
        numbers = [trial.number for trial in store.trials(study)]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > 5


def test_a_head_that_wants_a_token(python: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("correct-horse-battery-staple-0123456789")
    cluster = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
    with head(python, 2, cluster) as (address, _):
        for env in (OPEN, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "wrong"}):
            refused = run_partitune("jobs", "list", "--address", address, cwd=tmp_path, env=env)
            assert refused.returncode == 2
            first, second = refused.stderr.splitlines()
            assert first.startswith(f"partitune: Ray at {address} asks for its token: ")
            assert "RAY_AUTH_MODE=token" in second
        submit = ["submit", "tiny", "--address", address, "--python", str(python), "--trials", "4"]
        done = run_partitune(*submit, "--fetch-results", "home.db", cwd=tmp_path, env=cluster)
        assert done.returncode == 0, done.stderr
        assert "home.db: 4 trials of tiny" in done.stderr
        assert token.read_text() not in done.stdout + done.stderr
