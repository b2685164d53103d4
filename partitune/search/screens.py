"""The screen of a study that launches: simulated once, stored, and read back when the study goes on.

Decision: what the simulator said is part of the study, for it is what the measured figures are held against. So every
simulated candidate is stored, also those that were only predicted because another one proposed them.
"""

from __future__ import annotations

from collections.abc import Callable

from partitune.execution.driver import Driver
from partitune.search.proposers.optuna import OptunaProposer
from partitune.search.proposers.screened import OPENING, Screened, screen
from partitune.search.space import Proposal, Space
from partitune.store import ScreenedRecord, Store


def stored_screen(
    store: Store,
    study: str,
    space: Space,
    sampler: OptunaProposer,
    simulator: Driver,
    count: int,
    watch: Callable[[int, int], None],
) -> list[Screened]:
    """Up to `count` simulated candidates: those that are stored, and what is missing of them, simulated now.

    Args:
        store: where they are kept.
        study: whose screen it is.
        space: that they were proposed in; those it would no longer propose are left out.
        sampler: a new one, which the screen alone teaches.
        simulator: that says how good they are.
        count: how many; a seed that is new is simulated whatever the count.
        watch: hears how many of how many there are.
    """
    opening = {proposal.candidate.digest for proposal in space.first_proposals()}
    found = []
    for one in map(_screened, store.screened(study)):
        candidate, proposal = one.proposal.candidate, one.proposal
        proposable = proposal.origin not in OPENING and space.encode(candidate, proposal.plan) is not None
        if proposable or candidate.digest in opening:
            sampler.tell(one.result, proposal.label)
            found.append(one)
    new = opening - {one.proposal.candidate.digest for one in found}
    wanted = max(count, len(found) + len(new))
    for one in screen(sampler, simulator, wanted - len(found)):
        keep(store, study, one)
        found.append(one)
        watch(len(found), wanted)
    return found


def keep(store: Store, study: str, one: Screened) -> None:
    """Store what the simulator said of one candidate; what is stored already stays."""
    store.record_screened(study, one.proposal.label, one.result)


def _screened(record: ScreenedRecord) -> Screened:
    origin, _, plan = record.origin.partition(":")
    return Screened(Proposal(record.result.candidate, origin, plan), record.result)
