"""Whether the sampler samples: regret and hypervolume by trials, beside random draws, plain TPE and the whole truth.

    python -m benchmarks.sampler            the table for all spaces
    python -m benchmarks.sampler tiny       one search space, by name or file

Decision: every candidate of a space is simulated once, so the optimum is known and a search costs no simulation. The
real proposer searches. Nobody is given the opening (default, exact plan, seeds, closed form), which would hide what a
sampler is worth, but for the last row, which is the whole search. Random draws are of different candidates, none twice.
Plain TPE is Optuna's as it comes, and pays a trial for every repeat. Medians over 20 seeds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import optuna

from partitune.analysis.pareto import hypervolume, reference_point
from partitune.candidate import Candidate, Objective, Outcome, Result
from partitune.errors import InfeasibleSpace
from partitune.execution.driver import run
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.planning.defaults import completed
from partitune.planning.resolve import resolve
from partitune.search.proposers.axes import Axes, Point
from partitune.search.proposers.optuna import OptunaProposer
from partitune.search.proposers.proposer import FirstsProposer, Proposer
from partitune.search.space import Space
from partitune.search.stored_study import Aim
from partitune.spec.overrides import with_settings
from partitune.spec.search_space import SearchSpace

SEEDS = 20
COUNTS = (10, 20, 40)
#: Shipped search spaces of the table.
SPACES = (
    "tiny",
    "kimi-k3-pp8-tp2",
    "kimi-k3-pp8-tp2-h200",
    "kimi-k3-pp8-tp2-long",
    "kimi-k3-pp8-tp2-sglang",
    "kimi-k3-study",
    "kimi-k3-study-prompt",
    "deepseek-v3-pp4-tp8",
    "llama-70b-pp4",
    "llama-70b-pp4-mix",
    "qwen3-235b-pp4-tp4",
    "qwen3-235b-8xh100-layouts",
)
#: Shipped spaces that are searched with more values of two flags, too; those they ship with are among them.
WIDENED = ("kimi-k3-pp8-tp2", "llama-70b-pp4")
TOKENS = [384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384]
REQUESTS = [4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256]
#: Small ones that were made for this.
CASES = Path(__file__).parent / "search_cases"


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """A space with every outcome."""

    space: Space
    aim: Aim
    limits: tuple[str, ...]
    results: dict[str, Result]  # by digest; of every candidate of the grid
    points: list[tuple[Point, Candidate]]

    @classmethod
    def of(cls, spec: SearchSpace) -> Truth:
        """Simulate all candidates of `spec`."""
        problem = resolve(spec)
        space, driver = Space(problem, spec), SimulatorDriver(problem)
        results: dict[str, Result] = {}
        points: list[tuple[Point, Candidate]] = []
        axes = Axes(space.parameters)
        rows = axes.every_row()
        for row in () if rows is None else rows:
            point = axes.point(row)
            with suppress(InfeasibleSpace):
                candidate = space.decode(point).candidate
                points.append((point, candidate))
                if candidate.digest not in results:
                    results[candidate.digest] = run(driver, candidate)
        for first in space.first_proposals():
            results.setdefault(first.candidate.digest, run(driver, first.candidate))
        return cls(space, Aim.of(spec.resolved()), tuple(spec.slo), results, points)

    @property
    def objectives(self) -> Sequence[Objective]:
        """What it is judged by."""
        return self.aim.objectives

    def regrets(self, tried: Sequence[Result]) -> list[float]:
        """Share by which the best so far is worse than the best there is, after each trial; 1 while none is valid."""
        first = self.objectives[0]
        costs = [first.cost(value) for result in self.results.values() if (value := self._value(result)) is not None]
        least, so_far, regrets = min(costs), np.inf, []
        for result in tried:
            if (value := self._value(result)) is not None:
                so_far = min(so_far, first.cost(value))
            regrets.append(min(1.0, (so_far - least) / abs(least)))
        return regrets

    def share_of_front(self, tried: Sequence[Result]) -> float:
        """Hypervolume of what was tried over that of all there is, seen from the same point."""
        corner, whole = _hypervolume_of_all(self)
        return hypervolume(tried, self.objectives, corner) / whole

    def _value(self, result: Result) -> float | None:
        return result.metric(self.objectives[0].metric) if result.outcome is Outcome.OK else None


@cache
def _hypervolume_of_all(truth: Truth) -> tuple[tuple[float, ...] | None, float]:
    """The point from which a front is seen, and the volume of all there is."""
    everything = [*truth.results.values()]
    corner = reference_point(everything, truth.objectives)
    return corner, hypervolume(everything, truth.objectives, corner)


#: The results of a search of so many trials under a seed.
Search = Callable[[Truth, int, int], list[Result]]


def at_random(truth: Truth, seed: int, trials: int) -> list[Result]:
    """Different candidates in random order."""
    digests = list(dict.fromkeys(candidate.digest for _, candidate in truth.points))
    order = np.random.default_rng(seed).permutation(len(digests))[:trials]
    return [truth.results[digests[index]] for index in order]


def plain_tpe(truth: Truth, seed: int, trials: int) -> list[Result]:
    """Optuna's sampler as it comes, over the same parameters."""
    axes = Axes(truth.space.parameters)
    study = optuna.create_study(
        directions=[objective.direction for objective in truth.objectives],
        sampler=optuna.samplers.TPESampler(seed=seed),
    )
    tried: list[Result] = []
    for _ in range(3 * trials):
        trial = study.ask(axes.distributions)
        try:
            candidate = truth.space.decode(axes.named(trial.params)).candidate
        except InfeasibleSpace:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        result = truth.results[candidate.digest]
        values = [result.metric(objective.metric) for objective in truth.objectives]
        for name, value in result.constraints.items():
            trial.set_constraint(name, value)
        if None in values:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, values)  # type: ignore[arg-type]
        tried.append(result)
    return tried[:trials]


def sampler_alone(truth: Truth, seed: int, trials: int) -> list[Result]:
    """Ours without an opening."""
    return _walked(OptunaProposer(truth.space, truth.objectives, truth.limits, seed), truth, trials)


def whole_search(truth: Truth, seed: int, trials: int) -> list[Result]:
    """Ours with its opening."""
    sampler = OptunaProposer(truth.space, truth.objectives, truth.limits, seed)
    return _walked(FirstsProposer(truth.space.first_proposals(), sampler), truth, trials)


def _walked(proposer: Proposer, truth: Truth, trials: int) -> list[Result]:
    tried: list[Result] = []
    while len(tried) < trials and (asked := proposer.ask()) is not None:
        result = truth.results[asked.candidate.digest]
        proposer.tell(asked, result)
        tried.append(result)
    return tried


SEARCHES: dict[str, Search] = {
    "random": at_random,
    "plain TPE": plain_tpe,
    "sampler alone": sampler_alone,
    "whole search": whole_search,
}


@cache
def walks(truth: Truth, search: Search, seeds: int, trials: int) -> list[list[Result]]:
    """What was tried under every seed."""
    return [search(truth, seed, trials) for seed in range(seeds)]


def median_regrets(truth: Truth, search: Search, seeds: int = SEEDS, counts: Sequence[int] = COUNTS) -> list[float]:
    """The median over seeds of the regret after each of so many trials."""
    every = [truth.regrets(tried) for tried in walks(truth, search, seeds, max(counts))]
    return [median(regrets[min(count, len(regrets)) - 1] for regrets in every) for count in counts]


def median_shares(truth: Truth, search: Search, seeds: int = SEEDS, counts: Sequence[int] = COUNTS) -> list[float]:
    """The median over seeds of the share of the hypervolume that is filled after each of so many trials."""
    every = walks(truth, search, seeds, max(counts))
    return [median(truth.share_of_front(tried[:count]) for tried in every) for count in counts]


def widened(name: str) -> SearchSpace:
    """A shipped space with more values of its flags."""
    knobs = {"knobs.max_num_batched_tokens": TOKENS, "knobs.max_num_seqs": REQUESTS}
    return with_settings(SearchSpace.load(name), knobs)


def case(name: str) -> SearchSpace:
    """One of the small spaces."""
    return SearchSpace.load(str(CASES / f"{name}.yaml"))


def _specs(names: Sequence[str]) -> Iterator[tuple[str, SearchSpace]]:
    for name in names or SPACES:
        yield Path(name).stem, SearchSpace.load(name)
    if not names:
        for name in WIDENED:
            yield f"{name}, widened", widened(name)
        for path in sorted(CASES.glob("*.yaml")):
            yield path.stem, case(path.stem)


def main(names: Sequence[str]) -> None:
    """Print the table."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    counts = " / ".join(map(str, COUNTS))
    print(f"| search space | candidates | searched by | regret % @ {counts} | front filled % @ {counts} | ms an ask |")
    print("|---|---|---|---|---|---|")
    for label, spec in _specs(names):
        truth = Truth.of(completed(spec))
        for how, search in SEARCHES.items():
            begin = time.process_time()
            regrets = median_regrets(truth, search)
            spent_ms = 1000 * (time.process_time() - begin) / SEEDS / max(COUNTS)
            shares = median_shares(truth, search) if len(truth.objectives) > 1 else []
            cells = (" / ".join(f"{100 * value:.1f}" for value in column) or "-" for column in (regrets, shares))
            print(f"| {label} | {len(truth.results)} | {how} | {' | '.join(cells)} | {spent_ms:.1f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
