"""Named links between two ranks: latency and bandwidth, measured where anybody measured them.

Decision: a link is `latency + bytes / bandwidth` of ONE rank's transfer. The constants are medians and large-message
slopes of send/recv, fitted to the tables of microsoft/vidur (MIT, 7d47513, `data/profiling/network`); published
point-to-point data for anything newer than H100 does not exist, so those entries are scaled by line rate and say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partitune.errors import nearest, not_known
from partitune.hardware.generations import Generation
from partitune.hardware.gpus import Gpu


@dataclass(frozen=True, slots=True)
class Link:
    """A point-to-point connection of two ranks: time = latency + bytes / bandwidth."""

    name: str
    latency_s: float
    bandwidth_bytes_s: float
    source: str

    def transfer_s(self, payload_bytes: float) -> float:
        """Seconds for one message of `payload_bytes` over one rank's link."""
        return self.latency_s + payload_bytes / self.bandwidth_bytes_s


_MEASURED = "measured: vidur send_recv, {}"
_SCALED = "extrapolated: {}"

#: name, latency in us, GB/s, source.
_ROWS: tuple[tuple[str, float, float, str], ...] = (
    ("nvlink-a100", 13.5, 222, _MEASURED.format("A100 DGX, same node")),
    ("nvlink-pair-a100", 8.5, 306, _MEASURED.format("A100 NVLink pair")),
    ("nvlink-v100", 13.5, 111, _SCALED.format("nvlink-a100 at half the line rate (300 against 600 GB/s)")),
    ("nvlink-a800", 13.5, 148, _SCALED.format("nvlink-a100 at 400 of 600 GB/s")),
    ("nvlink-h800", 7.5, 160, _SCALED.format("nvlink-h100 at 400 of 900 GB/s")),
    ("nvlink-h100", 7.5, 361, _MEASURED.format("H100 DGX, same node")),
    ("nvlink-b200", 7.5, 722, _SCALED.format("nvlink-h100 at twice the line rate (900 against 450 GB/s)")),
    ("nvlink-rack", 10, 722, _SCALED.format("nvlink-b200 through the rack's switches, 10 us")),
    ("infinity-fabric", 10, 51, _SCALED.format("64 GB/s a link at nvlink-h100's 80 %")),
    ("pcie4", 10, 19, "measured: aiconfigurator-core 0.12.0, slope of the 2-GPU all-reduce on L40S"),
    ("pcie4-host", 8.5, 4.0, _MEASURED.format("A40, same node")),
    ("pcie3", 10, 9.5, _SCALED.format("pcie4 at half the line rate")),
    ("nvlink-c2c", 10, 270, _SCALED.format("450 GB/s between Grace and its GPU at pcie4's 60 % of the line rate")),
    ("pcie5", 10, 38, _SCALED.format("pcie4 at twice the line rate")),
    ("infiniband-200g", 18.5, 17, _SCALED.format("infiniband-400g at half the line rate")),
    ("infiniband-400g", 18.5, 34, _MEASURED.format("H100 DGX, across nodes")),
    ("infiniband-800g", 18.5, 68, _SCALED.format("infiniband-400g at twice the line rate")),
    ("network-a100", 29, 7.9, _MEASURED.format("A100 DGX, across nodes")),
    ("ethernet-100g", 29, 7.9, _SCALED.format("the A100 DGX across nodes, 63 % of 100 Gb/s")),
    ("ethernet-25g", 53, 2.2, _MEASURED.format("A40, across nodes")),
    ("ethernet-10g", 53, 0.88, _SCALED.format("ethernet-25g at 0.4 of the line rate")),
)

#: Every known link by its name.
LINKS: dict[str, Link] = {name: Link(name, us * 1e-6, gb * 1e9, source) for name, us, gb, source in _ROWS}


def link(name: str) -> Link:
    """The link called `name`, in any case.

    Raises:
        SpecError: no such link; the message names the nearest ones.
    """
    if name.casefold() in LINKS:
        return LINKS[name.casefold()]
    raise not_known("link", name, nearest(name, LINKS, most=3), LINKS)


#: What joins a GPU to the memory of its host, by generation.
_TO_HOST: Mapping[Generation, str] = {
    **dict.fromkeys((Generation.VOLTA, Generation.VOLTA_PCIE, Generation.TURING), "pcie3"),
    **dict.fromkeys((Generation.BLACKWELL_RACK, Generation.BLACKWELL_DESK), "nvlink-c2c"),
    **dict.fromkeys(
        (
            Generation.HOPPER, Generation.HOPPER_H800, Generation.HOPPER_PCIE, Generation.BLACKWELL,
            Generation.BLACKWELL_PCIE, Generation.CDNA3, Generation.CDNA4, Generation.GAUDI,
        ),
        "pcie5",
    ),
}  # fmt: skip


def link_to_host(gpu: Gpu) -> Link:
    """What one of these GPUs reads its host's memory through: PCIe of its generation, or Grace's own link."""
    return LINKS[_TO_HOST.get(gpu.generation, "pcie4")]


def link_in_node(gpu: Gpu) -> Link:
    """What joins two of these GPUs inside a node, unless the space says otherwise."""
    return LINKS[gpu.generation.value.in_node]


def link_between_nodes(gpu: Gpu) -> Link:
    """What joins nodes of these GPUs, unless the space says otherwise."""
    return LINKS[gpu.generation.value.between_nodes]
