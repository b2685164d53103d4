"""What runs is held against what was asked: each witness, and none where nothing was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from partitune.candidate import Candidate, FlagValue
from partitune.engines.readout import Counters, LogReading
from partitune.errors import LaunchFailed
from partitune.execution.processes.launch import LaunchCommands, ProcessCommand
from partitune.execution.readout.engine_readout import read_logs
from partitune.execution.server import deployment_check
from partitune.execution.server.deployment_check import Running
from partitune.execution.server.http_probe import WorkerLayers
from tests.engine_output import VLLM
from tests.fake_setup import fake_setup

GIB = 2**30
SETUP = fake_setup()
PROBLEM = SETUP.problem
NOTHING = read_logs([""], VLLM)


def plan(partition: tuple[int, ...] = (20, 16), nodes: int = 1) -> LaunchCommands:
    processes = tuple(ProcessCommand(node, "h", ("vllm",), {}) for node in range(nodes))
    stage_nodes = (0, 0) if nodes == 1 else (0, 1)
    return LaunchCommands("t", "vllm", "t", 1, processes, partition, stage_nodes=stage_nodes)


def layers(*rows: tuple[int, int, int]) -> tuple[WorkerLayers, ...]:
    return tuple(WorkerLayers(stage, first, end, (end - first) * GIB) for stage, first, end in rows)


def complaint(
    found: Running, asked: LaunchCommands | None = None, counters: Counters | None = None, **flags: FlagValue
) -> str | None:
    """What is wrong; None: nothing."""
    deployment = SETUP.server.deployment(Candidate((20, 16), flags))
    try:
        deployment_check.check(PROBLEM, deployment, asked or plan(), found, counters or Counters())
    except LaunchFailed as error:
        return str(error).removeprefix("the engine does not run what was asked: ")
    return None


def said(reading: LogReading = NOTHING, is_async: bool | None = None, **changes: object) -> Running:
    return Running(replace(reading, **changes), (), is_async)  # type: ignore[arg-type]


def test_the_workers_own_word_decides() -> None:
    right = Running(NOTHING, layers((0, 0, 20), (1, 20, 36)), None)
    assert complaint(right) is None
    assert complaint(right, plan((18, 18))) == "the partition is 20,16, asked for was 18,18 (VLLM_PP_LAYER_PARTITION)"


def test_tensor_parallel_workers_of_a_stage_say_the_same_twice() -> None:
    assert complaint(Running(NOTHING, layers((1, 20, 36), (0, 0, 20), (1, 20, 36), (0, 0, 20)), None)) is None


@pytest.mark.parametrize(
    "rows",
    [[(0, 0, 20), (1, 20, 36), (1, 19, 36)], [(0, 0, 20)], [(0, 0, 20), (1, 21, 37)], [(1, 0, 20), (2, 20, 36)]],
)
def test_workers_that_contradict_one_another_or_are_missing(rows: list[tuple[int, int, int]]) -> None:
    assert complaint(Running(NOTHING, layers(*rows), None)) is not None


def test_an_engine_that_split_by_itself_did_not_see_the_variable() -> None:
    """The message of vLLM 0.32.0 `distributed/utils.py`."""
    log = "(Worker_PP0 pid=1) INFO 11-30 01:00:00 [utils.py:160] Hidden layers were unevenly partitioned: [17,19]. x"
    found = Running(read_logs([log], VLLM), (), None)
    assert (
        complaint(found)
        == "the engine split the layers by itself (17,19) and did not see VLLM_PP_LAYER_PARTITION=20,16"
    )
    assert complaint(found, plan((17, 19))) is None


@pytest.mark.parametrize(("weights", "wrong"), [((8.0, 8.0), True), ((8.7, 7.3), False), ((8.5, 7.6), False)])
def test_weights_of_the_default_split_under_another_partition(weights: tuple[float, float], wrong: bool) -> None:
    """Half and half is 18,18; 20 and 16 layers weigh 8.7 to 7.3; somewhere in between nothing is claimed."""
    found = said(weights_gib={(0, 0): weights[0], (1, 0): weights[1]})
    assert (complaint(found) is not None) == wrong
    assert complaint(found, plan((18, 18))) is None
    assert complaint(said(weights_gib={(0, 0): 8.0})) is None  # vLLM says it on the first rank of a node only


@pytest.mark.parametrize(
    ("seen", "nodes", "wrong"),
    [({0: (0,), 1: (1,)}, 2, False), ({0: (1,), 1: (0,)}, 2, True), ({0: (0,)}, 2, False), ({1: (1,)}, 1, False)],
)
def test_stages_that_stand_on_other_nodes(seen: Mapping[int, tuple[int, ...]], nodes: int, wrong: bool) -> None:
    assert (complaint(said(node_of_stage=seen), plan(nodes=nodes)) is not None) == wrong


def test_scheduling_is_compared_only_where_it_was_asked_for() -> None:
    assert complaint(said(is_async=False)) is None
    assert complaint(said(is_async=True), async_scheduling=True) is None
    assert complaint(said(is_async=None), async_scheduling=True) is None
    wrong = complaint(said(is_async=False), async_scheduling=True)
    assert wrong == "async scheduling is off, asked for was on"


def test_kv_blocks_are_compared_only_where_they_were_asked_for() -> None:
    assert complaint(said(), counters=Counters(kv_blocks=100)) is None
    wrong = complaint(said(), counters=Counters(kv_blocks=100), num_gpu_blocks_override=200)
    assert wrong == "the KV cache has 100 blocks, asked for were 200"


@pytest.mark.parametrize(
    ("runner", "is_async", "regime"),
    [
        (None, None, "async-v2"),
        ("v1", None, "async-v1"),
        ("v1", False, "sync-v1"),
        ("v2", True, "async-v2"),
        (None, False, "sync-v2"),
    ],
)
def test_the_regime_is_what_was_read_and_else_what_was_predicted(
    runner: str | None, is_async: bool | None, regime: str
) -> None:
    deployment = SETUP.server.deployment(Candidate((20, 16)))
    assert PROBLEM.engine.flow(deployment).name == "async-v2"
    assert deployment_check.flow_name(PROBLEM, deployment, said(is_async=is_async, runner=runner)) == regime
