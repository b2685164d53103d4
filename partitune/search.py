"""The loop: propose, submit, wait for any, record, tell.

Decision: everything a search needs is handed in, and the loop does nothing but move values between its collaborators,
so it reads in one minute and is tested with any of them replaced. A result is committed before the proposer hears of
it: what was learnt is always on disk.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from partitune.pool import Pool
from partitune.proposer.interface import Proposer
from partitune.result import Outcome, Result
from partitune.space import Proposal

#: How long one wait for a result lasts before the loop looks at its budget again.
TICK_S = 1.0


class Recorder(Protocol):
    """Where finished trials go, durably."""

    def record(self, result: Result, label: str) -> int:
        """Commit one trial and return its number."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop: trials count those already stored."""

    trials: int
    hours: float | None = None  # of this run
    gpu_hours: float | None = None  # of all trials: GPUs x their duration


@dataclass(slots=True)
class Progress:
    """What the loop tells whoever watches."""

    finished: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    running: int = 0
    gpu_hours: float = 0.0
    where: str = ""  # which pool takes the next candidate
    stopped: str = ""  # why the loop ended


def search(
    proposer: Proposer,
    pool: Pool,
    recorder: Recorder,
    budget: Budget,
    *,
    already: int = 0,
    gpus: int = 0,
    gpu_hours: float = 0.0,
    watch: Callable[[Progress, int | None, Proposal | None, Result | None], None] = lambda *_: None,
) -> Progress:
    """Run until the budget is spent or nothing new is left.

    `already` trials and `gpu_hours` of the budget are in the store; a trial takes `gpus` GPUs.
    """
    progress = Progress(finished=already, gpu_hours=gpu_hours)
    deadline = None if budget.hours is None else time.monotonic() + 3600 * budget.hours
    in_flight: dict[str, Proposal] = {}
    rerun: set[str] = set()
    while True:
        while pool.free_slots and progress.finished + len(in_flight) < budget.trials and not progress.stopped:
            if deadline is not None and time.monotonic() > deadline:
                progress.stopped = f"the budget of {budget.hours:g} hours is spent"
                break
            if budget.gpu_hours is not None and progress.gpu_hours >= budget.gpu_hours:
                progress.stopped = f"the budget of {budget.gpu_hours:g} GPU-hours is spent"
                break
            proposal = proposer.ask()
            if proposal is None:
                if not in_flight:
                    progress.stopped = "nothing new left to try in this space"
                break
            in_flight[proposal.candidate.digest] = proposal
            progress.where = pool.description
            pool.submit(proposal.candidate)
            progress.running = len(in_flight)
            watch(progress, None, proposal, None)
        if not in_flight and (progress.stopped or progress.finished >= budget.trials):
            break
        progress.where = pool.description
        result = pool.next_done(TICK_S)
        if result is None:
            watch(progress, None, None, None)
            continue
        digest = result.candidate.digest
        if result.outcome is Outcome.LOST and digest not in rerun:
            rerun.add(digest)  # infrastructure took it: once more, and only once
            pool.submit(result.candidate)
            continue
        proposal = in_flight.pop(digest)
        number = recorder.record(result, proposal.label)
        proposer.tell(result, proposal.label)
        progress.finished += 1
        progress.gpu_hours += gpus * result.duration_s / 3600
        progress.outcomes[result.outcome] += 1
        progress.running = len(in_flight)
        watch(progress, number, proposal, result)
    progress.stopped = progress.stopped or f"the budget of {budget.trials} trials is spent"
    return progress
