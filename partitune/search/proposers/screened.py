"""Two fidelities: thousands simulated, few launched, and the simulator followed only as far as it proves right.

Decisions:
- The screen is an ordinary study on the simulator. Its order of the candidates, thinned so that two which it cannot
  tell apart are not both launched, is what the cluster measures next.
- Every launch is a test of the simulator. As its rank agreement falls or its error grows past the gain it promises,
  more of the launches go to a sampler that has only ever seen measured figures.
- The opening is not the simulator's to choose: the engine's default, the exact optimum and the seeds are launched
  whatever it thinks of them, as a person expects the vectors he names to be tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from partitune.analysis.comparison import INDIFFERENCE_ZONE, gain
from partitune.analysis.fidelity import Fidelity, fidelity
from partitune.candidate import Candidate, Objective, Outcome, Result
from partitune.execution.driver import Driver, run
from partitune.search.proposers.optuna import OptunaProposer
from partitune.search.proposers.proposer import Proposer
from partitune.search.space import Proposal

#: Origins of the candidates that are launched first, whatever the screen says.
OPENING = ("default", "exact", "seed")
#: Origin of a candidate that the screen promoted.
PROMOTED = "screen"
#: Layers moved between stages up to which two partitions under equal flags are close.
CLOSE_LAYERS = 2


@dataclass(frozen=True, slots=True)
class Screened:
    """One simulated candidate, and how it was proposed."""

    proposal: Proposal
    result: Result


def screen(
    proposer: Proposer, simulator: Driver, count: int, watch: Callable[[int], None] = lambda _: None
) -> Iterator[Screened]:
    """Simulate up to `count` candidates, one after the other; `watch` hears how many are done."""
    for done in range(1, count + 1):
        proposal = proposer.ask()
        if proposal is None:
            return
        result = run(simulator, proposal.candidate)
        proposer.tell(result, proposal.label)
        yield Screened(proposal, result)
        watch(done)


class ScreenedProposer:
    """Proposes what the screen ranks best, or what the measured figures suggest; trust decides the shares."""

    def __init__(
        self,
        sampler: OptunaProposer,
        screened: Sequence[Screened],
        objective: Objective,
        simulator: Driver,
        keep: Callable[[Screened], None] = lambda _: None,
    ) -> None:
        """`objective` is the first one; `simulator` predicts candidates the screen did not hold, `keep` stores it."""
        self._sampler = sampler
        self._objective = objective
        self._simulator = simulator
        self._keep = keep
        self._opening = [one.proposal for one in screened if one.proposal.origin in OPENING]
        self._predicted = {one.proposal.candidate.digest: self._value(one.result) for one in screened}
        defaults = (one.proposal.candidate.digest for one in screened if one.proposal.origin == "default")
        self._default = next(defaults, None)  # digest
        self._ranked = self._rank(screened)
        self._asked: dict[str, tuple[Candidate, str]] = {}  # launched or in flight: digest -> candidate, origin
        self._pairs: list[tuple[float, float]] = []

    @property
    def fidelity(self) -> Fidelity:
        """How the simulator fared so far."""
        return fidelity(self._pairs)

    def ask(self) -> Proposal | None:
        """The opening, then the share of screen and sampler that the simulator has earned."""
        while self._opening:
            proposal = self._opening.pop(0)
            if proposal.candidate.digest not in self._asked:
                return self._launch(proposal)
        promoted = self._promote() if self._screens_turn() else None
        chosen = promoted or self._sampler.ask() or self._promote()
        return None if chosen is None else self._launch(chosen)

    def tell(self, result: Result, label: str) -> None:
        """Teach the sampler, and hold the simulator against what was measured."""
        digest = result.candidate.digest
        self._asked[digest] = (result.candidate, label.partition(":")[0])
        self._sampler.tell(result, label)
        measured = self._value(result)
        if measured is None:
            return
        if digest not in self._predicted:
            origin, _, plan = label.partition(":")
            late = Screened(Proposal(result.candidate, origin, plan), run(self._simulator, result.candidate))
            self._predicted[digest] = self._value(late.result)
            self._keep(late)
        predicted = self._predicted[digest]
        if predicted is not None:
            self._pairs.append((predicted, measured))

    def _launch(self, proposal: Proposal) -> Proposal:
        self._asked[proposal.candidate.digest] = (proposal.candidate, proposal.origin)
        self._sampler.reserve(proposal.candidate)
        return proposal

    def _screens_turn(self) -> bool:
        origins = [origin for _, origin in self._asked.values()]
        promoted, sampled = origins.count(PROMOTED), origins.count("sampler")
        return promoted < self.fidelity.trust(self._promised()) * (promoted + sampled + 1)

    def _promised(self) -> float | None:
        """Gain over the default of the best candidate that is not launched yet, as simulated; None without a default.

        The default is the engine's own and nothing else: measured against the exact plan, nothing would promise a gain.
        """
        default = None if self._default is None else self._predicted[self._default]
        left = next((one for one in self._ranked if one.candidate.digest not in self._asked), None)
        best = None if left is None else self._predicted[left.candidate.digest]
        if best is None:
            return 0.0
        return None if default is None else max(0.0, gain(self._objective, default, best))

    def _promote(self) -> Proposal | None:
        """The best candidate not launched; one that is like a launched one waits for the others."""
        left = [one for one in self._ranked if one.candidate.digest not in self._asked]
        return next((one for one in left if not self._is_close(one.candidate)), left[0] if left else None)

    def _is_close(self, candidate: Candidate) -> bool:
        """Same flags, hardly another partition, and the same figure as a launched candidate as far as can be told."""
        mine = self._predicted[candidate.digest]
        for digest, (other, _) in self._asked.items():
            value = self._predicted.get(digest)
            if mine is None or value is None or other.settings != candidate.settings:
                continue
            moved = layers_moved(candidate.partition, other.partition)
            alike = abs(gain(self._objective, value, mine)) <= INDIFFERENCE_ZONE
            if alike and moved is not None and moved <= CLOSE_LAYERS:
                return True
        return False

    def _rank(self, screened: Sequence[Screened]) -> list[Proposal]:
        costs = []
        for index, one in enumerate(screened):
            value = self._value(one.result)
            if value is not None and one.proposal.origin not in OPENING:
                costs.append((self._objective.cost(value), index))
        return [replace(screened[index].proposal, origin=PROMOTED) for _, index in sorted(costs)]

    def _value(self, result: Result) -> float | None:
        return result.metric(self._objective.metric) if result.outcome is Outcome.OK else None


def layers_moved(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Layers that stand on another stage, counted once; None between different numbers of stages."""
    if len(one) != len(other):
        return None
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) // 2
