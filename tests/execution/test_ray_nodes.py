"""Two Ray nodes on this machine, each said to have eight GPUs; real agents, real processes, a fake engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from partitune.errors import ClusterError
from partitune.execution.ray.groups import RayGroup, RayMachine
from tests.ray_nodes import processes_with

ROOT = str(Path(__file__).parent.parent.parent)
TWO = [RayMachine("10.0.0.1", 8), RayMachine("10.0.0.2", 8)]


def test_groups_that_fit_are_counted_over_distinct_machines() -> None:
    assert RayGroup(2, 8).fits(TWO) == 1
    assert RayGroup(2, 4).fits(TWO) == 2  # half of each machine
    assert RayGroup(1, 2).fits(TWO) == 8
    assert RayGroup(2, 4).fits([RayMachine("a", 16), RayMachine("b", 4)]) == 1  # b is in each group
    assert RayGroup(3, 2).fits([RayMachine(name, 4) for name in "abcd"]) == 2
    assert RayGroup(2, 8, ("10.0.0.2", "10.0.0.1")).fits(TWO) == 1
    assert RayGroup(1, 8).fits([]) == 0


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (RayGroup(2, 16), "a trial needs 2 nodes with 16 GPUs each, and 0 of 2 nodes have 16 GPUs or more"),
        (RayGroup(3, 8), "a trial needs 3 nodes with 8 GPUs each, and 2 of 2 nodes have 8 GPUs or more"),
        (RayGroup(1, 9), "a trial needs 1 node with 9 GPUs, and 0 of 2 nodes have 9 GPUs or more"),
        (RayGroup(2, 8, ("10.0.0.1", "10.0.0.7")), "10.0.0.7 is not in the cluster"),
    ],
)
def test_a_request_that_can_never_be_met_says_what_is_missing(group: RayGroup, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        group.check(TWO, "Ray at here:1")
    assert message in str(caught.value)
    assert "(10.0.0.1 has 8, 10.0.0.2 has 8)" in str(caught.value)


def test_bundles_name_the_hosts_in_the_order_of_the_stages() -> None:
    assert RayGroup(2, 8).bundles == [{"GPU": 8}, {"GPU": 8}]
    assert RayGroup(2, 8, ("b", "a")).bundles == [{"GPU": 8, "node:b": 0.001}, {"GPU": 8, "node:a": 0.001}]


#: Holds the cluster in a process of its own, as Ray leaves files open; does what it reads.
CLUSTER = """
import os, sys
from ray.cluster_utils import Cluster
node = {"num_cpus": 2, "num_gpus": 8, "object_store_memory": 80_000_000}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
second = cluster.add_node(**node)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
for line in sys.stdin:
    if line == "kill\\n":
        cluster.remove_node(second, allow_graceful=False)
    if line == "add\\n":
        second = cluster.add_node(**node)
    if line == "add stale\\n":
        os.environ["VLLM_PP_LAYER_PARTITION"] = "12,12"  # as exported before `ray start`
        third = cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
        del os.environ["VLLM_PP_LAYER_PARTITION"]
    if line == "remove stale\\n":
        cluster.remove_node(third)
    print("done", flush=True)
cluster.shutdown()
"""


@dataclass
class TwoNodes:
    """The cluster's process."""

    process: subprocess.Popen[str]
    address: str

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "done\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoNodes]:
    environment = {**os.environ, "PYTHONPATH": ROOT}  # workers import partitune and the tests
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    with process:
        assert process.stdout is not None
        yield TwoNodes(process, process.stdout.readline().strip())
        process.communicate(timeout=60)


#: Poses a problem of `nodes` x `gpus` GPUs for the fake engine and gives it to a pool of that cluster.
SCRIPT = """
import json, sys, time
from pathlib import Path
from partitune.execution.server.setup_checks import setup_for
from partitune.execution.ray.groups import RayGroup
from partitune.execution.ray.actors import RayNodes
from partitune.execution.server.server_driver import ServerDriver
from partitune.errors import ClusterError
from partitune.execution.pools.ray import RayPool
from partitune.candidate import Submission
from partitune.planning.resolve import resolve
from partitune.candidate import Candidate
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from tests.fake_engine import ACT, PROGRAM
from tests.fake_setup import LIMITS, SPACE

address, folder, nodes, gpus, *acts = sys.argv[1:]
sizes = {"cluster": {"nodes": int(nodes), "gpus_per_node": int(gpus), "gpu": "L40S"},
         "parallel": {"tp": int(gpus) // 2, "pp": 2 * int(nodes)}}
layouts = [act for act in acts if act.startswith("tp")]  # in place of an act: a layout to run on
if layouts:
    sizes["parallel"] = {"tp": 4, "pp": 2, "layouts": [{"tp": 4, "pp": 2}, {"tp": 4, "pp": 4}]}
space = SearchSpace.from_mapping({**SPACE, **sizes}, source="fake.yaml")
settings = {"name": "fake", "driver": "vllm", "engine_command": list(PROGRAM), "nodes": {"start": "ray"},
            "limits_s": dict(LIMITS), "benchmark": {"command": list(PROGRAM), "warmup_requests": 2}}
setup = setup_for(resolve(space), space, Runner.from_mapping(settings, source="runner.yaml"))
driver = ServerDriver(setup, RayNodes(setup.reservation.gpus, folder), Path(folder) / "references")
pool = RayPool(driver, address, group=RayGroup(setup.reservation.nodes, setup.reservation.gpus))
begin = time.monotonic()
try:
    pool.start()
except ClusterError as error:
    print(json.dumps({"refused": str(error), "seconds": time.monotonic() - begin}), flush=True)
    sys.exit()
print(json.dumps({"slots": pool.free_slots, "said": pool.prepare()}), flush=True)
for act in acts:
    layout, knobs = (act, {}) if act in layouts else (None, {ACT: act} if act != "ok" else {})
    stages = setup.problem.on(layout).stages
    partition = tuple(36 // stages + (stage < 36 % stages) for stage in range(stages))
    pool.submit(Submission(Candidate(partition, knobs, layout)))
    print(json.dumps({"submitted": act}), flush=True)
    while (result := pool.next_done(1.0)) is None:
        pass
    print(json.dumps({"outcome": result.outcome, "reason": result.reason, "detail": result.detail[-3000:]}), flush=True)
pool.__exit__(None, None, None)
"""


@contextmanager
def searching(cluster: TwoNodes, folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The script above; it has to end well."""
    command = [sys.executable, "-c", SCRIPT, cluster.address, str(folder), *words]
    environment = {**os.environ, "PYTHONPATH": ROOT}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as process:
        yield process
        assert process.wait(60) == 0


def next_line(process: subprocess.Popen[str]) -> dict[str, object]:
    """What the script says next; Ray prints the end of a raylet between it."""
    assert process.stdout is not None
    line = next((line for line in process.stdout if line.startswith('{"')), None)
    assert line is not None, f"ended with {process.wait()}"
    found: dict[str, object] = json.loads(line)
    return found


def wait_until(is_so: object, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.1)


@pytest.mark.ray
def test_a_trial_of_two_by_eight_gpus_is_one_group_and_a_larger_one_is_refused_in_seconds(
    cluster: TwoNodes, tmp_path: Path
) -> None:
    with searching(cluster, tmp_path, "2", "8", "ok", "ok") as process:
        assert next_line(process) == {"slots": 1, "said": []}
        for _ in range(2):  # the second candidate finds the agents of the first
            assert next_line(process) == {"submitted": "ok"}
            assert next_line(process) == {"outcome": "ok", "reason": "", "detail": ""}
    assert processes_with(str(tmp_path)) == []

    with searching(cluster, tmp_path, "2", "16") as process:
        refused = next_line(process)
    assert "a trial needs 2 nodes with 16 GPUs each, and 0 of 2 nodes have 16 GPUs or more" in str(refused["refused"])
    assert float(str(refused["seconds"])) < 20


@pytest.mark.ray
def test_layouts_of_one_node_and_of_two_take_turns_in_one_group(cluster: TwoNodes, tmp_path: Path) -> None:
    with searching(cluster, tmp_path, "2", "8", "tp4-pp2", "tp4-pp4", "tp4-pp2") as process:
        assert next_line(process) == {"slots": 1, "said": []}
        for layout in ("tp4-pp2", "tp4-pp4", "tp4-pp2"):
            assert next_line(process) == {"submitted": layout}
            assert next_line(process) == {"outcome": "ok", "reason": "", "detail": ""}
    groups = [len(list(trial.glob("node*.log"))) for trial in (tmp_path / "trials").iterdir()]
    assert sorted(groups) == [0, 1, 1, 2]  # the installed engine's flags; then a process group for every node
    assert processes_with(str(tmp_path)) == []


#: What vLLM's own Ray executor would find: asked once for a start that fits, once for one that does not.
RAYLETS = """
import json, os, sys
from partitune.execution.server.setup_checks import setup_for
from partitune.execution.ray.raylets import check_raylets
from partitune.errors import PartituneError
from partitune.planning.resolve import resolve
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from tests.fake_setup import SPACE

os.environ["RAY_ADDRESS"] = sys.argv[1]
for nodes in (1, 3):
    sizes = {"cluster": {"nodes": nodes, "gpus_per_node": 8, "gpu": "L40S"}, "parallel": {"tp": 8, "pp": nodes}}
    space = SearchSpace.from_mapping({**SPACE, **sizes}, source="fake.yaml")
    settings = {"name": "fake", "driver": "vllm", "arguments": {"distributed_executor_backend": "ray"}}
    setup = setup_for(resolve(space), space, Runner.from_mapping(settings, source="runner.yaml"))
    try:
        check_raylets(setup)
        print(json.dumps({"nodes": nodes, "found": ""}), flush=True)
    except PartituneError as error:
        print(json.dumps({"nodes": nodes, "found": str(error)}), flush=True)
"""


@pytest.mark.ray
def test_a_partition_in_a_raylets_environment_refuses_the_study(cluster: TwoNodes) -> None:
    def asked() -> tuple[str, str]:
        command = [sys.executable, "-c", RAYLETS, cluster.address]
        environment = {**os.environ, "PYTHONPATH": ROOT}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as process:
            return str(next_line(process)["found"]), str(next_line(process)["found"])

    fits, too_large = asked()
    assert fits == ""
    assert "a trial needs 24 GPUs, and " in too_large
    cluster.tell("add stale")
    fits, _ = asked()
    assert " has VLLM_PP_LAYER_PARTITION=12,12. vLLM lets a worker's own variable win" in fits
    assert fits.count("VLLM_PP_LAYER_PARTITION") == 1  # the other two nodes are clean
    cluster.tell("remove stale")


@pytest.mark.ray
def test_a_node_that_dies_makes_its_candidate_lost_and_the_next_one_waits_for_a_new_node(
    cluster: TwoNodes, tmp_path: Path
) -> None:
    with searching(cluster, tmp_path, "2", "8", "slow-load:60", "ok") as process:
        next_line(process)
        assert next_line(process) == {"submitted": "slow-load:60"}
        wait_until(lambda: len(list((tmp_path / "started").glob("*.jsonl"))) >= 2)
        cluster.tell("kill")
        lost = next_line(process)
        assert lost["outcome"] == "lost", lost
        assert next_line(process) == {"submitted": "ok"}
        cluster.tell("add")
        assert next_line(process) == {"outcome": "ok", "reason": "", "detail": ""}
    wait_until(lambda: processes_with(str(tmp_path)) == [])
