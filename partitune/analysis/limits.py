"""How far a deployment is from what its GPUs could do for its load, and where the rest goes.

Decision: one product that multiplies out exactly, so that no loss is counted twice or forgotten. The simulated time of
the load is divided step by step by what would be left if one thing after the other cost nothing:

    cohorts    the batches of this run, against the fewest steps the load could be served in: weights are read for more
               requests at once. The limit is that of the load, the same for every flag and partition
    roofline   the kernels, against the data-sheet peaks of the GPUs: slowest stage if layers could be cut anywhere
    whole      layers cannot be cut: the best partition there is, against that
    avoidable  the slowest stage, against that of the best partition
    fill       the time until the last token, against the work of the slowest stage: filling, draining, waiting for one
               another, too few batches in flight
    host       scheduling and launching kernels, against a host that takes no time

A stage's work is all that keeps it from the next batch: computing, receiving, sending. Sources: operational analysis of
a closed pipeline, X <= min(m / sum(t), 1 / max(t)) with m batches in flight (Denning and Buzen 1978); layers as a chain
on chains (Pinar and Aykanat 2004). Factors say where time goes and advise nothing: what to change is tried (`advice`),
the partition here, because with few or uneven batches most of a balance gain never arrives. What the KV cache holds
does not count: it depends on the partition, and the limit must not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from partitune.analysis.comparison import INDIFFERENCE_ZONE
from partitune.analysis.figures import percent
from partitune.candidate import Candidate
from partitune.costs.cost_model import Floats
from partitune.costs.roofline import RooflineCosts
from partitune.errors import InfeasibleSpace, RunError
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.partition import Partition
from partitune.planning.planner import Planner, stage_bounds
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.planning.solver import along, minimise_bottleneck, minimise_sum
from partitune.planning.stage_times import StageTimes, Work
from partitune.planning.throughput import throughput_bound

#: In the words of a person; the order is that of the product.
FACTORS = {
    "cohorts": "small batches",
    "roofline": "kernels at their roofline",
    "whole": "whole layers",
    "avoidable": "balance",
    "fill": "pipeline fill",
    "host": "host",
}

#: A pipeline fuller than decoding explains by more than this holds chunks of prompts.
_CHUNKS_FILL = 1.05


@dataclass(frozen=True, slots=True)
class Distance:
    """The factors of one candidate: each 1 where nothing is lost."""

    limit_output_tok_s: float  # output tokens a second with every factor at 1: of the load, whatever the flags
    reached_output_tok_s: float  # simulated
    factors: Mapping[str, float]  # names of FACTORS; their product is reached / limit
    largest: str  # the factor with the most to win
    why: str  # what it is made of here
    fill_ceiling: float  # what `fill` could be at most while all decode, with so few groups in flight
    batches_in_flight: int  # groups of requests that decode apart from one another
    knee: float  # batches in flight from which on the slowest stage decides: sum of the stages over the slowest
    step_variation: float  # standard deviation of the slowest stage's steps over their mean
    best_partition: tuple[int, ...]  # this one, or one planned for the batches of this run that is worth a change
    partition_gain: float  # most output throughput of those tried over this one's, simulated
    partition: str  # what trying partitions showed

    @property
    def only_decodes(self) -> bool:
        """Whether no more is in flight than groups that decode: chunks of one prompt are on several stages at once."""
        return self.factors["fill"] <= _CHUNKS_FILL * self.fill_ceiling

    def to_json(self) -> dict[str, Any]:
        """The object under `distance` of `explain --json`. Keys may be added, never changed."""
        return {**asdict(self), "advice": self.why}

    def lines(self) -> tuple[str, ...]:
        """The same for a person."""
        shares = {name: percent(value, ".3g") for name, value in self.factors.items()}
        balance = percent(self.factors["whole"] * self.factors["avoidable"], ".3g")
        product = (
            f"cohorts {shares['cohorts']} × "
            f"roofline {shares['roofline']} × balance {balance} (whole layers {shares['whole']}, avoidable "
            f"{shares['avoidable']}) × fill {shares['fill']} × host {shares['host']}"
        )
        speeds = f"{self.reached_output_tok_s:,.0f} of {self.limit_output_tok_s:,.0f} output tok/s"
        share = percent(self.reached_output_tok_s / self.limit_output_tok_s, ".2g")
        return (
            f"distance to the limit of this load, simulated: {speeds} ({share}) = {product}",
            f"most is lost to: {FACTORS[self.largest]}; {self.why}",
            f"partition: {self.partition}",
        )


@dataclass(frozen=True, slots=True)
class PartDistances:
    """The factors under every load of a mix, each of which has a limit of its own."""

    parts: Mapping[str, Distance]

    def to_json(self) -> dict[str, Any]:
        """The object under `distance` of `explain --json`, for a mix."""
        return {"parts": {name: part.to_json() for name, part in self.parts.items()}}

    def lines(self) -> tuple[str, ...]:
        """The same for a person."""
        return tuple(f"load {name}: {line}" for name, part in self.parts.items() for line in part.lines())


def distances(problem: Problem, candidate: Candidate) -> Distance | PartDistances:
    """The distance of `candidate` to the limit of its load, or of each of its loads. Raises what `distance` raises."""
    if len(problem.mix.loads) == 1:
        return distance(problem, candidate)
    return PartDistances({part.load.name: distance(part, candidate) for part in problem.parts})


def distance(problem: Problem, candidate: Candidate) -> Distance:
    """Under its only load, simulate `candidate` with its host and without, and take the difference to the limit apart.

    Raises:
        RunError: it cannot run.
        SpecError: the engine refuses the combination of flags.
    """
    resolved = ResolvedCandidate(problem, candidate)
    problem = resolved.problem
    driver = SimulatorDriver(problem)
    reached = driver.measure(candidate).metrics["output_throughput_tok_s"]
    free = driver.run_without_host(candidate)
    work = [(batch, float(count)) for batch, count in free.work]
    times = StageTimes(problem)
    tensor = times.tensor(work)
    stage_s = along(tensor, candidate.partition)
    slowest_s = float(stage_s.max())
    options, least_s = _better_partitions(problem, candidate, tensor)
    fluid_s, computing_s = times.fluid_bound_s(work), times.fluid_bound_s(work, launches=False)
    at_peaks = StageTimes(_at_data_sheet(problem))
    peak_s = at_peaks.fluid_bound_s(work, launches=False)
    # Data ranks count as alike: one is simulated, and throughputs are scaled by its share of the requests.
    rank_load = problem.rank_load
    load_s = min(at_peaks.fluid_bound_s(way, launches=False) for way in rank_load.densest_batches())
    output = rank_load.output_tokens * len(problem.load.requests) / len(rank_load.requests)
    duration_s = output / reached
    in_flight = rank_load.cohorts(resolved.flow)
    tried = _simulated(driver, candidate, reached, options)
    most, best_partition = max(tried)
    factors = {
        "cohorts": load_s / peak_s,
        "roofline": peak_s / computing_s,
        "whole": fluid_s / min(least_s, slowest_s),
        "avoidable": min(least_s / slowest_s, 1.0),
        "fill": slowest_s / free.duration_s,
        "host": free.duration_s / duration_s * computing_s / fluid_s,
    }
    untold = Distance(
        limit_output_tok_s=output / load_s,
        reached_output_tok_s=reached,
        factors=factors,
        largest=min(factors, key=factors.__getitem__),
        why="",
        fill_ceiling=throughput_bound(stage_s.tolist(), in_flight) * slowest_s,
        batches_in_flight=in_flight,
        knee=float(stage_s.sum() / slowest_s),
        step_variation=_variation(problem, candidate, work, int(stage_s.argmax())),
        best_partition=best_partition if most > (1 + INDIFFERENCE_ZONE) * reached else candidate.partition,
        partition_gain=most / reached - 1,
        partition="",
    )
    alike = len({gpu.name for gpu in problem.placement.gpus}) == 1
    rows = free.decode_tokens / free.decode_steps if free.decode_steps else 0.0
    note = _partition_note(untold, [speed for speed, _ in tried], alike=alike)
    return replace(untold, partition=note, why=_why(untold, rows, problem))


def _better_partitions(
    problem: Problem, candidate: Candidate, tensor: Floats
) -> tuple[tuple[tuple[int, ...], ...], float]:
    """What might serve exactly these batches better or differently, and the least seconds of a slowest stage.

    The least sum is tried where stages are unequal; else no cut changes it.
    """
    planner = Planner(problem, stage_bounds(problem.stages, problem.layers), ())
    try:
        allowed = np.where(planner.allowed(candidate.flags), tensor, np.inf)
        even, shortest = minimise_bottleneck(allowed), minimise_sum(allowed)
    except InfeasibleSpace:  # it runs, but no partition fits by the planner's rules
        return (), math.inf
    options = [even.partition, problem.default_partition]
    if shortest.total_s <= (1 - INDIFFERENCE_ZONE) * even.total_s:
        options.append(shortest.partition)
    return tuple(dict.fromkeys(options)), even.bottleneck_s


def _at_data_sheet(problem: Problem) -> Problem:
    """The same problem on GPUs whose kernels reach the peaks they were sold with."""
    placement = replace(problem.placement, gpus=tuple(replace(gpu, at_peaks=True) for gpu in problem.placement.gpus))
    kernel = problem.engine.expert_kernel(problem.architecture, problem.placement.gpus[0], {})
    return replace(problem, costs=RooflineCosts(problem.architecture, placement, expert_kernel=kernel))


def _variation(problem: Problem, candidate: Candidate, work: Work, slowest: int) -> float:
    """Standard deviation of the steps of stage `slowest` over their mean."""
    costs = problem.costs.stage_costs(candidate.partition)
    counts = np.array([count for _, count in work])
    steps = np.array([costs.compute_s(batch)[slowest] for batch, _ in work])
    mean = float(np.average(steps, weights=counts))
    return math.sqrt(float(np.average((steps - mean) ** 2, weights=counts))) / mean


def _simulated(
    driver: SimulatorDriver, candidate: Candidate, reached: float, options: Sequence[tuple[int, ...]]
) -> list[tuple[float, tuple[int, ...]]]:
    """Output tokens a second of `candidate` as it is and with each of the other partitions that runs."""
    speeds = [(reached, candidate.partition)]
    for partition in options:
        if partition != candidate.partition:
            with suppress(RunError):
                metrics = driver.measure(replace(candidate, partition=partition)).metrics
                speeds.append((metrics["output_throughput_tok_s"], partition))
    return speeds


def _partition_note(distance: Distance, speeds: Sequence[float], *, alike: bool) -> str:
    """What trying showed. Why partitions make no difference is said where they made none, on equal GPUs."""
    slower = percent(1 / distance.factors["avoidable"] - 1)
    others = len(speeds) - 1
    if distance.partition_gain > INDIFFERENCE_ZONE:
        return (
            f"{Partition(distance.best_partition).text} gains {percent(distance.partition_gain)} output throughput "
            f"(simulated); the slowest stage takes {slower} longer than the best partition's"
        )
    balance = f"the slowest stage takes {slower} longer than the best partition's"
    if not others:
        return f"no other one to try; {balance}"
    count = f"{others} other{'s' * (others > 1)} tried"
    tried = f"{count}, none gains more than {percent(INDIFFERENCE_ZONE, 'g')} output throughput"
    made_none = max(speeds) <= (1 + INDIFFERENCE_ZONE) * min(speeds)
    if alike and made_none and distance.batches_in_flight <= distance.knee and distance.only_decodes:
        groups = "all requests decode as one group, which is on one stage at a time"
        if distance.batches_in_flight > 1:
            groups = f"{distance.batches_in_flight} groups of requests are in flight, fewer than {distance.knee:.1f}"
        return f"{tried}, nor loses as much: {groups}, so the sum of the stages counts and not the slowest"
    return f"{tried}; {balance}"


def _why(distance: Distance, rows: float, problem: Problem) -> str:
    """What the largest loss is made of, in figures of this run."""
    groups, stages = distance.batches_in_flight, problem.stages
    count, outstanding = len(problem.rank_load.requests), problem.rank_load.concurrency
    match distance.largest:
        case "cohorts":
            together = min(count, outstanding or count)
            return f"a decode step holds {rows:.3g} requests on average, and {together} are outstanding"
        case "avoidable":
            return f"the slowest stage takes {percent(1 / distance.factors['avoidable'] - 1)} longer than need be"
        case "whole":
            return f"{problem.layers} layers cannot be shared out more evenly over {stages} stages"
        case "fill" if groups < stages:
            most = percent(distance.fill_ceiling, ".0f")
            if distance.only_decodes:
                return f"{most} is all that {groups} of {stages} groups in flight can give"
            return f"{most} is what {groups} of {stages} groups give while they decode; chunks of prompts fill more"
        case "fill":
            return f"{groups} groups on {stages} stages; steps vary by {percent(distance.step_variation, '.0f')}"
        case "roofline":
            return f"they take {1 / distance.factors['roofline']:.2g} times what the data sheets' peaks allow"
        case _:
            return f"{percent(1 - distance.factors['host'])} of the run is scheduling and launching"
