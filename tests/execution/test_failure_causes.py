"""Failure causes against what engines really write.

The recorded logs are real (tests/data/engine_output). The other messages are composed as in the source named beside
them; their figures come from the field reports that the rules were written for.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partitune.candidate import Candidate, Measurement, Outcome
from partitune.engines.readout import FailureKind, Phase, Readout
from partitune.errors import LaunchFailed, NodeLost, OutOfMemory, Refused, RunError, Unhealthy
from partitune.execution.driver import MEMORY_CONSTRAINT, Driver, run
from partitune.execution.readout.failure_causes import find_cause, last_lines
from tests.engine_output import SGLANG, VLLM, VLLM_READY, recorded, sglang, vllm

# PyTorch's CUDA caching allocator.
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use."
)
# v1/core/kv_cache_utils.py, _check_enough_kv_cache_memory; the figures of vllm#34076.
KV = (
    "ValueError: To serve at least one request with the model's max seq len (262144), (24.0 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (3.18 GiB). Based on the available memory, the estimated "
    "maximum model length is 34736. Try increasing `gpu_memory_utilization`"
)
NO_KV = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
# v1/worker/utils.py, request_memory.
TAKEN = (
    "ValueError: Free memory on device cuda:0 (19.77/23.57 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 21.21 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
# v1/worker/cpu_worker.py.
TAKEN_CPU = (
    "ValueError: Available memory on node 0 (3.1/23.54 GiB) on kv cache allocation is less than requested memory for "
    "kv (5.5/21.6 GiB). Reduce CPU memory used by other processes."
)
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was "
    "a network error"
)
# v1/engine/exceptions.py and v1/engine/utils.py.
DEAD = (
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
    "See stack trace (above) for the root cause."
)
INIT = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"

# config/scheduler.py, verify_max_model_len, as pydantic wraps it.
INVALID = (
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
    "  Value error, max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (128). [type=…]\n"
)
# model_executor/models/registry.py, wrapped likewise.
NO_MODEL = (
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
    "  Value error, Model architectures ['FooForCausalLM'] are not supported for now. Supported architectures: […]\n"
)
# config/model.py, verify_with_parallel_config.
NO_PP = "NotImplementedError: Pipeline parallelism is not supported for this model. Supported models implement the"
# srt/model_executor/pool_configurator.py.
SGLANG_POOL = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.7\n"
UVICORN = "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use\n"
CLIENT = "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while connecting"

#: How those of the logs below begin that only SGLang writes.
SPOKEN_BY_SGLANG = ("[2026-", "ValueError: nccl_port")


def failure_of(logs: list[str], readout: Readout) -> RunError | None:
    cause = find_cause(logs, readout)
    return None if cause is None else cause.error()


LOADING = vllm(1, "Worker_PP1_TP0", "Starting to load model m...", "INFO")
LOADED = vllm(2, "Worker_PP1_TP0", "Model loading took 70.5 GiB memory and 60.2 seconds", "INFO")


def test_a_healthy_life_has_no_cause() -> None:
    assert find_cause([recorded("served.log")], VLLM) is None
    assert failure_of([], VLLM) is None


def test_a_wrong_partition_in_a_real_log_is_found_below_all_its_echoes() -> None:
    cause = find_cause([recorded("wrong_partition.log")], VLLM)
    assert cause is not None
    assert (cause.kind, cause.phase) == (FailureKind.PARTITION, Phase.LOAD)
    assert cause.line.place == {"PP": 0}
    assert cause.words == "ValueError: sum(partitions)=17 does not match num_hidden_layers=16."
    assert "while loading weights on stage 0 (Worker_PP0, node 0, log line " in cause.message
    assert type(cause.error()) is LaunchFailed


@pytest.mark.parametrize(
    ("name", "kind", "phase", "error", "gib", "words"),
    [
        (
            "wrong_flag",
            FailureKind.ARGUMENT,
            Phase.SPAWN,
            Refused,
            None,
            "unrecognized arguments: --max-num-batched-tokenz 3",
        ),
        ("kv_too_small", FailureKind.KV_TOO_SMALL, Phase.CAPTURE, OutOfMemory, 1.0, "maximum model length is 65408"),
        ("kv_space_over_memory", FailureKind.MEMORY_TAKEN, Phase.CAPTURE, OutOfMemory, 64 - 21.26, "(21.26/23.54 GiB)"),
        (
            "port_in_use",
            FailureKind.PORT,
            Phase.SPAWN,
            NodeLost,
            None,
            "OSError: [Errno 98] Address already in use",
        ),
        (
            "dies_at_first_request",
            FailureKind.ENGINE,
            Phase.READY,
            Unhealthy,
            None,
            "at `assert self.intermediate_tensors is",
        ),
        (
            "killed_worker",
            FailureKind.KILLED,
            Phase.READY,
            Unhealthy,
            None,
            "Worker proc VllmWorker-1 died unexpectedly",
        ),
    ],
)
def test_recorded_failures(
    name: str, kind: FailureKind, phase: Phase, error: type[RunError], gib: float | None, words: str
) -> None:
    cause = find_cause([recorded(f"{name}.log")], VLLM)
    assert cause is not None
    assert (cause.kind, cause.phase) == (kind, phase)
    assert words in cause.words
    raised = cause.error()
    assert type(raised) is error
    assert raised.excess == pytest.approx(gib)


@pytest.mark.parametrize(
    ("log", "kind", "phase", "error", "gib"),
    [
        (LOADING + vllm(3, "Worker_PP1_TP0", OOM), FailureKind.OOM, Phase.LOAD, OutOfMemory, 2.0),
        (LOADED + vllm(3, "Worker_PP1_TP0", OOM), FailureKind.OOM, Phase.CAPTURE, OutOfMemory, 2.0),
        (VLLM_READY + vllm(3, "Worker_PP1_TP0", OOM), FailureKind.OOM, Phase.READY, OutOfMemory, 2.0),
        (LOADED + vllm(3, "EngineCore", KV), FailureKind.KV_TOO_SMALL, Phase.CAPTURE, OutOfMemory, 20.82),
        (
            LOADED
            + vllm(3, "Worker_PP0_TP0", "Available KV cache memory: -1.25 GiB", "INFO")
            + vllm(4, "EngineCore", NO_KV),
            FailureKind.KV_TOO_SMALL,
            Phase.CAPTURE,
            OutOfMemory,
            1.25,
        ),
        (vllm(1, "Worker_PP1_TP0", TAKEN), FailureKind.MEMORY_TAKEN, Phase.SPAWN, OutOfMemory, 1.44),
        (vllm(1, "Worker_PP1", TAKEN_CPU), FailureKind.MEMORY_TAKEN, Phase.SPAWN, OutOfMemory, 2.4),
        (
            INVALID,
            FailureKind.ARGUMENT,
            Phase.SPAWN,
            Refused,
            None,
        ),
        (
            NO_PP + "\n",
            FailureKind.UNSUPPORTED,
            Phase.SPAWN,
            Refused,
            None,
        ),
        (
            NO_MODEL,
            FailureKind.UNSUPPORTED,
            Phase.SPAWN,
            Refused,
            None,
        ),
        (  # srt/model_executor/model_runner.py
            sglang(1, " PP0 TP0", "Scheduler hit an exception: Traceback (most recent call last):")
            + "AssertionError: Pipeline Parallel is not compatible with this model.\n",
            FailureKind.UNSUPPORTED,
            Phase.SPAWN,
            Refused,
            None,
        ),
        (
            sglang(1, " PP3 TP1", "Load weight end. elapsed=60.10 s, type=K3, avail mem=2.1 GB, mem usage=70.20 GB.")
            + SGLANG_POOL,
            FailureKind.KV_TOO_SMALL,
            Phase.CAPTURE,
            OutOfMemory,
            None,
        ),
        (
            UVICORN,
            FailureKind.PORT,
            Phase.SPAWN,
            NodeLost,
            None,
        ),
        (  # srt/utils/network.py, wait_port_available
            "ValueError: nccl_port at 29501 is not available in 30 seconds. Process 7 holds it\n",
            FailureKind.PORT,
            Phase.SPAWN,
            NodeLost,
            None,
        ),
        (
            vllm(1, "Worker", "world_size=16 rank=8 local_rank=0 distributed_init_method=tcp://10.0.0.1:29501", "INFO")
            + vllm(2, "Worker", CLIENT),
            FailureKind.RENDEZVOUS,
            Phase.RENDEZVOUS,
            LaunchFailed,
            None,
        ),
        (VLLM_READY + vllm(1, "Worker_PP1", NCCL), FailureKind.COLLECTIVE, Phase.READY, Unhealthy, None),
        (VLLM_READY + vllm(1, "APIServer", DEAD), FailureKind.DEAD, Phase.READY, Unhealthy, None),
        (  # v1/executor/multiproc_executor.py, monitor_workers
            VLLM_READY
            + vllm(1, "EngineCore", "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down")
            + vllm(2, "APIServer", DEAD),
            FailureKind.KILLED,
            Phase.READY,
            Unhealthy,
            None,
        ),
        (
            VLLM_READY + vllm(1, "Worker_PP1", "AssertionError\n") + vllm(2, "APIServer", DEAD),
            FailureKind.ENGINE,
            Phase.READY,
            Unhealthy,
            None,
        ),
    ],
)
def test_every_kind_has_its_name_error_and_amount(
    log: str, kind: FailureKind, phase: Phase, error: type[RunError], gib: float | None
) -> None:
    cause = find_cause([log], SGLANG if log.startswith(SPOKEN_BY_SGLANG) else VLLM)
    assert cause is not None
    assert (cause.kind, cause.phase) == (kind, phase)
    raised = cause.error()
    assert type(raised) is error
    assert raised.excess == pytest.approx(gib, abs=1e-9)
    assert kind.value in str(raised)


def test_a_refused_value_is_said_in_the_engines_words() -> None:
    error = failure_of([INVALID], VLLM)
    assert error is not None
    assert "max_num_batched_tokens (64) must be greater" in str(error)
    assert "the estimated maximum model length is 34736" in str(failure_of([vllm(1, "EngineCore", KV)], VLLM))


def test_the_earliest_root_over_all_nodes_wins_and_loud_consequences_do_not() -> None:
    """Four ranks on two nodes: stage 1's quiet memory error at second 10, NCCL errors of others before and after."""
    node_0 = vllm(9, "Worker_PP0_TP0", NCCL) + vllm(14, "EngineCore", INIT) + vllm(15, "APIServer", DEAD)
    node_1 = vllm(10, "Worker_PP1_TP0", TAKEN) + vllm(12, "Worker_PP1_TP1", OOM) + vllm(13, "Worker_PP1_TP1", NCCL)
    cause = find_cause([node_0, node_1], VLLM)
    assert cause is not None
    assert (cause.kind, cause.line.node, cause.line.process) == (FailureKind.MEMORY_TAKEN, 1, "Worker_PP1_TP0")
    assert cause.excess_gib == pytest.approx(21.21 - 19.77)


def test_a_stage_that_is_behind_the_others_fails_in_its_own_phase() -> None:
    faster = vllm(2, "Worker_PP0_TP0", "Model loading took 9.5 GiB memory and 6.2 seconds", "INFO")
    cause = find_cause([faster, LOADING + vllm(3, "Worker_PP1_TP0", OOM)], VLLM)
    assert cause is not None
    assert (cause.phase, cause.message[:46]) == (Phase.LOAD, "out of memory while loading weights on stage 1")


def test_a_bare_traceback_is_not_blamed_on_whoever_spoke_before() -> None:
    """vLLM heads every line of a record; SGLang only the first of a traceback."""
    cause = find_cause([LOADING + "Traceback (most recent call last):\nKeyError: 'x'\n"], VLLM)
    assert cause is not None
    assert (cause.line.process, cause.line.place) == ("", {})
    cause = find_cause(
        [sglang(1, " PP1 TP0", "Scheduler hit an exception: Traceback (most recent call last):") + OOM], SGLANG
    )
    assert cause is not None
    assert cause.line.place == {"PP": 1, "TP": 0}


def test_of_two_roots_on_two_nodes_the_clock_decides_not_the_order_of_the_logs() -> None:
    late, early = vllm(20, "Worker_PP0", OOM), vllm(10, "Worker_PP1", NO_KV)
    for logs in ([late, early], [early, late]):
        cause = find_cause(logs, VLLM)
        assert cause is not None
        assert cause.kind is FailureKind.KV_TOO_SMALL


def test_warnings_and_quoted_source_lines_are_no_errors() -> None:
    # config/parallel.py retries; a traceback quotes the code that raises.
    assert (
        find_cause([vllm(1, "EngineCore", "Address already in use. Retrying with a new port.", "WARNING")], VLLM)
        is None
    )
    frames = vllm(1, "Worker_PP0", '    raise ValueError("No available memory for the cache blocks.")')
    cause = find_cause([frames + vllm(1, "Worker_PP0", "ValueError: something else")], VLLM)
    assert cause is not None
    assert cause.kind is FailureKind.ENGINE


def test_fragmentation_is_still_over_the_limit() -> None:
    """More is free than was tried; a constraint that is not above 0 would count as met."""
    error = failure_of([vllm(1, "Worker_PP0", OOM.replace("2.50 GiB", "20.00 MiB"))], VLLM)
    assert error is not None
    assert error.excess == pytest.approx(2**-10)


def test_the_search_learns_the_gib() -> None:
    class Dying(Driver):
        def measure(self, candidate: Candidate) -> Measurement:
            raise failure_of([LOADED + vllm(3, "EngineCore", KV)], VLLM) or AssertionError

    result = run(Dying(), Candidate((2, 2)))
    assert result.outcome is Outcome.INFEASIBLE
    assert result.constraints == {MEMORY_CONSTRAINT: pytest.approx(20.82)}


def test_without_a_cause_the_last_lines_are_there() -> None:
    logs = ["one\ntwo\n\x1b[31mthree\x1b[0m\n", ""]
    assert find_cause(logs, VLLM) is None
    assert last_lines(logs, VLLM, count=2) == "node 0, last 2 lines:\ntwo\nthree\nnode 1: no output"


_PIECES = [OOM, KV, TAKEN, NCCL, DEAD, INIT, "Tried to allocate 1.2.3 GiB", "9.9.9 GiB is free", "\x00", "\r", "…", "("]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=60)), max_size=12), st.text(max_size=200))
def test_no_log_raises(pieces: list[str], noise: str) -> None:
    logs = ["\n".join(pieces), noise, "".join(vllm(index, "Worker_PP0", piece) for index, piece in enumerate(pieces))]
    cause = find_cause(logs, VLLM)
    last_lines(logs, VLLM)
    if cause is not None:
        error = cause.error()
        assert isinstance(error, RunError)
        assert error.excess is None or error.excess > 0
