"""Seconds of a step in which a GPU reads weights that it left in its host's memory.

Decision: every step reads them again, over the link to the host, and nothing hides it: vLLM's kernels read them in
place (0.33 `model_executor/offloader/uva.py`), SGLang copies them before it computes (0.5.23
`srt/utils/offloader.py`, OffloaderV1). Of experts that are read in place only those that tokens visit are read.
Parameters are left in the host from the first layer of a stage on until the bytes are reached; here they are of the
model's average. A kernel that reads a weight for several tiles of tokens reads it more than once, which is not counted:
this is the least it takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.costs.fitted import distinct_experts
from partitune.costs.memory import layer_rank_bytes
from partitune.hardware.gpus import Gpu
from partitune.hardware.links import link_to_host
from partitune.hardware.parallelism import Layout
from partitune.models.architecture import Architecture, Ffn


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What every GPU leaves in its host's memory."""

    bytes: int
    copied: bool  # as a whole before each step; else read in place


class HostReads:
    """What a step reads from the host, on one layout."""

    def __init__(self, architecture: Architecture, layout: Layout, offloaded: Offloaded) -> None:
        layers = architecture.layers
        whole = sum(layer_rank_bytes(layer, layout) for layer in layers)
        self._bytes = min(float(offloaded.bytes), whole / layout.pp)  # of a stage as large as the others
        routed = 0.0 if offloaded.copied else sum(layer.ffn.routed_bytes for layer in layers) / layout.stage_gpus
        self._routed_share = routed / whole
        self._experts = next((layer.ffn for layer in layers if layer.ffn.kind is Ffn.MOE), None)
        self._seen = layout.dp * layout.pcp  # tokens of all data ranks pass the experts of one

    def seconds(self, gpu: Gpu, tokens: int) -> float:
        """Of one stage on `gpu` in a step of `tokens` tokens."""
        if not tokens:
            return 0.0
        visited = 1.0
        if self._experts is not None and self._routed_share:
            experts = self._experts.experts
            visited = distinct_experts(experts, self._experts.experts_per_token, self._seen * tokens) / experts
        read = self._bytes * (1 - self._routed_share * (1 - visited))
        return read / link_to_host(gpu).bandwidth_bytes_s
