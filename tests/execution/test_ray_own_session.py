"""The search's own Ray: alone on the loopback, behind its token, independent of other clusters, gone afterwards."""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from partitune.errors import ClusterError
from partitune.execution.ray.address import named_cluster
from partitune.execution.ray.own_session import MARKER, abandoned_sessions
from tests.ray_nodes import free_ports, head, run_partitune

ROOT = str(Path(__file__).parent.parent.parent)
#: Of the user, which the search's own cluster has nothing to do with.
USERS = {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "the-users-own"}
OWN = """
import os, sys
from partitune.candidate import Candidate, Submission
from partitune.execution.pools.ray import RayPool
from tests.scripted import ScriptedDriver
with RayPool(ScriptedDriver(), slots=2) as pool:
    import ray
    for number in (1, 2):
        pool.submit(Submission(Candidate((number,), {"act": "environment"})))
    while (result := pool.next_done(60)) is None:
        pass
    print(ray.get_runtime_context().gcs_address, flush=True)
    print(result.reason[::-1], flush=True)  # it was said backwards
    print(*(f"{name}={value}" for name, value in sorted(os.environ.items()) if "RAY_" in name), flush=True)
    sys.stdin.readline()
"""
STRANGER = """
import os, sys
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False)
except Exception as error:
    print("refused:", type(error).__name__)
else:
    print("ran as", ray.get(ray.remote(num_cpus=0)(lambda: os.getuid()).remote()))
"""


class Own:
    """A process that has a cluster of its own and waits."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.address, self.of_worker, self.of_driver = (process.stdout.readline().strip() for _ in range(3))
        self.family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        self.variables = next(member.environ() for member in self.family if "gcs_server" in member.name())
        self.folder = Path(self.variables[MARKER])


@contextmanager
def own_cluster(folder: Path, **variables: str) -> Iterator[Own]:
    environment = {**os.environ, "PYTHONPATH": ROOT, "RAY_TMPDIR": str(folder), **USERS, **variables}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", OWN], stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        try:
            yield Own(process)
        finally:
            process.communicate(timeout=60)


@pytest.fixture(scope="module")
def short_folder() -> Iterator[Path]:
    """In place of the machine's own folder for such files; that of a test is too deep for a socket."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="pt") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def own(short_folder: Path) -> Iterator[Own]:
    with own_cluster(short_folder) as own:
        yield own


@pytest.mark.ray
def test_nothing_of_it_listens_beyond_the_loopback(own: Own) -> None:
    listening = {
        (member.pid, connection.laddr.ip, connection.laddr.port)
        for member in own.family
        for connection in member.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert len({pid for pid, *_ in listening}) > 5  # head, node, agents, workers, and the search itself
    addresses = {ipaddress.ip_address(ip.removeprefix("::ffff:")) for _, ip, _ in listening}
    assert all(address.is_loopback for address in addresses), addresses


@pytest.mark.ray
@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RAY_AUTH_MODE": "disabled"}, "refused: ConnectionError"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}, "refused: ConnectionError"),
        (None, f"ran as {os.getuid()}"),  # with the token it would have got in
    ],
)
def test_a_process_without_its_token_is_refused(own: Own, variables: dict[str, str] | None, said: str) -> None:
    if variables is None:
        variables = {name: own.variables[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    there = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_NUM_REDIS_GET_RETRIES": "1"}  # the loopback; one attempt
    outside = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, own.address], env={**outside, **there, **variables},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout == f"{said}\n"


@pytest.mark.ray
def test_the_token_stands_in_the_environment_of_rays_own_processes_and_nowhere_else(own: Own) -> None:
    token = own.variables["RAY_AUTH_TOKEN"]
    assert re.fullmatch("[0-9a-f]{64}", token)
    outside = "RAY_AUTH_MODE=disabled RAY_AUTH_TOKEN=the-users-own"  # for whatever a driver or a worker starts
    assert outside in own.of_driver
    assert outside in own.of_worker
    assert token not in own.of_driver + own.of_worker
    assert not [member for member in own.family if token in " ".join(member.cmdline())]
    files = [file for file in own.folder.rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if token.encode() in file.read_bytes()]
    assert own.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.ray
def test_another_cluster_and_a_dead_address_in_the_environment_do_not_matter_and_the_folder_goes(
    short_folder: Path,
) -> None:
    (port,) = free_ports(1)
    with ExitStack() as stack:
        stack.enter_context(head(Path(sys.executable), 1, {"RAY_TMPDIR": str(short_folder)}, port))
        own = stack.enter_context(own_cluster(short_folder, RAY_ADDRESS=f"127.0.0.1:{port}"))
        assert own.address != f"127.0.0.1:{port}"
        assert own.folder.parent == short_folder
    assert own.process.returncode == 0
    assert not own.folder.exists()
    assert not [member for member in own.family if member.is_running()]


@pytest.mark.ray
def test_gc_removes_what_a_killed_search_left_once_nothing_of_it_lives(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(short_folder))
    somebody_elses = short_folder / "session_2026-01-01"
    somebody_elses.mkdir()
    with own_cluster(short_folder) as own:
        assert own.folder not in abandoned_sessions()
        own.process.send_signal(signal.SIGKILL)
        for member in own.family:  # Ray's agents would look for their head for a minute
            with suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(own.family)
    with subprocess.Popen(["sleep", "60"], env={MARKER: str(own.folder)}) as child:  # what a worker had started
        assert own.folder not in abandoned_sessions()
        child.kill()
    environment = {"RAY_TMPDIR": str(short_folder)}
    dry = run_partitune("gc", "--no-db", "--dry-run", cwd=tmp_path, env=environment)
    assert f"would remove {own.folder} (Ray's files of a search that was killed)\n" in dry.stdout
    assert own.folder.exists()
    done = run_partitune("gc", "--no-db", cwd=tmp_path, env=environment)
    assert f"removed {own.folder} (Ray's files of a search that was killed)\n" in done.stdout
    assert not own.folder.exists()
    assert somebody_elses.exists()


@pytest.mark.ray
def test_sigterm_ends_a_search_on_ray_with_130_and_no_trace(tmp_path: Path, short_folder: Path) -> None:
    place = short_folder / "ended"
    place.mkdir()
    environment = {**os.environ, "PYTHONPATH": ROOT, "RAY_TMPDIR": str(place)}
    command = [sys.executable, "-m", "partitune", "search", "kimi-k3-pp8-tp2", "--trials", "100000"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 120
        while not any(worker_of(member) for member in psutil.Process(process.pid).children(recursive=True)):
            assert time.monotonic() < deadline
            time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"SIGTERM received" not in stderr
    assert b"partitune: interrupted" in stderr
    assert not list(place.iterdir())


def worker_of(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("ray::Worker")
    except psutil.Error:
        return False


@pytest.mark.parametrize(("given", "named"), [(None, "RAY_ADDRESS"), ("auto", "RAY_ADDRESS"), ("127.0.0.1:1", "")])
def test_a_dead_address_is_an_error_at_once_that_says_who_named_it(
    given: str | None, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ClusterError, match=r"^Ray at 127\.0\.0\.1:1 cannot be used: .*\n.*--pool local") as caught:
        named_cluster(given)
    assert str(caught.value).endswith(f"{named} named it" if named else "--pool local")


def test_no_address_and_local_mean_a_cluster_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert named_cluster("local")[0] is None
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert named_cluster(None)[0] is None
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(ClusterError, match="Ray at auto cannot be used: no `ray start` left an address"):
        named_cluster("auto")


@pytest.mark.ray
def test_a_named_cluster_keeps_the_users_authentication_and_is_said(tmp_path: Path) -> None:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "correct-horse-battery-staple-0123456789"}
    with head(Path(sys.executable), 1, {**token, "PYTHONPATH": ROOT}) as (_, port):
        address = f"127.0.0.1:{port}"
        command = ("search", "tiny", "--trials", "2")
        done = run_partitune(*command, cwd=tmp_path, env={**token, "RAY_ADDRESS": address})
        assert done.returncode == 0, done.stderr
        said = f"candidates run on Ray at {address}, named by RAY_ADDRESS (a cluster of its own: --ray-address local)"
        assert said in done.stderr
        assert token["RAY_AUTH_TOKEN"] not in done.stdout + done.stderr
        without = {"RAY_AUTH_MODE": "disabled", "RAY_NUM_REDIS_GET_RETRIES": "1"}
        refused = run_partitune(*command, "--ray-address", address, "--study", "b", cwd=tmp_path, env=without)
    assert refused.returncode == 2
    assert "It may ask for its token. Set RAY_AUTH_MODE=token, and the token in" in refused.stderr
