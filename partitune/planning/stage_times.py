"""What any load costs each stage, wherever the cuts are: the tensor that planner and limits share.

Decision: a stage's time is what keeps it from taking the next batch: computing (or, if that takes longer, launching its
kernels), receiving, and sending, because a stage does these one after the other. Hand-offs depend on where the cut is
(Kimi-K3 passes on one residual vector more every twelve layers) and on which boundary crosses nodes. Both are asked of
the cost model as the simulator asks it, so a sum here is the sum there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partitune.costs.cost_model import Batch, Floats
from partitune.planning.problem import Problem
from partitune.planning.solver import fluid_bound_s, stage_tensor

Work = Sequence[tuple[Batch, float]]  # batches, and how often each runs


class StageTimes:
    """Seconds of every (stage, first layer, end layer) of one problem."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        stages, layers = problem.stages, problem.layers
        #: Partitions in which every boundary stands once before every layer that it can stand before.
        firsts = range(1, layers - stages + 2) if stages > 1 else ()
        vectors = [(first, *(1,) * (stages - 2), layers - first - stages + 2) for first in firsts]
        self._probes = [problem.costs.stage_costs(vector) for vector in vectors]
        self._hand_offs: dict[int, Floats] = {}

    def tensor(self, work: Work) -> Floats:
        """Seconds of all of `work`, hand-offs included: shape [stages, layers + 1, layers + 1], inf where empty."""
        problem = self._problem
        stages, layers = problem.stages, problem.layers
        layer_s, edge_s = np.zeros((stages, layers)), np.zeros(stages)
        total = np.zeros((stages, layers + 1, layers + 1))
        for batch, count in work:
            gpu_s, ends_s, launch_s = self._asked(batch)
            if launch_s.any():
                launches = stage_tensor(np.tile(launch_s, (stages, 1)), np.zeros(stages))
                total += count * np.maximum(stage_tensor(gpu_s, ends_s), launches)
            else:
                layer_s += count * gpu_s
                edge_s += count * ends_s
            hand_offs = count * self._hand_off_s(batch.tokens)
            total += hand_offs[:-1, :, None] + hand_offs[1:, None, :]
        return total + stage_tensor(layer_s, edge_s)

    def fluid_bound_s(self, work: Work, *, launches: bool = True) -> float:
        """No partition has a slowest stage below this, even if layers could be cut anywhere.

        Of computing and launching the one that takes longer over the whole chain is counted, and the fastest hand-off
        of each boundary. Without `launches` the host is taken to be infinitely fast.
        """
        bound_s = fluid_bound_s(*self._chain(work, launches=False))
        return max(bound_s, fluid_bound_s(*self._chain(work, launches=True))) if launches else bound_s

    def _chain(self, work: Work, *, launches: bool) -> tuple[Floats, Floats]:
        """At least what every layer costs on every stage, and at least what a stage costs besides."""
        stages, layers = self._problem.stages, self._problem.layers
        layer_s, edge_s = np.zeros((stages, layers)), np.zeros(stages)
        for batch, count in work:
            gpu_s, ends_s, launch_s = self._asked(batch)
            hand_offs = self._hand_off_s(batch.tokens)
            least = np.array([self._where_it_can_stand(b, hand_offs).min() for b in range(stages + 1)])
            longer = launches & (launch_s.sum() > gpu_s.sum(axis=1) + ends_s)
            layer_s += count * np.where(longer[:, None], launch_s, gpu_s)
            edge_s += count * (np.where(longer, 0.0, ends_s) + least[:-1] + least[1:])
        return layer_s, edge_s

    def _asked(self, batch: Batch) -> tuple[Floats, Floats, Floats]:
        """GPU seconds of every layer on every stage, seconds outside the layers, launch seconds of every layer."""
        costs, stages = self._problem.costs, range(self._problem.stages)
        gpu_s = np.stack([costs.layer_s(stage, batch) for stage in stages])
        return gpu_s, np.array([costs.edge_s(stage, batch) for stage in stages]), costs.host_layer_s(batch)

    def _hand_off_s(self, tokens: int) -> Floats:
        """Seconds by (boundary, cut), shape [stages + 1, layers + 1]; nothing crosses the first and the last."""
        known = self._hand_offs.get(tokens)
        if known is None:
            stages, layers = self._problem.stages, self._problem.layers
            known = np.zeros((stages + 1, layers + 1))
            for first, probe in enumerate(self._probes, start=1):
                boundaries = np.arange(1, stages)
                known[boundaries, first + boundaries - 1] = probe.transfer_s(tokens)
            self._hand_offs[tokens] = known
        return known

    def _where_it_can_stand(self, boundary: int, hand_offs: Floats) -> Floats:
        """The entries of one boundary that some partition has."""
        stages, layers = self._problem.stages, self._problem.layers
        if boundary in (0, stages):
            return hand_offs[boundary, :1]
        return hand_offs[boundary, boundary : layers - stages + boundary + 1]
