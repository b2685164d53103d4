"""What every cost model keeps to, whatever it rests on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from partitune.costs.cost_model import Batch, CostModel, decode, prefill
from partitune.errors import SpecError

BATCHES = (prefill(2048), prefill(512, past=4096, sequences=2), decode(16, 1024), decode(1, 1))

#: More tokens, more sequences, longer contexts.
GROWING = (
    (prefill(512), prefill(4096)),
    (prefill(512), prefill(512, past=16384)),
    (decode(4, 1024), decode(64, 1024)),
    (decode(16, 1024), decode(16, 16384)),
)


def check_cost_model(costs: CostModel, partition: tuple[int, ...]) -> None:
    """`partition` is a legal one; its stages have to be as many as the placement's."""
    stages, layers = len(partition), sum(partition)
    assert costs.source
    assert "\n" not in costs.source
    bound = costs.stage_costs(partition)
    assert bound.stages == stages
    for batch in BATCHES:
        host = costs.host_layer_s(batch)
        assert host.shape == (layers,)
        assert (host >= 0).all()
        first = 0
        for stage, (seconds, parts) in enumerate(zip(bound.compute_s(batch), bound.sources(batch), strict=True)):
            per_layer = costs.layer_s(stage, batch)
            assert per_layer.shape == (layers,)
            assert np.isfinite(per_layer).all()
            assert (per_layer >= 0).all()
            owned = slice(first, first + partition[stage])
            gpu_s = float(per_layer[owned].sum()) + costs.edge_s(stage, batch)
            assert seconds == pytest.approx(max(gpu_s, float(host[owned].sum())))
            assert sum(parts) == pytest.approx(seconds)
            assert min(parts) >= 0
            first += partition[stage]
        handed = bound.transfer_s(batch.tokens)
        assert len(handed) == stages - 1
        assert all(0 < seconds < math.inf for seconds in handed)
    for less, more in GROWING:
        for stage in range(stages):
            assert costs.layer_s(stage, less).sum() < costs.layer_s(stage, more).sum(), (less, more)
            assert costs.edge_s(stage, less) <= costs.edge_s(stage, more)
        hand_offs = zip(bound.transfer_s(less.tokens), bound.transfer_s(more.tokens), strict=True)
        assert all(few <= many for few, many in hand_offs)
    assert tuple(bound.compute_s(Batch())) == (0.0,) * stages
    assert tuple(bound.transfer_s(0)) == (0.0,) * (stages - 1)
    for wrong in ((*partition, 1), (partition[0] + 1, *partition[1:])):
        with pytest.raises(SpecError):
            costs.stage_costs(wrong)
