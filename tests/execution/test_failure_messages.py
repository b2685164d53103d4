"""What ends a start, as engines, compilers, drivers, containers, hubs and schedulers say it: each has its kind.

`tests/data/failure_messages.txt` has the messages, each with the engine source or the public thread it stands in.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from partitune.engines.readout import FailureKind, Readout
from partitune.errors import LaunchFailed, NodeLost, Refused, RunError, Stalled
from partitune.execution.readout.failure_causes import find_cause
from tests.engine_output import SGLANG, VLLM, VLLM_READY, sglang, vllm

FILE = Path(__file__).parent.parent / "data" / "failure_messages.txt"
ROWS = [line.split(" | ", 2) for line in FILE.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]


@pytest.mark.parametrize(("kind", "source", "text"), ROWS)
def test_a_message_has_its_kind_with_an_engines_head_and_without(kind: str, source: str, text: str) -> None:
    text = text.replace("\\n", "\n").replace("\\t", "\t")
    for log, readout in ((f"{text}\n", VLLM), (f"{text}\n", SGLANG), (vllm(1, "Worker_PP1", text), VLLM)):
        cause = find_cause([log], readout)
        assert cause is not None, source
        assert cause.kind is FailureKind[kind]
        expected: type[RunError] = NodeLost if cause.kind in (FailureKind.SITE, FailureKind.PORT) else LaunchFailed
        assert type(cause.error()) is expected


@pytest.mark.parametrize(
    ("source", "log", "readout"),
    [
        (
            "SGLang 0.5.23 srt/utils/watchdog.py, WatchdogRaw",
            sglang(3, " PP1 TP0", "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)")
            + sglang(9, "", "Received sigquit from a child process. It usually means the child failed."),
            SGLANG,
        ),
        (
            "the same, before 0.5.6",
            sglang(3, " TP0", "Watchdog timeout (self.watchdog_timeout=300)"),
            SGLANG,
        ),
        (
            "vllm-project/vllm#17965 and intel/llm-scaler#77: v1/executor/multiproc_executor.py",
            VLLM_READY
            + vllm(2, "EngineCore", "TimeoutError")
            + vllm(2, "EngineCore", "TimeoutError: RPC call to sample_tokens timed out.")
            + vllm(3, "APIServer", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."),
            VLLM,
        ),
    ],
)
def test_an_engines_own_watchdog_is_a_stall(source: str, log: str, readout: Readout) -> None:
    cause = find_cause([log], readout)
    assert cause is not None, source
    assert cause.kind is FailureKind.STALL
    assert type(cause.error()) is Stalled


def test_a_soft_watchdog_only_warns_and_a_stall_is_explained_by_what_came_before() -> None:
    soft = sglang(3, " PP1", "Scheduler watchdog timeout (self.watchdog_timeout=30, self.soft=True)")
    hard = soft.replace("True", "False")
    assert find_cause([soft], SGLANG) is None
    cause = find_cause([sglang(1, " PP0", "Scheduler hit an exception: …") + "KeyError: 'x'\n" + hard], SGLANG)
    assert cause is not None
    assert cause.kind is FailureKind.ENGINE


def test_what_a_parser_refuses_is_still_told_from_what_a_scheduler_says() -> None:
    refused = find_cause(["launch_server.py: error: argument --tp: invalid int value: 'x'\n"], SGLANG)
    assert refused is not None
    assert type(refused.error()) is Refused
    # The engine's own error explains the step's.
    cause = find_cause(
        [vllm(1, "EngineCore", "KeyError: 'x'") + "srun: error: n1: task 0: Exited with exit code 1\n"], VLLM
    )
    assert cause is not None
    assert cause.kind is FailureKind.ENGINE
