"""LocalPool, RayPool and WarmingPool keep one contract; a real Ray cluster on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from partitune.candidate import Candidate, Outcome, Submission
from partitune.errors import ClusterError
from partitune.execution.pools.local import LocalPool
from partitune.execution.pools.pool import Pool
from partitune.execution.pools.ray import RayPool
from partitune.execution.pools.warming import WarmingPool
from partitune.execution.ray.address import reach
from tests.contracts.pool import PoolContract, drain
from tests.ray_nodes import processes_with
from tests.scripted import ScriptedDriver


class TestLocalPool(PoolContract):
    @pytest.fixture
    def pool(self) -> Iterator[Pool]:
        with LocalPool(ScriptedDriver()) as pool:
            yield pool


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
class TestRayPool(PoolContract):
    @pytest.fixture
    def pool(self) -> Iterator[Pool]:
        with RayPool(ScriptedDriver()) as pool:
            yield pool

    def test_a_worker_that_dies_makes_its_candidate_lost(self, pool: Pool) -> None:
        result = self.one(pool, "die")
        assert result.outcome is Outcome.LOST
        assert result.reason.startswith("Ray lost the worker: ")
        assert self.one(pool, "ok").outcome is Outcome.OK


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
class TestWarmingPool(PoolContract):
    @pytest.fixture
    def pool(self) -> Iterator[Pool]:
        with WarmingPool(ScriptedDriver()) as pool:
            yield pool


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_the_first_candidate_runs_in_process_and_a_later_one_on_ray() -> None:
    with WarmingPool(ScriptedDriver()) as pool:
        seen = set()
        for number in range(1, 200):
            pool.submit(Submission(Candidate((number,), {"act": "slow"})))
            seen.add(pool.description.partition(" (")[0])
            drain(pool, 1)
            if len(seen) == 2:
                break
    assert seen == {"in process", "Ray, local"}


@pytest.mark.ray
def test_a_cluster_of_its_own_outlives_its_start() -> None:
    # In a process of its own: the cluster that the other tests share was not started by the pool's thread.
    script = """
import time
from partitune.execution.pools.warming import WarmingPool
from partitune.candidate import Submission
from partitune.candidate import Candidate
from tests.scripted import ScriptedDriver
with WarmingPool(ScriptedDriver(), slots=1) as pool:
    while "starting" in pool.description:
        time.sleep(0.1)
    time.sleep(2)
    pool.submit(Submission(Candidate((2,))))
    print(pool.description, pool.next_done(30).outcome)
"""
    root = str(Path(__file__).parent.parent.parent)  # workers import the scripted driver
    environment = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=root, env=environment)
    assert done.stdout == "Ray, local ok\n"


def test_an_unreachable_cluster_is_one_clear_error() -> None:
    script = """
from partitune.errors import ClusterError
from partitune.execution.pools.ray import RayPool
from tests.scripted import ScriptedDriver
try:
    RayPool(ScriptedDriver(), address="127.0.0.1:1").start()
except ClusterError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("Ray at 127.0.0.1:1 cannot be used: ")


@pytest.mark.parametrize(
    ("address", "said"),
    [("localhost", "'localhost' is not an address"), ("http://127.0.0.1:8265", "dashboard is for `partitune submit`")],
)
def test_what_is_no_address_of_a_cluster_is_said_with_one_that_is(address: str, said: str) -> None:
    with pytest.raises(ClusterError, match=rf"Ray at {address} cannot be used: .*{said}\n.*such as 10\.0\.0\.1:6379"):
        reach(address)


@pytest.mark.ray
def test_a_ray_that_never_comes_up_holds_nobody_up_and_leaves_nothing() -> None:
    script = """
import time
from partitune.execution.ray import cluster as ray_cluster
from partitune.execution.pools.warming import WarmingPool
from partitune.candidate import Submission
from partitune.candidate import Candidate
from tests.scripted import ScriptedDriver
ray_cluster.START_LIMIT_S = 1.0
with WarmingPool(ScriptedDriver()) as pool:
    while "starting" in pool.description:
        time.sleep(0.1)
    pool.submit(Submission(Candidate((2,))))
    print(pool.next_done(30).outcome, pool.description, pool.news(), pool.news())
"""
    root = str(Path(__file__).parent.parent.parent)
    mark = f"PARTITUNE_TEST_MARK={uuid.uuid4().hex}"
    environment = {**os.environ, "PYTHONPATH": root, **dict([mark.split("=")])}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=root, env=environment)
    reason = "Ray on this machine cannot be used: Ray did not answer in 1 s"
    said = f"ok in process ('candidates run in this process, as Ray did not start: {reason}',) ()\n"
    assert done.stdout == said
    deadline = time.monotonic() + 90  # Ray's agents look for their head for a minute
    while processes_with(mark):
        assert time.monotonic() < deadline
        time.sleep(0.2)
