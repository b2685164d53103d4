"""What the search is worth where the optimum is known: regret by launches, and trials spent where nothing starts.

    python -m benchmarks.synthetic_search

Decision: the real proposer searches; only the space and the measurements are made up (synthetic_instances.py). A launch
reads throughput with 2 % noise; what the memory formula refuses is told to the proposer and costs no launch. Regret is
what the deployed candidate, the one with the best reading, really loses against the optimum. All seeds are fixed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import cast

import numpy as np

from benchmarks.synthetic_instances import (
    DEFAULT_FLAGS,
    DEFAULT_PARTITION,
    FLAGS,
    LAYERS,
    REGIMES,
    STAGES,
    Served,
    Server,
    believed,
    true_costs,
    with_costs,
)
from partitune.candidate import (
    DEFAULT_PLAN,
    Candidate,
    FlagValue,
    Measurement,
    Objective,
    Origin,
    Outcome,
    Result,
    Submission,
)
from partitune.execution.driver import MEMORY_CONSTRAINT
from partitune.planning.planner import EXACT_PLAN, FRONT_PLANS
from partitune.planning.solver import Solution
from partitune.search.proposers.optuna import OptunaProposer
from partitune.search.proposers.proposer import FirstsProposer, Proposer
from partitune.search.space import FREE_PLAN, PLAN, Space, repaired
from partitune.spec.domains import Domain, RealRange, WholeRange

INSTANCES = 20
NOISE = 0.02
THROUGHPUT = Objective("output_throughput_tok_s", "maximize")
LIMITED = "ttft_p99_ms"
_BOUNDS = ((4, 24),) * STAGES


def _every_setting() -> Iterator[dict[str, FlagValue]]:
    return (dict(zip(FLAGS, values, strict=True)) for values in product(*FLAGS.values()))


class NestedSpace:
    """Flags and a plan's name; the plan is solved exactly for the flags it comes with."""

    def __init__(self, server: Server) -> None:
        self._server = server  # as it is believed to be
        self._fronts: dict[tuple[FlagValue, ...], tuple[Solution, ...]] = {}

    @property
    def parameters(self) -> Mapping[str, Domain]:
        """As `Space.parameters`."""
        return {**FLAGS, PLAN: (DEFAULT_PLAN, *FRONT_PLANS)}

    def first_proposals(self) -> Iterator[Submission]:
        """As `Space.first_proposals`."""
        yield Submission(Candidate(DEFAULT_PARTITION, DEFAULT_FLAGS), Origin.DEFAULT, DEFAULT_PLAN)
        yield Submission(Candidate(self._planned(EXACT_PLAN, DEFAULT_FLAGS), DEFAULT_FLAGS), Origin.EXACT, EXACT_PLAN)
        best = sorted(_every_setting(), key=lambda flags: -self._believed_tok_s(DEFAULT_PARTITION, flags))[:5]
        tried = [(plan, self._planned(plan, flags), flags) for flags in best for plan in FRONT_PLANS]
        plan, partition, flags = max(tried, key=lambda one: self._believed_tok_s(one[1], one[2]))
        yield Submission(Candidate(partition, flags), Origin.PREDICTED, plan)

    def _believed_tok_s(self, partition: tuple[int, ...], flags: Mapping[str, FlagValue]) -> float:
        served = self._server.serve(partition, flags)
        return served.tok_s if served.feasible else 0.0

    def decode(self, params: Mapping[str, FlagValue]) -> Submission:
        """As `Space.decode`."""
        plan, flags = str(params[PLAN]), {name: params[name] for name in FLAGS}
        return Submission(Candidate(self._planned(plan, flags), flags), Origin.SAMPLER, plan)

    def encode(self, candidate: Candidate, plan: str) -> Mapping[str, FlagValue]:
        """As `Space.encode`."""
        return {**candidate.flags, PLAN: plan}

    def _planned(self, plan: str, flags: Mapping[str, FlagValue]) -> tuple[int, ...]:
        if plan == DEFAULT_PLAN:
            return DEFAULT_PARTITION
        key = (flags["max_num_batched_tokens"], flags["gpu_memory_utilization"])
        if key not in self._fronts:
            self._fronts[key] = self._server.front(flags)
        front = self._fronts[key]
        return front[round(FRONT_PLANS.index(plan) * (len(front) - 1) / (len(FRONT_PLANS) - 1))].partition


class FlatSpace:
    """Flags and one number of layers a stage, repaired to the sum: the encoding of `partition: {search: free}`."""

    @property
    def parameters(self) -> Mapping[str, Domain]:
        """As `Space.parameters`."""
        low, high = _BOUNDS[0]
        return {**FLAGS, **{f"layers_{stage}": WholeRange(low=low, high=high) for stage in range(STAGES)}}

    def first_proposals(self) -> Iterator[Submission]:
        """As `Space.first_proposals`."""
        yield Submission(Candidate(DEFAULT_PARTITION, DEFAULT_FLAGS), Origin.DEFAULT, DEFAULT_PLAN)

    def decode(self, params: Mapping[str, FlagValue]) -> Submission:
        """As `Space.decode`."""
        weights = [int(params[f"layers_{stage}"]) for stage in range(STAGES)]
        flags = {name: params[name] for name in FLAGS}
        return Submission(Candidate(repaired(weights, _BOUNDS, LAYERS), flags), Origin.SAMPLER, FREE_PLAN)

    def encode(self, candidate: Candidate, plan: str) -> Mapping[str, FlagValue]:  # noqa: ARG002 - as `Space.encode`
        """As `Space.encode`."""
        return {**candidate.flags, **{f"layers_{stage}": count for stage, count in enumerate(candidate.partition)}}


class RandomProposer:
    """The default, then points of a space drawn evenly, none twice."""

    def __init__(self, space: NestedSpace | FlatSpace, seed: int) -> None:
        self._space, self._random = space, np.random.default_rng(seed)
        self._first: list[Submission] = [next(space.first_proposals())]
        self._known: set[str] = set()

    def ask(self) -> Submission:
        """The next new point."""
        while self._first:
            return self._first.pop()
        while True:
            proposal = self._space.decode({name: self._draw(domain) for name, domain in self._space.parameters.items()})
            if proposal.candidate.digest not in self._known:
                return proposal

    def tell(self, submission: Submission, result: Result) -> None:  # noqa: ARG002 - as a proposer
        """Remember it."""
        self._known.add(result.candidate.digest)

    def _draw(self, domain: Domain) -> FlagValue:
        if isinstance(domain, tuple):
            return domain[self._random.integers(len(domain))]
        return int(self._random.integers(int(domain.low), int(domain.high), endpoint=True))


def proposer(space: NestedSpace | FlatSpace | FailingSpace, seed: int) -> Proposer:
    """The product's own, over a made-up space."""
    sampler = OptunaProposer(cast("Space", space), [THROUGHPUT], (LIMITED,), seed)
    return FirstsProposer(space.first_proposals(), sampler)


def regrets(proposer: Proposer, truth: Server, best: float, launches: int, noise: float, seed: int) -> list[float]:
    """Regret after 1, 2, ... `launches`."""
    random = np.random.default_rng(seed)
    found: list[float] = []
    reading, lost = -np.inf, 1.0
    while len(found) < launches and (proposal := proposer.ask()) is not None:
        served = truth.serve(proposal.candidate.partition, proposal.candidate.flags)
        seen = served.tok_s * (1 + noise * random.standard_normal())
        proposer.tell(proposal, result_of(proposal.candidate, served, seen))
        if served.short_gb > 0:
            continue
        if served.feasible and seen > reading:
            reading, lost = seen, 1 - served.tok_s / best
        found.append(lost)
    return found + [lost] * (launches - len(found))


def result_of(candidate: Candidate, served: Served, tok_s: float) -> Result:
    """As a driver would report it."""
    constraints = {LIMITED: served.late_s}
    if served.short_gb > 0:
        short = {MEMORY_CONSTRAINT: served.short_gb}
        return Result(candidate, Outcome.INFEASIBLE, "memory", None, short)
    measured = Measurement({THROUGHPUT.metric: tok_s}, (), "toy", 0, 0, 0, "", True, constraints)
    outcome = Outcome.OK if served.feasible else Outcome.INFEASIBLE
    return Result(candidate, outcome, "" if served.feasible else "late", measured, constraints)


class FailingSpace:
    """One flag from 0 to 100, over 60 of which nothing starts."""

    @property
    def parameters(self) -> Mapping[str, Domain]:
        """As `Space.parameters`."""
        return {"x": RealRange(low=0.0, high=100.0)}

    def first_proposals(self) -> Iterator[Submission]:
        """As `Space.first_proposals`."""
        yield Submission(Candidate((1,), {"x": 10.0}), Origin.DEFAULT, DEFAULT_PLAN)

    def decode(self, params: Mapping[str, FlagValue]) -> Submission:
        """As `Space.decode`."""
        return Submission(Candidate((1,), dict(params)), Origin.SAMPLER, DEFAULT_PLAN)

    def encode(self, candidate: Candidate, plan: str) -> Mapping[str, FlagValue]:  # noqa: ARG002 - as `Space.encode`
        """As `Space.encode`."""
        return candidate.flags


def failures(seed: int, trials: int = 100) -> tuple[float, int]:
    """The largest x that worked, and how many trials did not."""
    search = proposer(FailingSpace(), seed)
    best, failed = 0.0, 0
    for _ in range(trials):
        proposal = search.ask()
        assert proposal is not None  # a range of reals is never exhausted
        x = float(proposal.candidate.flags["x"])
        search.tell(proposal, result_of(proposal.candidate, Served(x, x - 60.0, -1.0), x))
        best, failed = (best, failed + 1) if x > 60 else (max(best, x), failed)
    return best, failed


def table(regime: str, launches: Sequence[int]) -> dict[str, np.ndarray]:
    """Regrets of every design, shape [instances, launches]."""
    designs: dict[str, list[list[float]]] = {}
    for seed in range(INSTANCES):
        truth = Server(true_costs(seed), REGIMES[regime])
        model, best = with_costs(truth, believed()), truth.best()
        most = max(launches)
        flat, nested = FlatSpace(), NestedSpace(model)
        for name, search, noise, runs in (
            ("nested", proposer(nested, seed), NOISE, most),
            ("nested, the model is right", proposer(NestedSpace(truth), seed), 0.0, 20),
            ("nested, drawn evenly", RandomProposer(nested, seed), NOISE, most),
            ("flat", proposer(flat, seed), NOISE, most),
            ("flat, drawn evenly", RandomProposer(flat, seed), NOISE, most),
        ):
            lost = regrets(search, truth, best, runs, noise, seed)
            designs.setdefault(name, []).append([*lost, *[np.nan] * (most - runs)])
    return {name: np.array(rows) for name, rows in designs.items()}


def main() -> None:
    """Print the tables."""
    launches = (2, 10, 20, 50, 100)
    for regime in REGIMES:
        begin = time.process_time()
        print(f"{regime}: regret in % of the optimum after so many launches, median / p90 of {INSTANCES} instances")
        print(f"{'':28}" + "".join(f"{count:>16}" for count in launches))
        found = table(regime, launches)
        for name, rows in found.items():
            cells = []
            for count in launches:
                median, p90 = 100 * np.percentile(rows[:, count - 1], [50, 90])
                cells.append("" if np.isnan(median) else f"{median:.1f} / {p90:.1f}")
            print(f"{name:28}" + "".join(f"{cell:>16}" for cell in cells))
        at_10, at_100 = np.median(found["nested"][:, 9]), np.median(found["flat"][:, 99])
        print(f"nested after 10 launches against flat after 100: {100 * at_10:.1f} % and {100 * at_100:.1f} %")
        print(f"CPU: {time.process_time() - begin:.0f} s")
        print()
    found_x = [failures(seed) for seed in range(INSTANCES)]
    worst, most = min(best for best, _ in found_x), max(failed for _, failed in found_x)
    middle = np.median([failed for _, failed in found_x])
    print(f"fails over 60 of 100: the best of 100 trials is at least {worst:.1f} in each of {INSTANCES} seeds;")
    print(f"{middle:.0f} trials fail in the median, {most} at most")


if __name__ == "__main__":
    main()
