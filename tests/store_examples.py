"""Results and studies that the store tests share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from partitune.analysis.final import FinalRun
from partitune.analysis.trial import Repeat, Screened, Trial
from partitune.candidate import Candidate, Measurement, Outcome, Result, StageReport
from partitune.store import Store, StudyTerms

SPEC = {"model": "kimi-k3", "parallel": {"pp": 2, "tp": 8}, "knobs": [{"name": "max_num_seqs", "values": [64, 128]}]}


def stage(number: int, layers: int) -> StageReport:
    return StageReport(number, layers, {"kda": layers}, 1.5, 0.25, 0.125, 0.8, 90 * 2**30, 40 * 2**30, 3000, 2**31)


def ok(partition: tuple[int, ...] = (47, 46), *, metrics: dict[str, float] | None = None, **flags: int) -> Result:
    measurement = Measurement(
        metrics={"output_throughput_tok_s": 1234.5, "ttft_p99_ms": 87.25} if metrics is None else metrics,
        stages=tuple(stage(number, layers) for number, layers in enumerate(partition)),
        regime="async-v1",
        kv_blocks=3000,
        kv_tokens=48000,
        limiting_stage=1,
        limiting_reason="LM head",
        simulated=True,
        constraints={"ttft_p99_ms": -0.5},
    )
    return Result(Candidate(partition, flags), Outcome.OK, "", measurement, {"ttft_p99_ms": -0.5}, 0.75)


def failed(outcome: Outcome = Outcome.FAILED, reason: str = "the engine did not start", **flags: int) -> Result:
    return Result(Candidate((47, 46), flags), outcome, reason)


def start(store: Store, name: str = "k3") -> str:
    store.create_study(StudyTerms(name, SPEC, "vllm", "0.33.0", "simulator", 7, None))
    return name


def again(
    store: Store, spec: Mapping[str, Any] = SPEC, name: str = "k3", *, runner: str = "simulator", **how: Any
) -> list[str]:
    """Go on with what `start` began."""
    return store.resume(StudyTerms(name, spec, "vllm", "0.33.0", runner, 7, None), **how)


def record(store: Store, study: str, number: int, result: Result, origin: str) -> None:
    """Commit one trial that ended now."""
    store.record(Trial(study, number, origin, datetime.now(UTC), result))


def record_screened(store: Store, study: str, origin: str, result: Result) -> None:
    """Commit what the simulator said."""
    store.record(Screened(study, origin, result))


def record_repeat(store: Store, study: str, run: FinalRun, result: Result) -> None:
    """Commit one run of a final that ended now."""
    store.record(Repeat(study, run.phase, run.repeat, run.trial, datetime.now(UTC), result))


def filled(path: Path, trials: int = 3) -> Path:
    with Store.open(path) as store:
        start(store)
        for number in range(trials):
            record(store, "k3", number, ok(knob=number), "sampler:0")
    return path
