"""Item 16: tensor ranks over several nodes can be stated, and every all-reduce then pays for the network."""

from __future__ import annotations

import pytest

from partitune.costs.collectives import TensorParallelGroup
from partitune.errors import SpecError
from partitune.hardware.gpus import gpu
from partitune.hardware.links import link
from partitune.hardware.parallelism import Layout
from partitune.hardware.placement import Machines, Seat, place


def test_16_a_stage_stands_on_whole_nodes() -> None:
    placement = place(Machines(4, 8, [gpu("H100")]), Layout(tp=16, pp=2))
    assert placement.seats == ((Seat(0, 0), Seat(2, 0)),)
    assert (placement.tensor_nodes, placement.node_count, placement.expert_nodes) == (2, 4, 2)
    assert placement.tensor_link is not None
    assert placement.tensor_link.name == placement.links[0].name == "infiniband-400g"
    inside = place(Machines(2, 8, [gpu("H100")]), Layout(tp=8, pp=2))
    assert (inside.tensor_nodes, inside.tensor_link) == (1, None)


def test_16_the_weakest_gpu_of_all_its_nodes_makes_the_stage() -> None:
    placement = place(Machines(2, 1, [gpu("H100"), gpu("A100-80GB")]), Layout(tp=2, pp=1))
    assert placement.gpus[0].name == "A100-80GB"


@pytest.mark.parametrize("layout", [Layout(tp=12, pp=1), Layout(tp=16, pp=1, dcp=2), Layout(tp=8, pcp=2, pp=1)])
def test_16_what_would_straddle_a_border_is_refused(layout: Layout) -> None:
    with pytest.raises(SpecError, match="stands on one node, or without context ranks on whole nodes"):
        place(Machines(4, 8, [gpu("H100")]), layout)


@pytest.mark.parametrize("network", ["infiniband-400g", "ethernet-25g"])
def test_16_an_all_reduce_is_no_faster_than_its_slices_over_the_network(network: str) -> None:
    # The lower bound of a hierarchical all-reduce over two nodes: each rank sends half its eighth, and gets it back.
    message = 8192 * 16384 * 2.0
    group = TensorParallelGroup(gpu("H100"), 16, nodes=2, link=link(network))
    bound_s = 2 * link(network).transfer_s(message / 8 / 2)
    alone_s = TensorParallelGroup(gpu("H100"), 8).all_reduce(message, graph=False).fitted
    assert bound_s < group.all_reduce(message, graph=False).fitted < bound_s + 2.5 * alone_s
