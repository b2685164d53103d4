"""The loop of the final: submit what is due, wait for any, record, until a winner is found or the budget is spent.

Decision: the same shape as `search.py`, and as little of its own: `analysis.final` says what is due, which follows from
what was recorded, so a final that was killed goes on with the runs that are left and makes none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from partitune.analysis.final import Final, Run, measured_value, most_runs
from partitune.candidate import Candidate, Outcome, Result
from partitune.execution.pools.pools import Pool
from partitune.search.budget import Budget, Progress
from partitune.search.loop import TICK_S


class RunRecorder(Protocol):
    """Where the runs of a final go, durably."""

    def record_run(self, run: Run, result: Result) -> None:
        """Commit one run."""
        ...


def play(
    final: Final,
    candidates: Mapping[int, Candidate],
    done: Mapping[Run, float | None],
    pool: Pool,
    recorder: RunRecorder,
    budget: Budget,
    progress: Progress,
    watch: Callable[[Progress], None] = lambda _: None,
) -> bool:
    """Make the runs that are due.

    Args:
        final: who takes part.
        candidates: trial number -> what it deploys, of the finalists and the default.
        done: runs that were made before: their value of the first objective, None where they failed.
        pool: where they run.
        recorder: commits each before anything follows from it.
        budget: hours and GPU-hours count, trials do not; all that is left may be spent.
        progress: of the search before; goes on, `stopped` is set only where the budget ends the final.
        watch: called when something changed.

    Returns:
        True when the final is over.
    """
    found = dict(done)
    in_flight: dict[tuple[str, int], Run] = {}
    rerun: set[Run] = set()
    most = most_runs(len(final.finalists), 0 if final.default is None else final.pairs)
    takes_part = (*final.finalists, final.default)
    whole, spent = replace(budget, later_runs=0), ""
    while True:
        due = [run for run in final.standing(found)[1] if run not in in_flight.values()]
        while due and pool.free_slots and not spent:
            spent = whole.spent(progress)
            if spent:
                break
            run = due.pop(0)
            in_flight[candidates[run.trial].digest, run.load] = run
            progress.where, progress.running = pool.description, len(in_flight)
            made = len([one for one in found if one.trial in takes_part]) + len(in_flight)
            progress.phase = f"final, {run.text} ({made} of at most {most} runs)"
            pool.submit(candidates[run.trial], run.load)
            watch(progress)
        if not in_flight and (spent or not due):
            break
        progress.where = pool.description
        result = pool.next_done(TICK_S)
        if result is None:
            watch(progress)
            continue
        run = in_flight[result.candidate.digest, result.repeat]
        if result.outcome is Outcome.LOST and run not in rerun:
            rerun.add(run)  # infrastructure took it: once more, and only once
            pool.submit(result.candidate, result.repeat)
            continue
        del in_flight[result.candidate.digest, result.repeat]
        recorder.record_run(run, result)
        found[run] = measured_value(result, final.objective)
        progress.count(result, len(in_flight))
        watch(progress)
    if spent:
        progress.stopped = f"{spent}; the final is not finished"
    return not final.standing(found)[1]
