from __future__ import annotations

import pytest

from partitune.costs.fitted import fits
from partitune.errors import SpecError
from partitune.hardware.generations import Generation
from partitune.hardware.gpus import GPUS, gpu
from partitune.hardware.links import LINKS, link, link_between_nodes, link_in_node


def test_measured_constants() -> None:
    # medians of vidur's send_recv tables: 7.5 us and 361 GB/s in a node, 18.5 us and 34 GB/s across, H100 DGX
    assert link("nvlink-h100").transfer_s(361e6) == pytest.approx(7.5e-6 + 1e-3)
    assert link("infiniband-400g").transfer_s(34e6) == pytest.approx(18.5e-6 + 1e-3)


def test_defaults_exist_for_every_gpu_and_nodes_are_never_closer_than_gpus() -> None:
    for found in GPUS.values():
        assert link_between_nodes(found).transfer_s(1e8) >= link_in_node(found).transfer_s(1e8)


def test_extrapolated_links_say_so() -> None:
    assert link_in_node(gpu("B300")).source.startswith("extrapolated")
    assert link_in_node(gpu("H100")).source.startswith("measured")


def test_an_unknown_link_names_the_nearest() -> None:
    assert link("NVLink-H100").name == "nvlink-h100"
    with pytest.raises(SpecError, match="nvlink-h100"):
        link("nvlink-h10")


def test_every_generation_names_links_and_measured_systems_that_exist() -> None:
    systems = {system for measured in fits().values() for system in measured}
    for generation in Generation:
        facts = generation.value
        assert {facts.in_node, facts.between_nodes} <= LINKS.keys()
        assert facts.measured_like
        assert set(facts.measured_like) <= systems
    assert len({generation.value.label for generation in Generation}) == len(Generation.__members__)
