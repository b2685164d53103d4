"""A driver measures one candidate and knows nothing of Optuna, Ray or SQLite.

Decision: one verb. A driver is pickled once to every worker, so everything it needs is in it. What went wrong is a
typed RunError; the pool boundary below turns it into an outcome, so that nothing a driver does can end a search.
"""

from __future__ import annotations

import time
import traceback
from dataclasses import replace
from typing import Protocol

from partitune.candidate import Candidate, Measurement, Outcome, Result, flaw_in
from partitune.errors import BenchmarkFailed, NodeLost, OutOfMemory, Refused, RunError, Stalled, TimedOut
from partitune.execution.processes.masking import mask
from partitune.execution.ray.groups import RayGroup

#: The constraint every trial carries: GiB that the tightest stage is short of, <= 0 when it fits.
MEMORY_CONSTRAINT = "memory_gib_over"
#: How many of the engine's own rules a candidate breaks.
RULES_CONSTRAINT = "engine_rules_broken"
#: The constraint a time-out or stall is graded by: 1 where it happened.
TIME_CONSTRAINT = "time_limits_missed"


class Driver(Protocol):
    """Measures candidates. Must be picklable; what has a body here is for drivers that have more to say."""

    def measure(self, candidate: Candidate) -> Measurement:
        """Measure one candidate or raise RunError."""

    def prepare(self) -> tuple[str, ...]:
        """Check once, where candidates will run, before the first of them.

        Returns:
            what a person should know, a sentence each.

        Raises:
            PartituneError: no candidate could be measured.
        """
        return ()

    def repeated(self, repeat: int) -> Driver:  # noqa: ARG002
        """The same driver with the load of run `repeat`, the same for all candidates, where it can be drawn anew."""
        return self

    @property
    def group(self) -> RayGroup | None:
        """What each candidate reserves of a Ray cluster; None where it is measured on this machine."""
        return None


def run(driver: Driver, candidate: Candidate, repeat: int = 0) -> Result:
    """Measure `candidate` and turn whatever happens into a Result. Never raises for a candidate's sake.

    Run 0 is its trial; further ones have another load where the driver has seeds to draw one with.
    """
    start = time.monotonic()
    result = _tried(driver.repeated(repeat) if repeat else driver, candidate)
    result = replace(result, reason=mask(result.reason), detail=mask(result.detail))
    return replace(result, duration_s=time.monotonic() - start, repeat=repeat)


def _tried(driver: Driver, candidate: Candidate) -> Result:
    try:
        measurement = driver.measure(candidate)
    except RunError as error:
        outcome, constraints = _outcome_of(error)
        return Result(candidate, outcome, str(error), constraints=constraints, detail=error.detail)
    except Exception as error:  # noqa: BLE001 - the one broad catch: a bug in a driver must not end a long study
        where = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"internal error in the driver: {type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        return Result(candidate, Outcome.FAILED, reason, detail=traceback.format_exc())
    figures = {"metrics": measurement.metrics, "constraints": measurement.constraints}
    if flaw := flaw_in(figures, "measurement"):
        return Result(candidate, Outcome.INVALID, flaw)
    missed = {name: value for name, value in measurement.constraints.items() if value > 0}
    reason = "; ".join(f"{name} missed by {100 * value:.1f} %" for name, value in sorted(missed.items()))
    outcome = Outcome.INFEASIBLE if missed else Outcome.OK
    return Result(candidate, outcome, reason, measurement, dict(measurement.constraints))


def _outcome_of(error: RunError) -> tuple[Outcome, dict[str, float]]:
    excess = 1.0 if error.excess is None else error.excess
    if isinstance(error, OutOfMemory):
        return Outcome.INFEASIBLE, {MEMORY_CONSTRAINT: excess}
    if isinstance(error, Refused):
        return Outcome.INFEASIBLE, {RULES_CONSTRAINT: excess}
    if isinstance(error, TimedOut | Stalled):
        return Outcome.INFEASIBLE, {TIME_CONSTRAINT: excess}
    if isinstance(error, BenchmarkFailed):
        return Outcome.INVALID, {}
    if isinstance(error, NodeLost):
        return Outcome.LOST, {}
    return Outcome.FAILED, {}
