"""What to change about a candidate: only what was tried, with what it gained and the command that shows it again.

Decision: a simulated run takes milliseconds, so nothing is advised that was not run. A change is an advice when it
makes the first objective better by more than the indifference zone and keeps every limit, or when it keeps limits that
the candidate misses. Of all that gain, the best of one change is told, and of more changes only what gains more than
fewer do. Trying has a budget of CPU seconds; what was not tried is counted and never advised.

The effect of a flag may have the other sign in a release that fills its pipeline in another way. So every flag of an
advice is tried under those too, against the same advice without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from partitune.analysis.changes import Changes
from partitune.analysis.comparison import gain
from partitune.analysis.figures import figure, flags_text, percent
from partitune.analysis.final import SERVING_CAPS
from partitune.candidate import Candidate, FlagValue, Outcome, Result
from partitune.engines.scheduling import OtherStart
from partitune.execution.driver import run
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.spec.commands import explain_command
from partitune.spec.domains import Domain

#: Orders results, the best first.
Rank = Callable[[Result], tuple[float, ...]]
#: CPU seconds that trying may take where nobody says.
BUDGET_S = 2.0
#: Share of it for the changes themselves; the rest is for other releases of the engine.
_FOR_CHANGES = 0.8
#: Settings of flags under which partitions are asked for again.
_FLAGS_TO_PLAN_FOR = 2


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """One flag of an advice under another way to pipeline."""

    start: OtherStart
    flag: str
    here: float  # relative gain of the advice over itself without the flag, as is `there`
    there: float

    def to_json(self) -> dict[str, Any]:
        """One entry of `elsewhere` of an advice."""
        start = {"version": self.start.version, "runner": self.start.runner}
        return {**start, "flag": self.flag, "here": self.here, "there": self.there}


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to do, as it was simulated."""

    candidate: Candidate  # with it done
    flags: Mapping[str, FlagValue]  # those that change, with their new values
    moves: bool  # true where the partition changes
    metric: str  # the first objective
    before: float | None  # None: the candidate as it is cannot run
    value: float
    gain: float | None  # relative, towards the better
    others: Mapping[str, float]  # the other objectives' relative gains; negative: worse
    rescues: str  # the limit or reason for which the candidate as it is cannot be used; empty: it can
    command: str  # that shows `value` again; empty where none can
    lowered: tuple[str, ...] = ()  # caps of what is served at once that it lowers
    elsewhere: tuple[Elsewhere, ...] = ()

    @property
    def count(self) -> int:
        """How many things change."""
        return len(self.flags) + self.moves

    @property
    def text(self) -> str:
        """The changes as a person writes them."""
        flags = flags_text(self.flags)
        return " ".join(part for part in (self.moves and f"partition {self.candidate.partition_text}", flags) if part)

    def to_json(self) -> dict[str, Any]:
        """One entry of `advice` of `explain --json`. Keys may be added, never changed."""
        return {
            "changes": self.text,
            "partition": list(self.candidate.partition),
            "flags": dict(self.flags),
            "metric": self.metric,
            "before": self.before,
            "value": self.value,
            "gain": self.gain,
            "others": dict(self.others),
            "rescues": self.rescues,
            "command": self.command,
            "lowers": list(self.lowered),
            "elsewhere": [it.to_json() for it in self.elsewhere],
        }

    def lines(self, zone: float) -> Iterator[str]:
        """The same for a person; a flag's effect elsewhere only where it is no gain there."""
        result = figure(self.value, self.metric)
        if self.gain is None or self.before is None:
            yield f"  {self.text}: runs, {self.metric} {result}"
        else:
            worse = [f"{name} {percent(change, '+.1f')}" for name, change in self.others.items() if change < -zone]
            lost = f"; {', '.join(worse)}" if worse else ""
            kept = f"; keeps what is missed ({self.rescues})" if self.rescues else ""
            kept += f"; lowers {', '.join(self.lowered)}, which serves fewer at once" if self.lowered else ""
            change = percent(self.gain, "+.1f")
            yield f"  {self.text}: {change} {self.metric}, {figure(self.before, self.metric)} -> {result}{lost}{kept}"
        if self.command:
            yield f"    {self.command}"
        for flag in self.flags:
            there = [it for it in self.elsewhere if it.flag == flag and it.here > zone >= it.there]
            if there:
                effects = ", ".join(f"{_effect_text(it.there)} in {it.start.text}" for it in there)
                value = flags_text({flag: self.flags[flag]})
                yield f"    of that {value} is {percent(there[0].here, '+.1f')} here, but {effects}"


def _effect_text(effect: float) -> str:
    return "nothing" if abs(effect) < 5e-4 else percent(effect, "+.1f")


@dataclass(frozen=True, slots=True)
class Advice:
    """All there is to do about one candidate, as far as it was tried."""

    base: Result  # how the candidate ended as it is
    metric: str
    zone: float
    changes: tuple[Change, ...]  # what gained most first
    tried: int
    untried: int  # for want of budget
    budget_s: float

    @property
    def counts(self) -> dict[str, Any]:
        """The object under `advice_tried` of `explain --json`."""
        return {"metric": self.metric, "tried": self.tried, "not_tried": self.untried, "budget_cpu_s": self.budget_s}

    def lines(self) -> Iterator[str]:
        """The same for a person."""
        every = self.tried + self.untried
        tried = f"{self.tried} changes tried"
        if self.untried:
            left = f"{self.untried} not tried: the budget of {self.budget_s:g} CPU s"
            tried = f"{self.tried} of {every} changes tried; {left}"
        if not self.changes:
            yield f"advice: nothing tried gains more than {percent(self.zone, 'g')} {self.metric}: {tried}"
            return
        yield f"advice, tried on the simulator ({tried}):"
        for change in self.changes:
            yield from change.lines(self.zone)

    def to_json(self) -> dict[str, Any]:
        """`advice` and `advice_tried` of `--json`."""
        return {"advice": [change.to_json() for change in self.changes], "advice_tried": self.counts}


def advised(
    problem: Problem, candidate: Candidate, budget_s: float = BUDGET_S, words: Sequence[str] | None = None
) -> Advice:
    """Try what could make `candidate` better, and say what did.

    Args:
        problem: the search space, on its own layout.
        candidate: what is to become better.
        budget_s: CPU seconds that trying may take; the candidate itself is always run.
        words: what follows `partitune explain` to name the search space; None: nothing can, so there are no commands.

    Raises:
        SpecError: the engine refuses the combination of flags and runner.
    """
    return _Adviser(problem, candidate, budget_s, words).advice()


def best_changed(
    problem: Problem, candidate: Candidate, budget_s: float, within: Mapping[str, Domain], rank: Rank
) -> tuple[Result, int, int]:
    """Try the same changes, only to end with the best of them.

    Args:
        problem: the search space.
        candidate: where it starts; it is always run.
        budget_s: CPU seconds that trying may take.
        within: domains of flags that may not take any value.
        rank: of a result, less is better.

    Returns:
        The best result, how many changes were tried, and for how many there was no time. Of results within the
        indifference zone of the best it is the one that was tried first: what changes less comes first.
    """
    adviser = _Adviser(problem, candidate, budget_s, None)
    untried = adviser.try_changes(within)
    ranked = [(rank(result), result) for result in adviser.results]
    least = min(order for order, _ in ranked)
    best = next(
        result
        for order, result in ranked
        if order[:-1] == least[:-1] and order[-1] - least[-1] <= problem.zone * abs(least[-1])
    )
    return best, len(adviser.results) - 1, untried


class _Adviser:
    def __init__(self, problem: Problem, candidate: Candidate, budget_s: float, words: Sequence[str] | None) -> None:
        self._problem, self._candidate, self._words = problem.on(candidate.layout), candidate, words
        self._objective, self._zone = problem.objectives[0], problem.zone
        self._results: dict[str, Result] = {}
        self._elsewhere: dict[tuple[OtherStart, str], Result] = {}
        began_s = time.process_time()
        self._base = self._run(candidate)
        self._budget_s, self._start_s = budget_s, time.process_time()
        self._run_s = self._start_s - began_s  # what a further run is expected to take

    def advice(self) -> Advice:
        """What was tried, and of what is told each flag under other releases."""
        untried = self.try_changes({})
        told = tuple(self._told())
        return Advice(
            self._base, self._objective.metric, self._zone, told, len(self._results) - 1, untried, self._budget_s
        )

    def try_changes(self, within: Mapping[str, Domain]) -> int:
        """Changes, then partitions under the best flags; how many there was no time for."""
        changes = Changes(self._problem, self._candidate, within)
        first = changes.first()
        untried = self._try(first)
        for best in self._best_flags(first):
            untried += self._try(changes.partitions(best))
        return untried

    @property
    def results(self) -> list[Result]:
        """Of everything that was run, the candidate as it is first."""
        return list(self._results.values())

    def _try(self, candidates: Sequence[Candidate]) -> int:
        """How many of them there was no time for."""
        fresh = [candidate for candidate in candidates if candidate.digest not in self._results]
        for index, candidate in enumerate(fresh):
            if self._spent(_FOR_CHANGES):
                return len(fresh) - index
            self._run(candidate)
        return 0

    def _run(self, candidate: Candidate) -> Result:
        if candidate.digest not in self._results:
            self._results[candidate.digest] = run(SimulatorDriver(self._problem), candidate)
        return self._results[candidate.digest]

    def _spent(self, share: float = 1.0) -> bool:
        """No further run fits into that share of the budget."""
        return time.process_time() - self._start_s + self._run_s >= share * self._budget_s

    def _cost(self, result: Result) -> float:
        return self._objective.cost(result.metric(self._objective.metric) or 0.0)

    def _best_flags(self, first: Sequence[Candidate]) -> list[Candidate]:
        """The settings of flags that gained most with the candidate's own partition."""
        own = [candidate for candidate in first if candidate.partition == self._candidate.partition]
        gained = [
            result for candidate in own if (result := self._results.get(candidate.digest)) and self._gains(result)
        ]
        return [result.candidate for result in sorted(gained, key=self._cost)[:_FLAGS_TO_PLAN_FOR]]

    def _gains(self, result: Result) -> bool:
        value = result.metric(self._objective.metric)
        if result.outcome is not Outcome.OK or value is None:
            return False
        before = self._base.metric(self._objective.metric)
        if self._base.outcome is not Outcome.OK or before is None:
            return True
        return gain(self._objective, before, value) > self._zone

    def _told(self) -> Iterator[Change]:
        """Of what gained: the best of each number of changes, where it gains more than every smaller number."""
        best: dict[int, Change] = {}
        for result in self._results.values():
            if result is not self._base and self._gains(result):
                change = self._change(result)
                rival = best.get(change.count)
                if rival is None or self._objective.cost(change.value) < self._objective.cost(rival.value):
                    best[change.count] = change
        told: list[Change] = []
        for count in sorted(best):
            if not told or gain(self._objective, told[-1].value, best[count].value) > self._zone:
                told.append(best[count])
        for change in reversed(told):
            yield replace(change, elsewhere=tuple(self._tried_elsewhere(change)))

    def _change(self, result: Result) -> Change:
        base, candidate, metric = self._base, result.candidate, self._objective.metric
        before, value = base.metric(metric), result.metric(metric) or 0.0
        others = {
            other.metric: gain(other, was, now)
            for other in self._problem.objectives[1:]
            if (was := base.metric(other.metric)) is not None and (now := result.metric(other.metric)) is not None
        }
        own, default = self._candidate.flags, self._problem.default_partition
        return Change(
            candidate=candidate,
            flags={name: new for name, new in candidate.flags.items() if name not in own or own[name] != new},
            moves=candidate.partition != self._candidate.partition,
            metric=metric,
            before=before,
            value=value,
            gain=None if before is None else gain(self._objective, before, value),
            others=others,
            rescues="" if base.outcome is Outcome.OK else base.reason,
            command="" if self._words is None else explain_command(self._words, candidate, default),
            lowered=tuple(self._lowered(candidate)),
        )

    def _lowered(self, candidate: Candidate) -> Iterator[str]:
        """Caps of what is served at once that `candidate` has lower than the one that is to become better."""
        engine = self._problem.engine
        before, after = (engine.effective_flags(self._problem.start(it.flags)) for it in (self._candidate, candidate))
        for name in sorted(SERVING_CAPS & candidate.flags.keys()):
            was, now = before.get(name), after[name]
            if isinstance(now, int) and (was is None or (isinstance(was, int) and now < was)):
                yield name

    def _tried_elsewhere(self, change: Change) -> Iterator[Elsewhere]:
        """Every flag of the change under every other way to pipeline, as far as the engine takes both there."""
        deployment = ResolvedCandidate(self._problem, self._candidate).deployment
        for start in self._problem.engine.other_starts(deployment) if change.flags else ():
            for flag in change.flags:
                if self._spent():
                    return
                own = self._candidate.flags
                flags = {name: value for name, value in change.candidate.flags.items() if name != flag}
                without = replace(change.candidate, flags=flags | ({flag: own[flag]} if flag in own else {}))
                pair = (self._run(without), self._run(change.candidate))
                here, there = self._effect(*pair), self._effect(*(self._there(start, it.candidate) for it in pair))
                if here is not None and there is not None:
                    yield Elsewhere(start, flag, here, there)

    def _there(self, start: OtherStart, candidate: Candidate) -> Result:
        key = start, candidate.digest
        if key not in self._elsewhere:
            moved = SimulatorDriver(self._problem.under(start.version, start.runner))
            self._elsewhere[key] = run(moved, candidate)
        return self._elsewhere[key]

    def _effect(self, without: Result, with_it: Result) -> float | None:
        """Relative gain of the first objective; None where either cannot run."""
        before, after = (result.metric(self._objective.metric) for result in (without, with_it))
        return None if before is None or after is None else gain(self._objective, before, after)
