from __future__ import annotations

import pytest

from partitune.errors import SpecError
from partitune.hardware.gpus import gpu
from partitune.hardware.links import link
from partitune.hardware.parallelism import Layout
from partitune.hardware.placement import place


def test_pp8_tp2_on_two_nodes_puts_four_stages_on_each() -> None:
    # vLLM mp: "node0 = pp0-3 (ranks 0-7), node1 = pp4-7"
    placement = place(gpu("H200"), nodes=2, gpus_per_node=8, layout=Layout(tp=2, pp=8))
    assert placement.nodes == (0, 0, 0, 0, 1, 1, 1, 1)
    assert [found.name for found in placement.links] == ["nvlink-h100"] * 3 + ["infiniband-400g"] + ["nvlink-h100"] * 3
    assert placement.idle_gpus == 0


def test_nodes_carry_the_same_number_of_ranks() -> None:
    # 12 ranks on two nodes of 8 are 6 + 6 (world size divided by nnodes), never 8 + 4
    placement = place(gpu("H100"), nodes=2, gpus_per_node=8, layout=Layout(tp=2, pp=6))
    assert placement.nodes == (0, 0, 0, 1, 1, 1)
    assert placement.idle_gpus == 4


def test_a_tp_group_never_straddles_nodes() -> None:
    with pytest.raises(SpecError, match="whole TP groups"):
        place(gpu("H100"), nodes=2, gpus_per_node=8, layout=Layout(tp=4, pp=3))  # 6 + 6 would cut the second group
    spread = place(gpu("H100"), nodes=3, gpus_per_node=8, layout=Layout(tp=4, pp=3))
    assert spread.nodes == (0, 1, 2)
    with pytest.raises(SpecError, match="does not fit a node"):
        place(gpu("H100"), nodes=4, gpus_per_node=4, layout=Layout(tp=8, pp=2))


def test_unequal_gpus_and_reserves_are_per_stage_and_the_slower_link_joins_them() -> None:
    placement = place(
        [gpu("RTX-4090"), gpu("H100")], nodes=1, gpus_per_node=2, layout=Layout(tp=1, pp=2), reserved_gib=[4, 0]
    )
    assert placement.reserved_bytes == (4 << 30, 0)
    assert placement.links[0].name == "pcie4"


def test_links_can_be_set_for_a_kind_and_for_one_boundary() -> None:
    slow, other = link("ethernet-10g"), link("pcie5")
    placement = place(
        gpu("H100"), nodes=2, gpus_per_node=2, layout=Layout(tp=1, pp=4), between_nodes=slow, boundary_links={1: other}
    )
    assert [found.name for found in placement.links] == ["pcie5", "ethernet-10g", "nvlink-h100"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": Layout(tp=2, pp=9)}, "needs 18 GPUs; 2 x 8 has 16"),
        ({"layout": Layout(tp=0, pp=8)}, "tp is 0; it must be at least 1"),
        ({"reserved_gib": [1.0, 2.0]}, "reserved_gib has 2 entries"),
        ({"reserved_gib": 200.0}, "H200 has 0 to 139.7 GiB"),
        ({"boundary_links": {8: link("pcie4")}}, "boundary 8; 8 stages have boundaries 1 to 7"),
    ],
)
def test_bad_input_is_one_complete_message(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"nodes": 2, "gpus_per_node": 8, "layout": Layout(tp=2, pp=8)} | change
    with pytest.raises(SpecError, match=message):
        place(gpu("H200"), **arguments)  # type: ignore[arg-type]
