"""Layouts and where they stand: rank order of vLLM 0.32 `distributed/parallel_state.py`, SGLang 0.5.23 `engine.py`."""

from __future__ import annotations

import pytest

from partitune.errors import SpecError
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Layout, RankOrder, layout_named
from partitune.hardware.placement import Machines, Placement, Seat, place, weakest


def placed(layout: Layout, order: RankOrder = RankOrder.REPLICAS_OUTSIDE, nodes: int = 2) -> Placement:
    return place(Machines(nodes, 8, [gpu("H200")]), layout, order)


def first_ranks(seats: tuple[tuple[Seat, ...], ...]) -> list[list[int]]:
    """Of each replica's stages, counted over whole nodes of 8 ranks."""
    return [[8 * seat.node + seat.first_gpu for seat in replica] for replica in seats]


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        (Layout(tp=2, pp=8), "tp2-pp8"),
        (Layout(tp=4, pp=2, dp=2, expert_ranks=8, dcp=4), "tp4-pp2-dp2-ep8-dcp4"),
        (Layout(pcp=2, expert_ranks=2, all2all_backend="deepep_v2"), "tp1-pp1-pcp2-ep2-deepep_v2"),
        (Layout(tp=2, all_reduce_backend="nccl"), "tp2-pp1-nccl"),
    ],
)
def test_a_name_says_every_size_and_is_read_back(layout: Layout, name: str) -> None:
    assert layout.name == name
    assert layout_named(name, Layout()) == layout


def test_a_name_does_not_tell_the_imbalance() -> None:
    assert layout_named("tp2-pp2", Layout(expert_imbalance=1.5)) == Layout(tp=2, pp=2, expert_imbalance=1.5)


@pytest.mark.parametrize("name", ["", "pp8", "8-2", "tp0-pp2", "tp2 pp8", "tp2-pp8-", "default"])
def test_what_is_no_name_of_a_layout_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match="is not one; allowed: sizes such as"):
        layout_named(name, Layout())


def test_vllms_data_ranks_count_slowest() -> None:
    """rank = ((dp * PP + pp) * PCP + pcp) * TP + tp, the same number of contiguous ranks on every node."""
    seats = placed(Layout(tp=2, pp=2, dp=4)).seats
    assert first_ranks(seats) == [[0, 2], [4, 6], [8, 10], [12, 14]]
    assert [[seat.node for seat in replica] for replica in seats] == [[0, 0], [0, 0], [1, 1], [1, 1]]
    assert [[seat.first_gpu for seat in replica] for replica in seats] == [[0, 2], [4, 6], [0, 2], [4, 6]]


def test_sglangs_attention_data_ranks_lie_inside_a_stage() -> None:
    placement = placed(Layout(tp=2, pp=2, dp=4), RankOrder.REPLICAS_INSIDE)
    assert first_ranks(placement.seats) == [[0, 8], [2, 10], [4, 12], [6, 14]]
    assert placement.nodes == (0, 1)
    assert [link.name for link in placement.links] == ["infiniband-400g"]
    assert (placement.expert_nodes, placement.expert_link) == (1, None)


def test_experts_of_a_stage_may_be_spread_over_nodes() -> None:
    placement = placed(Layout(tp=8, dp=2, expert_ranks=16))
    assert placement.expert_nodes == 2
    assert placement.expert_link is not None
    assert placement.expert_link.name == "infiniband-400g"


def test_a_list_of_the_clusters_gpus_serves_any_layout_and_the_weakest_counts() -> None:
    mixed = [gpu("RTX-5090"), gpu("RTX-3090")]
    apart = place(Machines(1, 2, mixed, reserved_gib=[0.0, 2.0]), Layout(pp=2))
    assert [one.name for one in apart.gpus] == ["RTX-5090", "RTX-3090"]
    together = place(Machines(1, 2, mixed, reserved_gib=[0.0, 2.0]), Layout(tp=2))
    assert (together.gpus, together.reserved_bytes) == ((gpu("RTX-3090"),), (2 << 30,))
    four = place(Machines(2, 2, [gpu("A100-40GB")] * 2 + [gpu("L40S")] * 2), Layout(tp=2, pp=2))
    assert [one.name for one in four.gpus] == ["A100-40GB", "L40S"]
    with pytest.raises(SpecError, match="gpus has 3 entries; give one for all, 2, one per stage, or 4, one per GPU"):
        place(Machines(2, 2, [gpu("H100")] * 3), Layout(tp=2, pp=2))


def test_the_weakest_of_unlike_gpus_is_least_in_every_figure() -> None:
    slow, small = gpu("L40S"), gpu("A100-40GB")
    both = weakest([slow, small])
    assert (both.name, both.memory_bytes, both.bandwidth_bytes_s) == (
        "L40S",
        small.memory_bytes,
        slow.bandwidth_bytes_s,
    )
    assert both.bf16_flops_s == min(slow.bf16_flops_s, small.bf16_flops_s)
