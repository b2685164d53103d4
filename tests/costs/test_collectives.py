from __future__ import annotations

import pytest

from partitune.costs.collectives import TensorParallelGroup
from partitune.hardware.gpus import gpu


# aiconfigurator-core 0.12.0, vLLM custom all-reduce 0.24.0: (GPU, ranks, bytes, us in a CUDA graph, us eager)
@pytest.mark.parametrize(
    ("name", "tp", "size", "graph_us", "eager_us"),
    [
        ("H200", 8, 16384, 5.15, 20.7),
        ("H200", 2, 1 << 24, 76.57, 90.55),
        ("H200", 8, 1 << 24, 87.17, 100.42),
        ("B300", 2, 1 << 14, 7.02, 20.6),
        ("L40S", 4, 1 << 20, 360.6, 356.46),
    ],
)
def test_all_reduce_is_near_the_measured_one_in_both_modes(
    name: str, tp: int, size: int, graph_us: float, eager_us: float
) -> None:
    group = TensorParallelGroup(gpu(name), tp)
    assert 1e6 * sum(group.all_reduce(size, graph=True)) == pytest.approx(graph_us, rel=0.25)
    assert 1e6 * sum(group.all_reduce(size, graph=False)) == pytest.approx(eager_us, rel=0.3)


def test_one_rank_talks_to_nobody_and_an_unmeasured_size_takes_the_next_larger() -> None:
    alone = TensorParallelGroup(gpu("H200"), 1)
    assert sum(alone.all_reduce(1e9, graph=False)) == alone.all_gather_s(1e9) == 0.0
    six, eight = TensorParallelGroup(gpu("H200"), 6), TensorParallelGroup(gpu("H200"), 8)
    assert six.all_reduce(1e6, graph=True) == eight.all_reduce(1e6, graph=True)
