"""Plans: names that become layers per stage once the flags are known.

Decision: the sampler never sees a partition vector (a flat space of vectors starves the flags). It names a plan, and
for every flag setting the plan is solved exactly: `front-0` is the least slowest stage, `front-4` the most KV blocks,
the others lie between them on the exact front of the two. `least-sum` and `first-token` are the exact answers to two
other questions, which differ where GPUs do. `default` is the engine's own split, `seed-1` the first
vector a person wrote. Memory, KV staircase, illegal cuts, bounds and unequal GPUs are all inside the solver's
tensors. What a model admits is one rule set in two forms: `engines.legal_cuts.CutLimits.reasons` explains a vector that
somebody wrote, `allowed_windows` is the same as a boolean array, so that the solver never proposes what that refuses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from partitune.candidate import DEFAULT_PLAN, FlagValue
from partitune.costs.cost_model import Batch, Floats
from partitune.engines.legal_cuts import CutLimits
from partitune.errors import InfeasibleSpace
from partitune.models.architecture import Architecture
from partitune.partition import Partition
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import kv_bytes_tensor
from partitune.planning.solver import Solution, along, minimise_sum, minimise_ttft, pareto_front
from partitune.planning.stage_times import StageTimes, Work
from partitune.planning.workload_mix import Over

#: Points of the front the sampler may choose from.
FRONT_PLANS = tuple(f"front-{index}" for index in range(5))
EXACT_PLAN, MOST_KV_PLAN = FRONT_PLANS[0], FRONT_PLANS[-1]
#: The planner's other exact answers: of unequal GPUs both leave the slower ones with few layers.
LEAST_SUM_PLAN, FIRST_TOKEN_PLAN = "least-sum", "first-token"
#: Share by which one of these has to be better, at what it is the answer to, to differ from the exact plan.
WORTH_A_PLAN = 0.01
Windows = NDArray[np.bool_]
Bounds = tuple[tuple[int, int], ...]  # per stage: fewest and most layers


def stage_bounds(
    stages: int, layers: int, *, fewest: int = 1, most: int | None = None, pinned: Mapping[int, int] | None = None
) -> Bounds:
    """Fewest and most layers of every stage.

    Args:
        stages: pipeline stages.
        layers: layers of the model.
        fewest: lower bound of every stage that is not pinned, at least 1.
        most: upper bound of every stage that is not pinned; None: what the others leave.
        pinned: stage -> exact number of layers, at least 1.

    Raises:
        InfeasibleSpace: no vector of `stages` entries within the bounds sums to `layers`.
    """
    pins, highest = pinned or {}, layers if most is None else most
    bounds = tuple((pins[s], pins[s]) if s in pins else (fewest, highest) for s in range(stages))
    for stage, (low, high) in enumerate(bounds):
        if high < low:
            raise InfeasibleSpace(f"stage {stage} must have between {low} and {high} layers, which is impossible")
    least, greatest = sum(low for low, _ in bounds), sum(high for _, high in bounds)
    if not least <= layers <= greatest:
        side = f"at least {least}" if layers < least else f"at most {greatest}"
        raise InfeasibleSpace(f"{stages} stages within their bounds hold {side} layers, the model has {layers}")
    return bounds


def allowed_windows(architecture: Architecture, limits: CutLimits, bounds: Bounds) -> Windows:
    """True at [s, i, j] where stage `s` may own layers i..j-1 by the engine's limits and within its bounds.

    Shape [stages, layers + 1, layers + 1].
    """
    layers = len(architecture.layers)
    first, end = np.ogrid[: layers + 1, : layers + 1]
    legal_cut = np.array([cut not in limits.bound for cut in range(layers + 1)])
    common = legal_cut[:, None] & legal_cut[None, :]
    if limits.keeps_token_kv:
        kept = np.concatenate(([0], np.cumsum([layer.has_token_kv for layer in architecture.layers])))
        common = common & (kept[None, :] - kept[:, None] >= 1)
    fewest, most = np.array(bounds).T[:, :, None, None]
    windows: Windows = common & (end - first >= fewest) & (end - first <= most)
    windows[0, 1:] = windows[1:, 0] = False  # the first stage begins at layer 0, and no other does
    windows[-1, :, :-1] = windows[:-1, :, -1] = False
    return windows


class Planner:
    """Turns plan names into partitions of one problem. Fronts are remembered by the flags they depend on."""

    def __init__(self, problem: Problem, bounds: Bounds, seeds: Sequence[Partition]) -> None:
        self._problem = problem
        limits = problem.engine.cut_limits(problem.architecture, problem.version)
        self._windows = allowed_windows(problem.architecture, limits, bounds)
        self._seeds = {f"seed-{index}": seed for index, seed in enumerate(seeds, start=1)}
        self._times: dict[int, StageTimes] = {}
        self._fronts: dict[tuple[tuple[str, FlagValue], ...], tuple[Solution, ...] | InfeasibleSpace] = {}
        self._answers: dict[tuple[str, tuple[tuple[str, FlagValue], ...]], Partition] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Every plan, the engine's default first."""
        return (DEFAULT_PLAN, *FRONT_PLANS, LEAST_SUM_PLAN, FIRST_TOKEN_PLAN, *self._seeds)

    def partition(self, plan: str, flags: Mapping[str, FlagValue]) -> Partition:
        """Layers per stage of `plan` under `flags`.

        Raises:
            InfeasibleSpace: no partition fits these flags at all.
        """
        if plan == DEFAULT_PLAN:
            return self._problem.default_partition
        if plan in self._seeds:
            return self._seeds[plan]
        if plan in (LEAST_SUM_PLAN, FIRST_TOKEN_PLAN):
            return self._answer(plan, flags)
        front, index = self.front(flags), FRONT_PLANS.index(plan)
        last = len(front) - 1
        if last >= len(FRONT_PLANS):  # a short front gives every point a name, a long one is sampled evenly
            index = round(index * last / (len(FRONT_PLANS) - 1))
        return front[min(index, last)].partition

    def front(self, flags: Mapping[str, FlagValue]) -> tuple[Solution, ...]:
        """The exact front of slowest stage and KV blocks under `flags`, fastest first.

        Raises:
            InfeasibleSpace: no partition fits.
        """
        key = tuple(sorted(flags.items()))
        if key not in self._fronts:
            try:
                blocks, allowed = self._room(flags)
                self._fronts[key] = pareto_front(np.where(allowed, self.stage_times(flags), np.inf), blocks)
            except InfeasibleSpace as error:
                self._fronts[key] = error
        front = self._fronts[key]
        if isinstance(front, InfeasibleSpace):
            raise front
        return front

    def allowed(self, flags: Mapping[str, FlagValue]) -> Windows:
        """True at [stage, first, end] where the stage may own these layers and has enough memory beside them."""
        return self._room(flags)[1]

    def stage_seconds(self, partition: Sequence[int], flags: Mapping[str, FlagValue]) -> Floats:
        """Seconds each stage of `partition` is taken up by the whole load: shape [stages]."""
        return along(self.stage_times(flags), partition)

    def stage_times(self, flags: Mapping[str, FlagValue]) -> Floats:
        """Seconds of the whole load, as `_works` has it, per (stage, first layer, end layer), with hand-offs."""
        slowest: Floats = np.maximum.reduce([self._times_of(flags).tensor(work) for work in self._works(flags)])
        return slowest

    def fluid_bound_s(self, flags: Mapping[str, FlagValue]) -> float:
        """Seconds of the whole load below which no partition brings the slowest stage."""
        return max(self._times_of(flags).fluid_bound_s(work) for work in self._works(flags))

    def _times_of(self, flags: Mapping[str, FlagValue]) -> StageTimes:
        """Those of the model as these flags keep it; a problem remembers each of them, so that it stands for itself."""
        served = self._problem.served(flags)
        if id(served) not in self._times:
            self._times[id(served)] = StageTimes(served)
        return self._times[id(served)]

    def _answer(self, plan: str, flags: Mapping[str, FlagValue]) -> Partition:
        """The other exact answer of that name, where it is worth a candidate of its own; else the exact plan's."""
        key = plan, tuple(sorted(flags.items()))
        if key not in self._answers:
            exact = self.front(flags)[0].partition
            if plan == FIRST_TOKEN_PLAN:
                own, seconds = self.fastest_prompt(flags), self.prompt_s
            else:
                own, seconds = self.least_sum(flags), self._sum_s
            worth = seconds(own, flags) < (1 - WORTH_A_PLAN) * seconds(exact, flags)
            self._answers[key] = own if worth else exact
        return self._answers[key]

    def _sum_s(self, partition: Sequence[int], flags: Mapping[str, FlagValue]) -> float:
        return float(self.stage_seconds(partition, flags).sum())

    def least_sum(self, flags: Mapping[str, FlagValue]) -> Partition:
        """The partition whose stages take the least time together.

        Raises:
            InfeasibleSpace: no partition fits.
        """
        return minimise_sum(np.where(self.allowed(flags), self.stage_times(flags), np.inf)).partition

    def fastest_prompt(self, flags: Mapping[str, FlagValue]) -> Partition:
        """The partition with the least `prompt_s`, but for hand-offs, which count on both of their sides here.

        Raises:
            InfeasibleSpace: no partition fits.
        """
        chunk, chunks = self._chunk(flags)
        times = self._times_of(flags).tensor([(chunk, 1.0)])
        return minimise_ttft(np.where(self.allowed(flags), times, np.inf), chunks).partition

    def prompt_s(self, partition: Sequence[int], flags: Mapping[str, FlagValue]) -> float:
        """Seconds to the first token of one mean prompt on an idle server, in M equal chunks: sum + (M - 1) slowest.

        A flow shop; what attention adds from chunk to chunk is spread evenly.
        """
        chunk, chunks = self._chunk(flags)
        seconds = along(self._times_of(flags).tensor([(chunk, 1.0)]), partition)
        # On its way the prompt is handed over once; the stages on both sides are taken up by it.
        handed_s = sum(self._problem.served(flags).costs.stage_costs(partition).transfer_s(chunk.tokens))
        return float(seconds.sum() - handed_s + (chunks - 1) * seconds.max())

    def _chunk(self, flags: Mapping[str, FlagValue]) -> tuple[Batch, int]:
        """The mean chunk of the mean prompt, and how many chunks it has."""
        problem = self._problem
        loads = zip(problem.mix.shares, (part.rank_load for part in problem.parts), strict=True)
        prompt = sum(share * load.mean_prompt_tokens for share, load in loads)
        chunks = math.ceil(prompt / problem.engine.flow(problem.start(flags)).step_tokens)
        tokens = math.ceil(prompt / chunks)
        return Batch(tokens, tokens * (prompt + 1) / 2, sampled=1), chunks

    def _works(self, flags: Mapping[str, FlagValue]) -> tuple[Work, ...]:
        """What the stages are balanced for: the batches of all loads, or of each alone where the worst counts.

        Loads of a mix are brought to one length first, as a weight says how much of the time a load has, however many
        requests it is written with. Where the worst counts, all are brought to as many output tokens as that one has
        which makes the fewest a second.
        """
        problem = self._problem
        flow, mix, parts = problem.engine.flow(problem.start(flags)), problem.mix, problem.parts
        works = [part.rank_load.typical_batches(flow) for part in parts]
        if len(works) == 1:
            return tuple(works)
        seconds = [self._times_of(flags).fluid_bound_s(work) for work in works]
        if mix.over is Over.WORST:
            tokens = [part.rank_load.output_tokens for part in parts]
            _, fewest = max(zip((s / own for s, own in zip(seconds, tokens, strict=True)), tokens, strict=True))
            return tuple(_times(work, fewest / own) for work, own in zip(works, tokens, strict=True))
        counts = [share * sum(seconds) / own for share, own in zip(mix.shares, seconds, strict=True)]
        return (sum((_times(work, count) for work, count in zip(works, counts, strict=True)), ()),)

    def _room(self, flags: Mapping[str, FlagValue]) -> tuple[Floats, Windows]:
        """KV blocks of every window, and which windows are legal and hold enough of them."""
        problem = self._problem
        deployment = problem.start(flags)
        blocks = problem.engine.kv_blocks(deployment, kv_bytes_tensor(problem, deployment))
        return blocks, self._windows & (blocks >= problem.engine.fewest_kv_blocks(deployment))


def _times(work: Work, factor: float) -> tuple[tuple[Batch, float], ...]:
    return tuple((batch, factor * count) for batch, count in work)
