"""The life cycle of a real server on the fake engine: every way to fail has its name, its reason and its outcome."""

from __future__ import annotations

import http.server
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from pydantic import TypeAdapter

from partitune.candidate import Measurement, Outcome, Result, flaw_in
from partitune.execution.driver import MEMORY_CONSTRAINT, RULES_CONSTRAINT, TIME_CONSTRAINT, run
from partitune.execution.processes.launch import ProcessCommand
from partitune.execution.processes.ledger import MARKER
from partitune.execution.processes.node import Node
from partitune.execution.server.server_driver import ServerDriver
from partitune.execution.server.setup import Setup
from partitune.execution.server.setup_checks import setup_for
from partitune.planning.resolve import resolve
from partitune.spec.search_space import SearchSpace
from tests.execution.test_process_supervisor import wait_until
from tests.fake_engine import ACT
from tests.fake_setup import SPACE, Bench, candidate, fake_setup, marker_of

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Whatever a test does: afterwards nothing lives and no record is open."""
    made = Bench(tmp_path)
    yield made
    assert made.orphans() == []
    assert made.records() == []


def measure(bench: Bench, *acts: str, driver: ServerDriver | None = None) -> Result:
    whole: ServerDriver = pickle.loads(pickle.dumps(driver or bench.driver()))  # as workers get it
    return run(whole, candidate(*acts))


def test_a_good_candidate_is_measured_and_nothing_is_left(bench: Bench) -> None:
    result = measure(bench)
    assert (result.outcome, result.reason) == (Outcome.OK, "")
    found = result.measurement
    assert found is not None
    assert not found.simulated
    assert (found.kv_blocks, found.kv_tokens) == (4096, 65536)
    assert [(row.layers, row.weights_bytes) for row in found.stages] == [(20, 5 * 2**30), (16, 4 * 2**30)]
    # 24 requests of 12 tokens, 8 at a time, each token after 20 layers of 0.5 ms at least
    assert 0.36 <= found.metrics["makespan_s"] < 5
    assert found.metrics["output_throughput_tok_s"] == pytest.approx(24 * 12 / found.metrics["makespan_s"], rel=0.01)
    assert found.metrics["launch_s"] > 0
    assert flaw_in(found.to_json()) is None
    assert TypeAdapter(Measurement).validate_python(found.to_json()) == found


def test_every_window_and_every_fresh_server_counts_as_one_median(bench: Bench) -> None:
    made = fake_setup(benchmark={"windows": 2, "seed": 7, "warmup_requests": 0}, fresh_servers=2)
    result = measure(bench, driver=bench.driver(made))
    assert result.outcome is Outcome.OK
    files = sorted(path.name for path in (bench.folder / "trials").glob("*/*.json"))
    assert files == ["window-7.json", "window-7.json", "window-8.json", "window-8.json"]  # the same seeds everywhere
    assert len(list((bench.folder / "trials").iterdir())) == 2


OOM = r"out of memory .*stage 1.*Tried to allocate 3.50 GiB"
FAILURES: Mapping[str, tuple[Outcome, str, Mapping[str, object]]] = {
    "oom-load": (Outcome.INFEASIBLE, OOM, {MEMORY_CONSTRAINT: 2.25}),
    "oom-serve:6": (Outcome.INFEASIBLE, OOM, {MEMORY_CONSTRAINT: 2.25}),
    "kv-small": (
        Outcome.INFEASIBLE,
        r"too little memory left for the KV cache.*5.62 GiB KV cache is needed",
        {MEMORY_CONSTRAINT: pytest.approx(3.12)},
    ),
    "rendezvous": (Outcome.FAILED, r"the processes did not find one another.*client socket has timed out", {}),
    "nccl": (Outcome.FAILED, r"communication between the processes failed.*NCCL error", {}),
    "unsupported": (
        Outcome.INFEASIBLE,
        r"the engine cannot run this model.*Pipeline parallelism is not supported",
        {RULES_CONSTRAINT: 1.0},
    ),
    "dies-after:3": (Outcome.FAILED, r"the engine ended with signal 9 on 127.0.0.1 while serving", {}),
    "wrong-partition": (
        Outcome.FAILED,
        r"does not run what was asked: the partition is 21,15, asked for was 20,16 \(VLLM_PP_LAYER_PARTITION\)",
        {},
    ),
    "as-default": (Outcome.FAILED, r"the partition is 18,18, asked for was 20,16", {}),
    "other-name": (
        Outcome.FAILED,
        r"another server answers at http://\S+: it serves somebody-elses, not partitune-",
        {},
    ),
    "hits": (Outcome.INVALID, r"of the prompt tokens came from the prefix cache", {}),
    "nan-metrics": (Outcome.INVALID, r"vllm:prefix_cache_queries_total is nan", {}),
}


@pytest.mark.parametrize("act", FAILURES)
def test_a_failure_has_its_reason_and_outcome(bench: Bench, act: str) -> None:
    outcome, reason, graded = FAILURES[act]
    result = measure(bench, act)
    assert (result.outcome, result.constraints) == (outcome, graded), result.reason
    assert re.search(reason, result.reason)
    assert result.measurement is None
    assert "node 0, last" in result.detail  # the server's last words, for the trial's log


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        ("bench-half", "is not complete JSON"),
        ("bench-none", "only 0 of 24 requests completed"),
        ("bench-nan", r"output_throughput is nan"),
        ("bench-output:3", r"864 output tokens came, asked for were 288; the engine generated 288 tokens"),
        ("bench-input:0", r"0 input tokens were sent, asked for were 384, give or take 10%"),
        ("bench-input:1000", r"384000 input tokens were sent"),
        ("bench-twice", r"2 results \(lines 1, 2\); allowed: one, that of this run"),
    ],
)
def test_a_load_generator_that_cannot_be_trusted_makes_the_trial_invalid(bench: Bench, act: str, reason: str) -> None:
    result = measure(bench, driver=bench.driver(fake_setup(env={ACT: act})))
    assert result.outcome is Outcome.INVALID
    assert re.search(reason, result.reason), result.reason


def test_streams_in_bursts_are_measured_without_their_gaps(bench: Bench) -> None:
    made = fake_setup(env={ACT: "bench-bursts"})
    found = measure(bench, driver=bench.driver(made)).measurement
    assert found is not None
    assert re.search(r"; streams came in bursts: half of the gaps are 0\.0\d+ ms or less", found.limiting_reason)
    assert not [name for name in found.metrics if name.startswith("itl")]
    assert found.metrics["tpot_p50_ms"] > 10
    space = SearchSpace.from_mapping({**SPACE, "slo": {"itl_p99_ms": 50}}, source="fake.yaml")
    aimed = setup_for(resolve(space), space, made.runner)
    result = measure(bench, driver=bench.driver(aimed))
    assert (result.outcome, result.measurement) == (Outcome.INVALID, None)
    assert "itl_p99_ms cannot be used: streams came in bursts" in result.reason


def test_a_flag_the_engine_does_not_know_is_refused(bench: Bench) -> None:
    made = fake_setup(arguments={"max_logprobs": 4})
    result = measure(bench, driver=bench.driver(made))
    assert (result.outcome, result.constraints) == (Outcome.INFEASIBLE, {RULES_CONSTRAINT: 1.0})
    assert "vllm serve: error: unrecognized arguments: --max-logprobs" in result.reason


def test_a_load_generator_that_does_not_start_is_said(bench: Bench) -> None:
    made = fake_setup(benchmark={"command": ["no-such-bench"]})
    result = measure(bench, driver=bench.driver(made))
    assert (result.outcome, result.reason) == (
        Outcome.INVALID,
        "the load generator no-such-bench ended with status 127",
    )
    assert "cannot start no-such-bench: No such file or directory" in result.detail


class TestTime:
    """What takes too long ends, and the phase that did is named."""

    @pytest.mark.parametrize(
        ("act", "phase", "reason"),
        [
            (
                "rendezvous-hang",
                "rendezvous",
                r"the phase rendezvous took longer than its limit of 1 s: while its processes",
            ),
            ("slow-load:60", "load", r"the phase load took longer than its limit of 1 s: while loading weights"),
            ("frozen", "probe", r"says that it is healthy, and the first request failed: \S+ did not answer in 1 s"),
            ("stalls-after:6", "stall", r"requests run and no token came for \d s, longer than 1 s"),
        ],
    )
    def test_every_phase_has_its_limit(self, bench: Bench, act: str, phase: str, reason: str) -> None:
        result = measure(bench, act, driver=bench.driver(fake_setup({phase: 1.0})))
        assert re.search(reason, result.reason), result.reason
        if act == "frozen":
            assert (result.outcome, result.constraints) == (Outcome.FAILED, {})
        else:
            assert result.outcome is Outcome.INFEASIBLE
            assert result.constraints[TIME_CONSTRAINT] > 0
        assert result.duration_s < 20

    def test_a_load_generator_that_hangs_ends_with_its_window(self, bench: Bench) -> None:
        made = fake_setup({"window": 1.0}, env={ACT: "bench-hang"})
        result = measure(bench, driver=bench.driver(made))
        assert result.reason.startswith("the load took longer than its limit of 1 s")
        assert result.outcome is Outcome.INFEASIBLE

    def test_the_whole_candidate_has_a_limit_too(self, bench: Bench) -> None:
        result = measure(bench, "slow-load:60", driver=bench.driver(fake_setup(timeout_s=1.5)))
        assert result.reason.startswith("the whole candidate took longer than the runner's timeout_s")
        assert result.duration_s < 15


class TestTeardown:
    def test_an_orphan_that_ignores_sigterm_is_ended(self, bench: Bench) -> None:
        assert measure(bench, "orphan").outcome is Outcome.OK

    def test_one_that_takes_its_time_gets_its_grace_and_is_then_killed(self, bench: Bench) -> None:
        result = measure(bench, "slow-stop:600", driver=bench.driver(fake_setup({"stop": 1.0})))
        assert result.outcome is Outcome.OK
        assert result.duration_s < 20

    def test_a_measured_result_stands_though_the_machine_is_not_clean(self, bench: Bench) -> None:
        """And the next candidate is lost, not failed: it is not its fault."""
        port = Node("127.0.0.1", bench.folder).free_port()
        made, node = fake_setup(), LeakyNode(bench.folder, port)
        driver = ServerDriver(fake_setup(port=port), LeakyNodes(node), bench.folder)
        assert run(driver, candidate()).outcome is Outcome.OK
        elsewhere = ServerDriver(made, LeakyNodes(node), bench.folder)
        result = run(elsewhere, candidate())
        assert result.outcome is Outcome.LOST
        assert re.search(rf"127.0.0.1 is quarantined.*left a listener on port {port}", result.reason)
        node.left.close()
        assert run(bench.driver(), candidate()).outcome is Outcome.OK


class LeakyNode(Node):
    """A machine on which something keeps listening on the engine's port: a container that outlives its `docker run`."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__("127.0.0.1", folder, release_s=0.3)
        self.left = socket.socket()
        self.left.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.left.bind(("127.0.0.1", port))

    def stop(self, name: str, grace_s: float) -> tuple[str, ...]:
        if name == "node0":
            self.left.listen()
        return super().stop(name, grace_s)


@dataclass(frozen=True)
class LeakyNodes:
    node: Node

    @contextmanager
    def nodes(self, count: int) -> Iterator[Sequence[Node]]:
        yield [self.node] * count


class Healthy(http.server.BaseHTTPRequestHandler):
    """Somebody else's server: says 200 to everything."""

    asked: list[str] = []  # noqa: RUF012 - one server a test

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


def test_a_port_that_somebody_has_is_never_benchmarked(bench: Bench) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        result = measure(bench, driver=bench.driver(fake_setup(port=other.server_port)))
        other.shutdown()
        thread.join()
    assert result.outcome is Outcome.LOST  # the site's failure, not the candidate's
    who = re.escape(f"port {other.server_port} of 127.0.0.1 is already in use by pid {os.getpid()} (")
    assert re.match(rf"{who}.*python.*\); end it, or let the runner's port be `auto`", result.reason)
    assert Healthy.asked == []


def test_a_port_that_is_taken_while_the_engine_loads_is_the_sites_failure_too(bench: Bench) -> None:
    """Alone, and with a port that is shared."""
    for shared in (False, True):
        with socket.socket() as other:
            if shared:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            other.bind(("127.0.0.1", 0))
            node = BesetNode(bench.folder, other)
            driver = ServerDriver(fake_setup({"ready": 1}, port=other.getsockname()[1]), LeakyNodes(node), bench.folder)
            result = run(driver, candidate())
        assert result.outcome is Outcome.LOST, result.reason
        taken = (
            rf"in use by pid {os.getpid()} \(|pid \d+ \(.*, pid {os.getpid()} \("
            if shared
            else "Address already in use"
        )
        assert re.search(taken, result.reason), result.reason


class BesetNode(Node):
    """A machine on which somebody listens on the port as soon as our engine was started."""

    def __init__(self, folder: Path, other: socket.socket) -> None:
        super().__init__("127.0.0.1", folder, release_s=0.3)
        self.other = other

    def start(self, name: str, trial: str, process: ProcessCommand, port: int | None) -> None:
        super().start(name, trial, process, port)
        if port is not None:
            self.other.listen()

    def stop(self, name: str, grace_s: float) -> tuple[str, ...]:
        self.other.close()
        return super().stop(name, grace_s)


def test_a_server_listens_on_the_loopback_and_answers_those_who_bring_its_key(bench: Bench) -> None:
    driver = bench.driver()
    node = WatchedNode("127.0.0.1", bench.folder)
    result = run(ServerDriver(driver.setup, LeakyNodes(node), bench.folder), candidate())
    assert result.outcome is Outcome.OK, result.reason
    assert node.addresses == {"127.0.0.1"}
    assert node.answers == {"/health": 200, "/v1/models": 401, "/collective_rpc": 401}
    assert len(node.command_lines) >= 3
    texts = [*node.command_lines, *(path.read_text() for path in bench.folder.rglob("*.*") if path.is_file())]
    assert not [text for text in texts if driver.setup.key in text]


class WatchedNode(Node):
    """A machine on which somebody without the key looks at a server under load."""

    port = 0

    def start(self, name: str, trial: str, process: ProcessCommand, port: int | None) -> None:
        super().start(name, trial, process, port)
        self.port = port or self.port
        if name == "load":
            addresses = [each.laddr for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
            self.addresses = {address.ip for address in addresses if address and address.port == self.port}
            self.answers = {path: self.ask(path) for path in ("/health", "/v1/models", "/collective_rpc")}
            self.command_lines = [" ".join(each.cmdline()) for each in psutil.process_iter() if marker_of(each.pid)]

    def ask(self, path: str) -> int:
        body = b"{}" if path == "/collective_rpc" else None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", body) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


class TestReferenceText:
    """Greedy, the same prompt: moving layers must not change what the model says."""

    def test_another_text_than_the_default_partitions_is_invalid(self, bench: Bench) -> None:
        driver = bench.driver()
        assert run(driver, candidate("corrupt", partition=(18, 18))).outcome is Outcome.OK
        assert run(driver, candidate("corrupt", partition=(18, 18), max_num_seqs=16)).outcome is Outcome.OK
        result = run(driver, candidate("corrupt", partition=(20, 16), max_num_seqs=16))
        assert result.outcome is Outcome.INVALID
        assert "where the default partition said" in result.reason

    def test_the_same_text_passes_and_without_a_reference_nothing_is_said(self, bench: Bench) -> None:
        driver = bench.driver()
        assert run(driver, candidate("corrupt")).outcome is Outcome.OK
        assert run(driver, candidate(partition=(18, 18))).outcome is Outcome.OK
        assert run(driver, candidate()).outcome is Outcome.OK

    def test_it_can_be_switched_off(self, bench: Bench) -> None:
        driver = bench.driver(fake_setup(reference_text=False))
        assert run(driver, candidate("corrupt", partition=(18, 18))).outcome is Outcome.OK
        assert run(driver, candidate("corrupt")).outcome is Outcome.OK


def test_a_stale_partition_in_the_environment_does_not_win(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "12,24")
    result = measure(bench)
    assert result.outcome is Outcome.OK, result.reason


DRIVE = """
import sys
from pathlib import Path
from tests.fake_setup import Bench, candidate
from partitune.execution.driver import run
print(run(Bench(Path(sys.argv[1])).driver(), candidate(*sys.argv[2:])).outcome, flush=True)
"""


@pytest.mark.parametrize("moment", ["spawn", "serving", "measuring"])
def test_a_driver_that_is_killed_leaves_no_engine(tmp_path: Path, moment: str) -> None:
    bench = Bench(tmp_path)
    acts = {"spawn": ("slow-load:60",), "serving": ("frozen",), "measuring": ("stalls-after:6",)}[moment]
    sign = {"spawn": "Starting to load", "serving": "startup complete", "measuring": "startup complete"}[moment]
    environment = {name: value for name, value in os.environ.items() if name != MARKER}
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVE, str(tmp_path), *acts], cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)}
    )
    logs = tmp_path / "trials"
    wait_until(lambda: any(sign in log.read_text() for log in logs.glob("*/node0.log")))
    if moment == "measuring":
        wait_until(lambda: bool(list(logs.glob("*/load.log"))))
    assert bench.orphans()
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: bench.orphans() == [])
    assert bench.records()  # nobody was there to close it: the janitor's work
    assert run(bench.driver(), candidate()).outcome is Outcome.OK
    with bench.driver().source.nodes(1) as (node,):
        node.clean()
    assert bench.records() == []


def test_ctrl_c_ends_the_engine_in_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVE, str(tmp_path), "slow-load:60"], cwd=ROOT, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    wait_until(lambda: bool(bench.orphans()))
    process.send_signal(signal.SIGINT)
    assert process.wait() != 0
    assert bench.orphans() == []
    assert bench.records() == []


class TestTwoNodes:
    """Two process groups that stand for two nodes, both on this machine."""

    def two(self) -> Setup:
        cluster = {"nodes": 2, "gpus_per_node": 1, "gpu": "L40S"}
        return fake_setup(cluster=cluster, nodes={"hosts": ["127.0.0.1", "127.0.0.1"]})

    def test_both_groups_run_and_both_end(self, bench: Bench) -> None:
        result = run(bench.driver(self.two()), candidate())
        assert result.outcome is Outcome.OK, result.reason
        logs = {path.name: path.read_text() for path in (bench.folder / "trials").glob("*/node*.log")}
        assert "(Worker_PP0 " in logs["node0.log"]
        assert "(Worker_PP1 " in logs["node1.log"]
        assert "startup complete" not in logs["node1.log"]

    def test_the_cause_is_read_from_the_node_that_has_it(self, bench: Bench) -> None:
        result = run(bench.driver(self.two()), candidate("oom-load"))
        assert (result.outcome, result.constraints) == (Outcome.INFEASIBLE, {MEMORY_CONSTRAINT: 2.25})
        assert "(Worker_PP1, node 1, log line " in result.reason
