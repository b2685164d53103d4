"""Collaborators that do what a test tells them, importable so that they can be pickled to workers."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from partitune.candidate import Candidate, FlagValue, Measurement, StageReport
from partitune.errors import BenchmarkFailed, LaunchFailed, OutOfMemory, Stalled, TimedOut
from partitune.execution.driver import Driver


def measurement(throughput: float, **constraints: float) -> Measurement:
    """A small measurement with one free figure."""
    stage = StageReport(0, 4, {"full+dense": 4}, 1.0, 0.0, 0.5, 0.66, 100, 200, 10, 0)
    metrics = {"output_throughput_tok_s": throughput, "ttft_p99_ms": 1000.0 / max(throughput, 1e-9), "kv_tokens": 160.0}
    return Measurement(metrics, (stage,), "async-v2", 10, 160, 0, "it is the only stage", True, constraints)


@dataclass(frozen=True)
class ScriptedDriver(Driver):
    """Behaves as `candidate.flags["act"]` says; throughput is the sum of squares of the partition."""

    def measure(self, candidate: Candidate) -> Measurement:
        act: FlagValue = candidate.flags.get("act", "ok")
        if act == "oom":
            raise OutOfMemory("stage 1 is short of 3.5 GiB", excess=3.5)
        if act == "launch":
            raise LaunchFailed("the engine refused a flag")
        if act == "environment":
            variables = " ".join(f"{name}={os.environ[name]}" for name in sorted(os.environ) if "RAY_" in name)
            raise LaunchFailed(variables[::-1])  # backwards, as a secret would be masked
        if act == "bench":
            raise BenchmarkFailed("0 of 16 requests completed")
        if act == "stalled":
            raise Stalled("no token for 60 s")
        if act == "timeout":
            raise TimedOut("load took over 600 s", excess=0.2)
        if act == "bug":
            raise KeyError("pages")
        if act == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if act == "slow":
            time.sleep(0.5)
        if act == "slo":
            return measurement(10.0, ttft_p99_ms=0.25)
        return measurement(float(sum(layers * layers for layers in candidate.partition)))
