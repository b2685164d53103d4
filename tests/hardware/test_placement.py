from __future__ import annotations

import pytest

from partitune.errors import SpecError
from partitune.hardware.gpus import gpu
from partitune.hardware.links import link
from partitune.hardware.parallelism import Layout
from partitune.hardware.placement import Machines, place


def test_pp8_tp2_on_two_nodes_puts_four_stages_on_each() -> None:
    # vLLM mp: "node0 = pp0-3 (ranks 0-7), node1 = pp4-7"
    machines, layout = Machines(2, 8, [gpu("H200")]), Layout(tp=2, pp=8)
    placement = place(machines, layout)
    assert placement.nodes == (0, 0, 0, 0, 1, 1, 1, 1)
    assert [found.name for found in placement.links] == ["nvlink-h100"] * 3 + ["infiniband-400g"] + ["nvlink-h100"] * 3
    assert machines.idle_note(layout) == ""


def test_nodes_carry_the_same_number_of_ranks() -> None:
    # 12 ranks on two nodes of 8 are 6 + 6 (world size divided by nnodes), never 8 + 4
    machines, layout = Machines(2, 8, [gpu("H100")]), Layout(tp=2, pp=6)
    placement = place(machines, layout)
    assert placement.nodes == (0, 0, 0, 1, 1, 1)
    assert machines.idle_note(layout) == "tp2-pp6 leaves 4 of 16 GPUs idle"


def test_a_tp_group_never_straddles_nodes() -> None:
    with pytest.raises(SpecError, match="whole TP groups"):
        place(Machines(2, 8, [gpu("H100")]), Layout(tp=4, pp=3))  # 6 + 6 would cut the second group
    spread = place(Machines(3, 8, [gpu("H100")]), Layout(tp=4, pp=3))
    assert spread.nodes == (0, 1, 2)
    with pytest.raises(SpecError, match="does not fit a node"):
        place(Machines(4, 4, [gpu("H100")]), Layout(tp=6, pp=2))


def test_unequal_gpus_and_reserves_are_per_stage_and_the_slower_link_joins_them() -> None:
    placement = place(Machines(1, 2, [gpu("RTX-4090"), gpu("H100")], reserved_gib=[4, 0]), Layout(tp=1, pp=2))
    assert placement.reserved_bytes == (4 << 30, 0)
    assert placement.links[0].name == "pcie4"


def test_links_can_be_set_for_a_kind() -> None:
    machines = Machines(2, 2, [gpu("H100")], between_nodes=link("ethernet-10g"))
    placement = place(machines, Layout(tp=1, pp=4))
    assert [joining.name for joining in placement.links] == ["nvlink-h100", "ethernet-10g", "nvlink-h100"]


@pytest.mark.parametrize(
    ("stages", "reserved_gib", "message"),
    [
        (9, [0.0], "needs 18 GPUs; 2 x 8 has 16"),
        (8, [1.0, 2.0], "reserved_gib has 2 entries"),
        (8, [200.0], "H200 has 0 to 139.7 GiB"),
    ],
)
def test_bad_input_is_one_complete_message(stages: int, reserved_gib: list[float], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        place(Machines(2, 8, [gpu("H200")], reserved_gib), Layout(tp=2, pp=stages))
