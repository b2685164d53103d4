"""The loop: propose, submit, wait for any, record, tell.

Decision: everything a search needs is handed in, and the loop does nothing but move values between its collaborators,
so it reads in one minute and is tested with any of them replaced. There is one loop: a screen is a search on the
simulator, a final a search whose proposer asks for what is due, a launch a search of one. A result is committed before
the proposer hears of it: what was learnt is always on disk.
"""

from __future__ import annotations

from collections.abc import Callable

from partitune.candidate import Outcome, Result, Submission
from partitune.execution.pools.pool import Pool
from partitune.search.budget import Progress, StoppingRule
from partitune.search.events import Watcher
from partitune.search.proposers.proposer import Proposer

#: How long one wait for a result lasts before the loop looks at its budget again.
TICK_S = 1.0
#: Commits one run, durably, and returns the number of its trial.
Record = Callable[[Submission, Result], int]


def search(
    proposer: Proposer, pool: Pool, record: Record, until: StoppingRule, progress: Progress, watcher: Watcher
) -> str:
    """Run until the budget is spent or nothing is left to ask for.

    Args:
        proposer: says what to run, and has been told what ran before.
        pool: where it runs, entered.
        record: commits each run before anything follows from it.
        until: when to start nothing more; what runs then is waited for.
        progress: where it stands; goes on as runs end.
        watcher: hears of every step.

    Returns:
        Why it ended.

    Raises:
        ClusterError: the pool's cluster stays away.
    """
    in_flight: dict[tuple[str, int], Submission] = {}
    rerun: set[tuple[str, int]] = set()
    asked: Submission | None = None  # and not submitted, for want of a slot
    stopped = ""
    while True:
        for line in pool.news():
            watcher.said(line)
        while not stopped and (pool.free_slots or not in_flight):
            stopped = until.spent(progress, pool.free_slots + pool.running)
            if not stopped and (asked := asked or proposer.ask()) is None and not in_flight:
                stopped = "nothing new left to try in this space"
            if stopped or asked is None or not pool.free_slots:
                break
            in_flight[asked.key] = asked
            progress.where, progress.running = pool.description, len(in_flight)
            pool.submit(asked)
            watcher.tick(progress)
            asked = None
        if stopped and not in_flight:
            return stopped
        progress.where = pool.description
        result = pool.next_done(TICK_S)
        if result is None:
            watcher.tick(progress)
            continue
        key = (result.candidate.digest, result.repeat)
        if result.outcome is Outcome.LOST and key not in rerun:
            rerun.add(key)  # infrastructure took it: once more, and only once
            pool.submit(in_flight[key])
            continue
        submission = in_flight.pop(key)
        number = record(submission, result)
        proposer.tell(submission, result)
        progress.count(result, len(in_flight))
        watcher.finished(progress, number, submission, result)
