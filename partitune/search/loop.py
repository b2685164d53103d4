"""The loop: propose, submit, wait for any, record, tell.

Decision: everything a search needs is handed in, and the loop does nothing but move values between its collaborators,
so it reads in one minute and is tested with any of them replaced. A result is committed before the proposer hears of
it: what was learnt is always on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from partitune.candidate import Outcome, Result
from partitune.execution.pools.pools import Pool
from partitune.search.budget import Budget, Progress
from partitune.search.proposers.proposer import Proposer
from partitune.search.space import Proposal

#: How long one wait for a result lasts before the loop looks at its budget again.
TICK_S = 1.0


class Recorder(Protocol):
    """Where finished trials go, durably."""

    def record(self, result: Result, label: str) -> int:
        """Commit one trial and return its number."""
        ...


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
    progress = Progress(finished=already, gpus=gpus, gpu_hours=gpu_hours)
    in_flight: dict[str, Proposal] = {}
    rerun: set[str] = set()
    while True:
        while pool.free_slots and progress.finished + len(in_flight) < budget.trials and not progress.stopped:
            progress.stopped = budget.spent(progress, pool.free_slots + pool.running)
            if progress.stopped:
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
        progress.count(result, len(in_flight))
        watch(progress, number, proposal, result)
    progress.stopped = progress.stopped or f"the budget of {budget.trials} trials is spent"
    return progress
